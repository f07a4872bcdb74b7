"""The unix socket that leads to a loopback port."""

import asyncio
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from polar_mitm.sandboxes.bridge import SOCKET_PATH_LIMIT, UnixBridge


@asynccontextmanager
async def reverser() -> AsyncIterator[tuple[int, asyncio.Event]]:
    """Answers, once a client has said all, with its bytes reversed; the event is set when a client has gone."""
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            data = await reader.read()
            writer.write(data[::-1])
            await writer.drain()
        except OSError:
            pass  # the client left in the middle
        gone.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], gone


async def test_megabytes_go_through_both_ways_and_the_answer_follows_a_half_closed_question() -> None:
    question = bytes(range(256)) * 16 * 1024
    async with reverser() as (port, _), UnixBridge(port) as bridge:
        reader, writer = await asyncio.open_unix_connection(bridge.path)
        writer.write(question)
        writer.write_eof()
        async with asyncio.timeout(20):
            assert await reader.read() == question[::-1]
        writer.close()


async def test_connections_are_independent() -> None:
    async with reverser() as (port, _), UnixBridge(port) as bridge:

        async def ask(text: bytes) -> bytes:
            reader, writer = await asyncio.open_unix_connection(bridge.path)
            writer.write(text)
            await asyncio.sleep(0.01)
            writer.write_eof()
            return await reader.read()

        words = [f"word {number}".encode() for number in range(20)]
        assert await asyncio.gather(*map(ask, words)) == [word[::-1] for word in words]


async def test_a_client_that_goes_away_is_seen_to_go_at_the_other_end() -> None:
    async with reverser() as (port, gone), UnixBridge(port) as bridge:
        _, writer = await asyncio.open_unix_connection(bridge.path)
        writer.write(b"half a questi")
        await writer.drain()
        writer.close()
        async with asyncio.timeout(1):  # an engine's work must be cancelled within a second
            await gone.wait()


async def test_a_port_where_nobody_listens_closes_the_connection_at_once() -> None:
    async with reverser() as (port, _):
        pass
    async with UnixBridge(port) as bridge:
        reader, _ = await asyncio.open_unix_connection(bridge.path)
        async with asyncio.timeout(2):
            assert await reader.read() == b""


async def test_only_the_user_may_connect() -> None:
    async with reverser() as (port, _), UnixBridge(port) as bridge:
        assert stat.S_IMODE(bridge.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(bridge.path.parent.stat().st_mode) == 0o700


async def test_the_end_closes_open_connections_and_removes_the_folder() -> None:
    async with reverser() as (port, gone):
        async with UnixBridge(port) as bridge:
            folder = bridge.path.parent
            reader, writer = await asyncio.open_unix_connection(bridge.path)
            writer.write(b"x")
            await asyncio.sleep(0.05)
        async with asyncio.timeout(2):
            assert await reader.read() == b""
            await gone.wait()
        assert not folder.exists()


async def test_the_path_is_short_enough_for_a_socket_where_tmpdir_is_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("d" * 90)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    async with reverser() as (port, _), UnixBridge(port) as bridge:
        assert len(str(bridge.path)) <= SOCKET_PATH_LIMIT
        assert list(long.iterdir()) == []


def test_the_path_of_a_bridge_that_is_not_open_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="not open"):
        _ = UnixBridge(1).path
