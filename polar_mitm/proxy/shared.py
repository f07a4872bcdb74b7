"""One piece of work that several clients may wait for: it ends early only when the last of them has left."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Shared[Result]:
    """The work runs from the start on, in a task of its own."""

    def __init__(self, work: Coroutine[Any, Any, Result], name: str) -> None:
        loop = asyncio.get_running_loop()
        self.task = loop.create_task(work, name=name)
        self.ended_at: float | None = None
        """The loop's time at its end."""
        self._waiting = 0
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
        """What the work gives, or raises. Cancelled while nobody else waits, it cancels the work."""
        self._waiting += 1
        try:
            await asyncio.wait([self.task])
        except asyncio.CancelledError:
            if self._waiting > 1:
                raise
            self.task.cancel()
            await asyncio.wait([self.task])  # the result may be there already, and then it counts
            if self.task.cancelled():
                raise
        finally:
            self._waiting -= 1
        return self.task.result()

    async def ended(self) -> None:
        await asyncio.wait([self.task])
