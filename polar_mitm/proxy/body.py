"""A request's body: its content codings undone, newest first, and read as a JSON object.

mitmproxy decodes one coding and without a limit; Codex with a ChatGPT login and pi always send zstd, and a small body
may stand for gigabytes. What a field of the object means is the providers' business.
"""

import sys
import zlib
from collections.abc import Callable
from typing import Final

import brotli

from polar_mitm.chat import CallError, Json
from polar_mitm.json_text import loads

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LARGEST_BODY: Final = 64 * 2**20
"""Bytes. The largest prompts have a million tokens, about 4 MB of text; a history of screenshots takes tens of MB more.
The providers themselves stop at 20 to 50 MB."""
MOST_CODINGS: Final = 4
"""No client stacks more than two; each costs up to the limit in work."""
_MOST_MEMBERS: Final = 16
"""Compressed streams that may follow each other in one body, as a tool that compresses in parallel writes them."""


class _TooLarge(Exception):
    pass


def read_object(raw: bytes, content_encoding: str, *, limit: int = LARGEST_BODY) -> tuple[bytes, Json]:
    """The decoded body and the JSON object in it. Raises what `decode` raises, and CallError('invalid_request')."""
    content = decode(raw, content_encoding, limit=limit)
    try:
        body = loads(content)
    except ValueError as error:
        raise CallError("invalid_request", f"the request body can't be read as JSON: {error}") from error
    if not isinstance(body, dict):
        raise CallError("invalid_request", "the request body is not a JSON object")
    return content, body


def decode(raw: bytes, content_encoding: str, *, limit: int = LARGEST_BODY) -> bytes:
    """Undo every coding that a Content-Encoding header lists; no step may give more than `limit` bytes.

    Raises CallError: `unsupported_encoding` for a coding nobody here reads, `invalid_request` for a stream that is
    broken or cut short, `too_large`.
    """
    names = [name.strip().lower() for name in content_encoding.split(",")]
    codings = [name for name in names if name not in ("", "identity")]
    for name in codings:
        if name not in _DECODERS:
            known = ", ".join(sorted({*_DECODERS, "identity"}))
            raise CallError("unsupported_encoding", f"content-encoding {name!r} is not one of {known}")
    if len(codings) > MOST_CODINGS:
        raise CallError("unsupported_encoding", f"{len(codings)} content codings; at most {MOST_CODINGS} are undone")
    content = raw
    try:
        _within(content, limit)
        for name in reversed(codings):
            content = _undone(name, content, limit)
    except _TooLarge:
        raise CallError("too_large", f"the request body is larger than {limit} bytes") from None
    return content


def _undone(name: str, content: bytes, limit: int) -> bytes:
    try:
        return _DECODERS[name](content, limit)
    except (ValueError, zlib.error, brotli.error, zstd.ZstdError) as error:
        raise CallError("invalid_request", f"the request body is no whole {name} stream: {error}") from error


def _within(content: bytes, limit: int) -> None:
    if len(content) > limit:
        raise _TooLarge


def _gzip(content: bytes, limit: int) -> bytes:
    return _members(content, limit, lambda: zlib.decompressobj(wbits=16 + zlib.MAX_WBITS))


def _deflate(content: bytes, limit: int) -> bytes:
    """Deflate in a zlib wrapper, as HTTP says, or bare, as some clients send it."""
    wrapped = len(content) > 1 and content[0] & 0x0F == zlib.DEFLATED and int.from_bytes(content[:2]) % 31 == 0
    return _members(content, limit, lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS))


def _zstd(content: bytes, limit: int) -> bytes:
    return _members(content, limit, zstd.ZstdDecompressor)


def _members(content: bytes, limit: int, start: "Callable[[], zlib._Decompress | zstd.ZstdDecompressor]") -> bytes:
    """One compressed stream after another, each whole."""
    pieces: list[bytes] = []
    left = limit
    for _ in range(_MOST_MEMBERS):
        stream = start()
        # One byte more than may be tells a body that is too large from one of exactly the limit.
        piece = stream.decompress(content, left + 1)
        _within(piece, left)
        pieces.append(piece)
        left -= len(piece)
        if not stream.eof:
            raise ValueError("it is cut short")
        content = stream.unused_data
        if not content:
            return b"".join(pieces)
    raise ValueError(f"more than {_MOST_MEMBERS} streams, or bytes after its end")


def _brotli(content: bytes, limit: int) -> bytes:
    stream = brotli.Decompressor()
    whole: bytes = stream.process(content, output_buffer_limit=limit + 1)
    _within(whole, limit)
    if not stream.is_finished():
        raise ValueError("it is cut short")
    return whole


_DECODERS: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _brotli,
    "zstd": _zstd,
}
