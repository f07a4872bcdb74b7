"""The `encrypted_content` that polar writes: text of the model's that the client keeps and sends back, unread."""

import base64

# Marks what polar itself put there; anything else is another service's.
SEAL = "polar.v1."


def seal(text: str) -> str:
    return SEAL + base64.b64encode(text.encode()).decode()


def unseal(encrypted_content: str) -> str | None:
    """The text that `seal` put away; None for content of another service."""
    if not encrypted_content.startswith(SEAL):
        return None
    try:
        return base64.b64decode(encrypted_content.removeprefix(SEAL), validate=True).decode()
    except ValueError:  # no base64, or no text: cut or changed on the way
        return None
