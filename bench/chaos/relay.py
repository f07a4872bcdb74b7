"""A stretch of network between two of the processes, which can be cut."""

import asyncio
from typing import Self

PIECE = 64 * 1024


class Relay:
    """Listens on `port` and passes everything on to `target` and back. While it is `dark` nobody gets through."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.dark = False
        self.passed = 0
        """Bytes, both ways."""
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0, backlog=512)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        self.cut()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> int:
        """Reset every connection; how many there were."""
        count = len(self._writers) // 2
        for writer in list(self._writers):
            writer.transport.abort()
        return count

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.dark:
            writer.transport.abort()
            return
        try:
            onward, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, back}
        self._writers |= both
        try:
            await asyncio.gather(self._pump(reader, back), self._pump(onward, writer))
        except (OSError, asyncio.CancelledError):  # at the end of all; streams would make an error of a cancelled task
            pass
        finally:
            self._writers -= both
            for one in both:
                one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(PIECE):
            self.passed += len(piece)
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
