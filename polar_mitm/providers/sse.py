"""Server-sent event framing, shared by every provider that streams."""

import orjson

from polar_mitm.chat import Json


def event(data: Json, name: str | None = None) -> bytes:
    """One framed event: an optional `event:` line, one `data:` line of compact JSON, a blank line."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + orjson.dumps(data) + b"\n\n"
