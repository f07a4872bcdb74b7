"""One piece of work that several clients may wait for: it ends early only when the last of them has left.

And then not at once, where another is likely to come: it is left running for a while.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Shared[Result]:
    """The work runs from the start on, in a task of its own."""

    def __init__(
        self,
        work: Coroutine[Any, Any, Result],
        name: str,
        *,
        linger_s: float = 0.0,
        over: asyncio.Event | None = None,
    ) -> None:
        """`linger_s`: how long the work goes on without anybody who waits; once `over` is set, nobody will come."""
        loop = asyncio.get_running_loop()
        self.task = loop.create_task(work, name=name)
        self.ended_at: float | None = None
        """The loop's time at its end."""
        self._waiting = 0
        self.linger_s = linger_s
        self._over = over or asyncio.Event()
        self._joined = asyncio.Event()
        self.task.add_done_callback(lambda _: setattr(self, "ended_at", loop.time()))

    @property
    def followed(self) -> bool:
        """Whether anyone waits."""
        return self._waiting > 0

    @property
    def given_up(self) -> bool:
        """Whether the work was cancelled, or is about to be."""
        return self.task.cancelled() or self.task.cancelling() > 0

    async def result(self) -> Result:
        """What the work gives, or raises. Cancelled while nobody else waits, it lingers for another, and cancels the
        work when none comes, or when it is cancelled again."""
        self._waiting += 1
        self._joined.set()
        try:
            await asyncio.wait([self.task])
        except asyncio.CancelledError:
            await self._linger()
            if self._waiting > 1:
                raise
            self.task.cancel()
            await asyncio.wait([self.task])  # the result may be there already, and then it counts
            if self.task.cancelled():
                raise
        finally:
            self._waiting -= 1
        return self.task.result()

    async def _linger(self) -> None:
        """Until another waits, the work is done, or it is in vain."""
        if self._waiting > 1 or not self.linger_s or self._over.is_set():
            return
        self._joined.clear()
        signs = [asyncio.ensure_future(event.wait()) for event in (self._joined, self._over)]
        try:
            await asyncio.wait([self.task, *signs], timeout=self.linger_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # the second: nobody is to come any more
        finally:
            for sign in signs:
                sign.cancel()

    async def ended(self) -> None:
        await asyncio.wait([self.task])
