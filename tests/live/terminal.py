"""A program in a terminal of its own, typed into as a person does."""

import asyncio
import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

ROWS, COLUMNS = 40, 120
LIMIT_S = 60.0
"""For anything to appear, on a busy machine."""

_CONTROL = re.compile(r"\x1b\[[0-9;?<>=]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b.")
"""Control sequences: colours and the cursor, titles, character sets, others."""


class Terminal:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.screen = bytearray()
        """All that was written to it."""
        self._written = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            self.screen += os.read(self._descriptor, 65536)
            self._written.set()
        except OSError:  # its program has ended
            asyncio.get_running_loop().remove_reader(self._descriptor)

    async def shows(self, words: str, *, since: int = 0) -> None:
        """Until these words were written, after so many bytes. Programs move the cursor where others write blanks."""
        wanted = "".join(words.split())
        async with asyncio.timeout(LIMIT_S):
            while wanted not in "".join(_CONTROL.sub("", self.screen[since:].decode(errors="replace")).split()):
                self._written.clear()
                await self._written.wait()

    async def enter(self, line: str) -> None:
        """Type the line, and press return once it is there. A program that completes commands needs a moment more."""
        before = len(self.screen)
        os.write(self._descriptor, line.encode())
        await self.shows(line, since=before)
        await asyncio.sleep(0.5)
        os.write(self._descriptor, b"\r")

    async def quiet(self, seconds: float = 2.0) -> None:
        """Until it has written nothing for so long."""
        seen = -1
        while len(self.screen) != seen:
            seen = len(self.screen)
            await asyncio.sleep(seconds)


@asynccontextmanager
async def terminal(command: list[str], env: dict[str, str], folder: Path) -> AsyncIterator[Terminal]:
    """The program runs inside the context, and is killed at its end."""
    descriptor, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *command, env=env, cwd=folder, stdin=inner, stdout=inner, stderr=inner, start_new_session=True
    )
    os.close(inner)
    try:
        yield Terminal(descriptor)
    finally:
        asyncio.get_running_loop().remove_reader(descriptor)
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        os.close(descriptor)
