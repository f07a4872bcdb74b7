"""A unix socket that leads to a TCP port of this machine's loopback: the way into a sandbox without a network.

It copies bytes and reads none of them.
"""

import asyncio
import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from polar_mitm.sandboxes.scratch import prefix

# sun_path holds 108 bytes with its final zero on Linux, 104 on macOS.
SOCKET_PATH_LIMIT = 100

CHUNK = 64 * 1024


class UnixBridge:
    """`async with UnixBridge(port) as bridge:` listens at `bridge.path` until the block ends, then closes all."""

    def __init__(
        self, port: int, *, host: str = "127.0.0.1", marker: str = "bridge", source: str | None = None
    ) -> None:
        """`marker` is the session's id: the socket's folder is named by it. `source` is the loopback address from which
        its connections come, by which the listener at the port can tell whose they are."""
        self.port = port
        self.host = host
        self._marker = marker
        self._source = (source, 0) if source else None
        self._folder: Path | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def path(self) -> Path:
        if self._folder is None:
            raise RuntimeError("the bridge is not open")
        return self._folder / "s"

    async def __aenter__(self) -> Self:
        self._folder = _short_folder(self._marker)
        try:
            self._server = await asyncio.start_unix_server(self._accept, self.path, limit=CHUNK)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self.path.chmod(0o600)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None and self._folder is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        self._folder = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._join(reader, writer)
        except OSError:
            pass  # either end went away: both are closed, which is all the other end can be told
        finally:
            self._connections.discard(task)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            far_reader, far_writer = await asyncio.open_connection(
                self.host, self.port, limit=CHUNK, local_addr=self._source
            )
            with contextlib.closing(far_writer):
                try:
                    async with asyncio.TaskGroup() as both:
                        both.create_task(_copy(reader, far_writer))
                        both.create_task(_copy(far_reader, writer))
                except* OSError:
                    pass  # as in _accept


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(CHUNK):
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()  # a client that has said all it has to say may still be waiting for the answer


def _short_folder(marker: str) -> Path:
    """A private folder whose sockets fit SOCKET_PATH_LIMIT, also where TMPDIR is long."""
    folder = Path(tempfile.mkdtemp(prefix=prefix(marker)))
    if len(os.fsencode(folder)) + 2 <= SOCKET_PATH_LIMIT:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix=prefix(marker), dir="/tmp"))
