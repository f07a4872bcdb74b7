"""Calls pass here on their way to an engine, or are held until the gate is open again."""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final

from polar_mitm.engine.pool.member import Flight, Member

AGAIN_S: Final = 0.2
"""A call that is to end may be between two requests to its engine, where there is nothing to end: it is asked again."""
_SHOWN: Final = 5


class Hangs(Exception):
    """Calls did not come to their end in time. The message names them."""


class Gate:
    """Open at first."""

    def __init__(self, members: list[Member]) -> None:
        self.held = 0
        """Calls that wait."""
        self._members = members
        self._open = asyncio.Event()
        self._open.set()
        self._landed = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def open(self) -> None:
        self._open.set()

    def shut(self) -> None:
        self._open.clear()

    async def passed(self) -> None:
        """Until the gate is open. Nothing comes between that and what the caller does before it waits again."""
        if self.is_open:
            return
        self.held += 1
        try:
            while not self.is_open:
                await self._open.wait()
        finally:
            self.held -= 1

    def landed(self) -> None:
        """A call has come to its end."""
        self._landed.set()

    async def drained(self, limit_s: float) -> None:
        """Until no call is under way. Raises Hangs."""
        deadline = asyncio.get_running_loop().time() + limit_s
        while flights := list(self._flights()):
            if not await self._landing(deadline):
                raise Hangs(_named(flights, limit_s))

    async def cut(self, limit_s: float, *, only_chat: bool = False) -> None:
        """End the calls that are under way, until none is; or those only whose prompts go as messages. Raises Hangs."""
        now = asyncio.get_running_loop().time
        deadline = now() + limit_s
        while flights := [(m, f) for m, f in self._flights() if f.tokens == "chat" or not only_chat]:
            if now() >= deadline:
                raise Hangs(_named(flights, limit_s))
            for _, flight in flights:
                flight.cut = True
            for member in {id(m): m for m, _ in flights}.values():
                if not await member.engine.abort(only_chat=only_chat):
                    for flight in [f for m, f in flights if m is member and f.task]:
                        assert flight.task
                        flight.task.cancel()
            await self._landing(min(deadline, now() + AGAIN_S))

    async def _landing(self, deadline: float) -> bool:
        """Whether a call came to its end before the deadline."""
        self._landed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._landed.wait()
        return self._landed.is_set()

    def _flights(self) -> Iterable[tuple[Member, Flight]]:
        return ((member, flight) for member in self._members for flight in member.flights)


def _named(flights: list[tuple[Member, Flight]], limit_s: float) -> str:
    now = asyncio.get_running_loop().time()
    longest = sorted(flights, key=lambda pair: pair[1].began)
    shown = [f"{f.session_id} at {m.url} for {now - f.began:.0f} s" for m, f in longest[:_SHOWN]]
    more = f", and {len(flights) - _SHOWN} more" if len(flights) > _SHOWN else ""
    count = "1 call has" if len(flights) == 1 else f"{len(flights)} calls have"
    return f"{count} not come to an end within {limit_s:g} s: {', '.join(shown)}{more}"
