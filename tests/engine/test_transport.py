"""What an engine, or whatever stands in its place, may put on the wire: an answer, or an engine error and no more."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from polar_mitm.chat import CallError
from polar_mitm.engine.transport import Transport

BODY = json.dumps({"answer": "Hello."}).encode()


def head(*lines: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", "Content-Type: application/json", *lines, "", ""]).encode()


SIZED = head(f"Content-Length: {len(BODY)}")
CHUNKED = head("Transfer-Encoding: chunked")
IN_CHUNKS = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n"

ANSWERS = {
    "whole": SIZED + BODY,
    "in chunks of one byte": CHUNKED + IN_CHUNKS + b"\r\n",
    "with trailers": CHUNKED + IN_CHUNKS + b"X-Sum: 1\r\n\r\n",
    "gzip": head("Content-Encoding: gzip", "Connection: close") + gzip.compress(BODY),
    "after a 100": b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED + BODY,
    "twice": (SIZED + BODY) * 2,
}
NO_ANSWERS = {
    "nothing": b"",
    "no http": b"hello\r\n\r\n",
    "no head": BODY,
    "a head that ends": b"HTTP/1.1 200 OK\r\nContent-",
    "no status": b"HTTP/1.1 fine\r\n\r\n",
    "a body cut short": head(f"Content-Length: {len(BODY) + 1}") + BODY,
    "chunks that are none": CHUNKED + b"zz\r\n" + BODY,
    "chunks without an end": CHUNKED + IN_CHUNKS[:-3],
    "gzip that is none": head("Content-Encoding: gzip", f"Content-Length: {len(BODY)}") + BODY,
    "a header without end": head("X: " + "a" * 100_000, f"Content-Length: {len(BODY)}") + BODY,
}


@asynccontextmanager
async def serving(data: bytes, size: int | None = None) -> AsyncIterator[Transport]:
    """A server that answers each request with these bytes, so many at a time, and closes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        step = size or max(1, len(data))
        for at in range(0, len(data), step):
            writer.write(data[at : at + step])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    transport = Transport(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None)
    transport.open()
    try:
        yield transport
    finally:
        await transport.close()
        server.close()


@pytest.mark.parametrize("size", [1, None], ids=["a byte at a time", "at once"])
@pytest.mark.parametrize("data", ANSWERS.values(), ids=ANSWERS)
async def test_an_answer_is_read_however_it_is_cut(data: bytes, size: int | None) -> None:
    async with serving(data, size) as transport:
        answer = await transport.post("/v1/x", {})
    assert (answer.status, answer.json, answer.raw) == (200, True, BODY)


@pytest.mark.parametrize("size", [1, None], ids=["a byte at a time", "at once"])
@pytest.mark.parametrize("data", NO_ANSWERS.values(), ids=NO_ANSWERS)
async def test_what_is_no_whole_answer_is_an_engine_error(data: bytes, size: int | None) -> None:
    async with serving(data, size) as transport:
        with pytest.raises(CallError) as caught:
            await transport.post("/v1/x", {})
    assert (caught.value.kind, caught.value.message) == ("engine", "the engine gave no answer")
    assert caught.value.detail.startswith(f"{transport.url}/v1/x gave no answer: ")


REDIRECTS: dict[str, Callable[[str], str]] = {
    "elsewhere": lambda url: "http://example.invalid/v1/x",
    "itself": lambda url: f"{url}/v1/y",
    "nowhere": lambda url: "::::",
}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("place", REDIRECTS.values(), ids=REDIRECTS)
async def test_a_redirect_is_an_answer_like_any_other(place: Callable[[str], str], status: int) -> None:
    data = head(f"Location: {place('http://127.0.0.1:9')}", "Content-Length: 0", status=f"{status} Go")
    async with serving(data) as transport:
        assert (await transport.post("/v1/x", {})).status == status
