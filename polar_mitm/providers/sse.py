"""Server-sent event framing, shared by every provider that streams."""

from polar_mitm.chat import Json
from polar_mitm.json_text import dumps


def event(data: Json, name: str | None = None) -> bytes:
    """One framed event: an optional `event:` line, one `data:` line of compact JSON, a blank line."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + dumps(data) + b"\n\n"
