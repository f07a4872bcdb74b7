"""The pool: opens its engines, watches them, and gives sessions their places."""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from polar_mitm.chat import CallError
from polar_mitm.engine.capabilities import Capabilities, EngineUnreachable
from polar_mitm.engine.client import Engine
from polar_mitm.engine.control import ControlFailed
from polar_mitm.engine.pool.member import Member
from polar_mitm.engine.pool.policy import Policy
from polar_mitm.engine.pool.seat import Seat

logger = logging.getLogger(__name__)

WATCH_S: Final = 2.0
GROUP_SLACK: Final = 2
"""Sessions that an engine may have more than the emptiest one and still take another of a group that it has: a prompt
that is in its cache is worth a short wait, and not a long one."""


class EnginePool:
    """`open` before the first seat, `close` after the last; also an async context manager."""

    def __init__(
        self, engines: Sequence[Engine], *, policy_version: str | None = None, kept: Path | None = None
    ) -> None:
        """`policy_version`: of the weights they have. `kept`: file that outlives the process and knows better.

        OSError and ValueError where that file cannot be read.
        """
        self.members = [Member(engine) for engine in engines]
        self.policy = Policy(self.members, policy_version, kept)
        self._watching: list[asyncio.Task[None]] = []

    @classmethod
    def of(
        cls,
        urls: Iterable[str],
        *,
        model: str | None = None,
        api_key: str | None = None,
        policy_version: str | None = None,
        kept: Path | None = None,
    ) -> Self:
        """Of the servers at these URLs, each once. OSError and ValueError as above."""
        engines = [Engine(url, model=model, api_key=api_key) for url in dict.fromkeys(urls)]
        return cls(engines, policy_version=policy_version, kept=kept)

    @property
    def capabilities(self) -> Capabilities:
        """What holds for all of them; the address is the first one's. RuntimeError before `open`."""
        there = [member.engine.capabilities for member in self.members if member.opened]
        if not there:
            raise RuntimeError("EnginePool.open() has not been awaited")
        if len(there) == 1:
            return there[0]
        windows = [found.max_model_len for found in there if found.max_model_len is not None]
        not_exact = next((f"at {found.url} {found.not_exact}" for found in there if found.not_exact), None)
        return replace(there[0], max_model_len=min(windows, default=None), not_exact=not_exact)

    @property
    def trouble(self) -> str | None:
        """Why no call can be answered now; None when one can. While weights are changed calls wait, which is no trouble
        unless the change does not go on."""
        if self.policy.trouble is not None:
            return f"the policy is {self.policy.phase}: {self.policy.trouble}"
        if any(member.state == "up" for member in self.members):
            return None
        return "; ".join(f"the engine at {member.url} {member.trouble}" for member in self.members)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> Capabilities:
        """Open the engines. One that does not answer is waited for while the others work.

        Raises EngineUnreachable where none answers, and EngineUnfit where one cannot be used with the others.
        """
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        self._watching = [asyncio.create_task(self._watch(member)) for member in self.members]
        return self.capabilities

    async def close(self) -> None:
        """Safe to call twice."""
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        self._watching = []
        for member in self.members:
            await member.engine.close()

    def seat(
        self, session_id: str, group: str | None = None, policy_version: str | None = None, *, shared: bool = False
    ) -> Seat:
        """A session's place. `group`: sessions whose prompts begin alike. `policy_version`: the only one that it wants.

        `shared`: it is of many conversations that have nothing to do with each other, each with a place of its own.
        """
        seat = Seat(self, session_id, group or session_id, policy_version, shared=shared)
        with contextlib.suppress(CallError):  # there may be an engine by the time of its first call
            seat.sit()
        return seat

    def place(self, now: Member | None, group: str, avoid: Collection[str]) -> Member:
        """The engine for a session that is at `now`. Raises CallError."""
        if not (usable := self._usable(avoid)):
            why = "; ".join(f"{member.url} {member.trouble or 'was tried'}" for member in self.members)
            raise CallError("engine", "no engine answers", detail=f"no engine answers: {why}")
        if now in usable and now is not None:
            return now
        least = min(member.load for member in usable)
        home = [m for m in usable if group in m.groups and m.load <= least + GROUP_SLACK]
        return min(home or usable, key=lambda member: member.load)

    def others(self, avoid: Collection[str]) -> bool:
        """Whether there is an engine to ask beside these."""
        return any(member.state == "up" and member.url not in avoid for member in self.members)

    def _usable(self, avoid: Collection[str]) -> list[Member]:
        """Those that are up; else those that did not answer last: the error that tells why is theirs."""
        there = [member for member in self.members if member.url not in avoid]
        return [m for m in there if m.state == "up"] or [m for m in there if m.state == "down" and m.opened]

    async def _open(self) -> None:
        model: str | None = None
        silent: EngineUnreachable | None = None
        waiting, silents = list(self.members), list[Member]()
        for member in self.members:  # the first that answers says which model all of them serve
            waiting.remove(member)
            try:
                model = (await self._opened(member, None)).model
                break
            except EngineUnreachable as error:
                member.down(error.reason)
                silent = silent or error
                silents.append(member)
        if model is None:
            assert silent is not None
            raise silent
        for member in silents:
            member.model = model
        await asyncio.gather(*(self._open_another(member, model) for member in waiting))

    async def _open_another(self, member: Member, model: str) -> None:
        member.model = model
        try:
            await self._opened(member, model)
        except EngineUnreachable as error:
            member.down(error.reason)

    async def _opened(self, member: Member, model: str | None) -> Capabilities:
        """Raises EngineNotReady."""
        if self.policy.interrupted:
            # A paused engine answers no probe; the gate holds this pool's calls.
            member.engine.connect()
            try:
                if await member.engine.control.paused():
                    await member.engine.control.resume()
            except ControlFailed as error:
                raise EngineUnreachable(member.url, str(error)) from error
        found = await member.engine.open(model)
        await self.policy.admit(member)
        return found

    async def _watch(self, member: Member) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                await self._look(member)
            except Exception:  # the border of the watch: an engine that nobody looks at any more would be missed
                logger.exception("polar: the engine at %s could not be looked at", member.url)

    async def _look(self, member: Member) -> None:
        exact = self.capabilities.exact
        if await member.look():
            if exact and (why := member.engine.capabilities.not_exact):
                member.strange(f"{why}, and prompts go as token ids")
            else:
                await self.policy.admit(member)
