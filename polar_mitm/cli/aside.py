"""Printing beside the work: a terminal that is held up (Ctrl-S), or a reader that does not read, holds up no call."""

import atexit
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Final

CLOSING_S: Final = 2.0
"""What printing is given to end when the program does."""


class Aside:
    """A thread of its own that does what it is given, in order."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="polar-aside", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def do(self, work: Callable[[], object]) -> None:
        """Do this when all before it is done. Returns at once."""
        self._waiting.put(work)

    def close(self) -> None:
        """See through what is waiting, unless that takes too long."""
        self._waiting.put(None)
        self._thread.join(CLOSING_S)

    def _run(self) -> None:
        while work := self._waiting.get():
            with suppress(OSError, UnicodeError):  # who reads this has left, or can't show it: no reason to stop
                work()


class AsideHandler(logging.Handler):
    """Gives records to another handler aside."""

    def __init__(self, aside: Aside, handler: logging.Handler) -> None:
        super().__init__()
        self._aside = aside
        self._handler = handler

    def emit(self, record: logging.LogRecord) -> None:
        self._aside.do(partial(self._handler.handle, record))
