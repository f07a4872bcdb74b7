"""A session's place at an engine: it stays there for the prefix cache's sake, and moves on when the engine dies."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from polar_mitm.chat import ChatRequest, message_wire
from polar_mitm.engine.capabilities import Capabilities
from polar_mitm.engine.client import Continuation, EngineLost, Sample
from polar_mitm.engine.control import UNNAMED
from polar_mitm.engine.pool.member import BrokenOff, Flight, Member
from polar_mitm.json_text import dumps
from polar_mitm.prompts import Tokens

if TYPE_CHECKING:
    from polar_mitm.engine.pool.pool import EnginePool

MOST_LOST: Final = 2
"""Engines that one call may lose: a request that kills its engine must not kill them all."""
MOST_OPENINGS: Final = 10_000
_NEW_WEIGHTS: Final = "it was ended for new weights"


class OtherPolicy(Exception):
    """The session asked for a version of the policy, and it is served no more."""


@dataclass(slots=True, frozen=True)
class Tried:
    """An engine that was asked for a reply and gave none."""

    url: str
    why: str


@dataclass(slots=True)
class Trail:
    """What came before a call's reply."""

    tried: list[Tried] = field(default_factory=list)
    broken_off: list[Sample] = field(default_factory=list)
    """What was sampled for the same request and is no answer."""


class Seat:
    """`close` at the session's end. Not for use before the pool is open."""

    def __init__(
        self, pool: "EnginePool", session_id: str, group: str, policy_version: str | None, *, shared: bool
    ) -> None:
        self.session_id = session_id
        self.group = group
        self._pool = pool
        self._wanted = policy_version
        self._shared = shared
        self._member: Member | None = None
        self._openings: OrderedDict[bytes, Member] = OrderedDict()
        self._held = 0
        self._held_since = self._held_s = 0.0

    @property
    def capabilities(self) -> Capabilities:
        """What holds for every engine of the pool."""
        return self._pool.capabilities

    @property
    def url(self) -> str:
        """Of the engine where the session has its place, or may have it."""
        return self._member.url if self._member else self._pool.capabilities.url

    @property
    def held_s(self) -> float:
        """How long, so far, calls of the session were held while weights were changed."""
        now = asyncio.get_running_loop().time()
        return self._held_s + (now - self._held_since if self._held else 0.0)

    def sit(self) -> None:
        """Take a place. Raises CallError where no engine answers."""
        if not self._shared:
            self._place(self._member, ())

    def close(self) -> None:
        self._leave()

    async def chat(
        self,
        request: ChatRequest,
        *,
        overrides: Mapping[str, Any] = {},
        force_regex: str | None = None,
        tool_choice_none: bool = False,
        tokens: Tokens = "chat",
        continuation: Continuation | None = None,
        trail: Trail | None = None,
    ) -> Sample:
        """As Engine.chat, at the session's engine. Held while weights are changed.

        A call whose engine dies is sampled anew at another one: nothing of it was delivered. `trail` is told of what
        was tried and sampled in vain. Raises CallError and OtherPolicy.
        """
        trail = trail if trail is not None else Trail()
        while True:
            await self._passed()
            member = self._choose(request, {tried.url for tried in trail.tried if tried.why != _NEW_WEIGHTS})
            version = member.weights.version
            salt = {"cache_salt": version} if member.salted and version is not None else {}
            flight = Flight(self.session_id, tokens, asyncio.get_running_loop().time())
            member.flights.add(flight)
            try:
                sample = await flight.run(
                    member.engine.chat(
                        request,
                        overrides={**overrides, **salt},
                        force_regex=force_regex,
                        tool_choice_none=tool_choice_none,
                        tokens=tokens,
                        continuation=continuation,
                    )
                )
            except EngineLost as error:
                await self._lost(member, error, trail)
                continue
            except BrokenOff:
                trail.tried.append(Tried(member.url, _NEW_WEIGHTS))
                continue
            finally:
                member.flights.discard(flight)
                self._pool.policy.gate.landed()
            _name_weights(sample, version, member)
            if flight.cut and sample.finish_reason == "abort":
                trail.broken_off.append(sample)
                trail.tried.append(Tried(member.url, _NEW_WEIGHTS))
            elif isinstance(sample.unread, EngineLost) and self._pool.others(_lost_at(trail) | {member.url}):
                trail.broken_off.append(sample)
                await self._lost(member, sample.unread, trail)
            else:
                member.calls += 1
                return sample

    async def count(self, request: ChatRequest, *, overrides: Mapping[str, Any] = {}) -> int:
        """As Engine.count. It samples nothing, and is held only where no engine answers while weights are changed."""
        trail = Trail()
        while True:
            member = self._choose(request, _lost_at(trail))
            try:
                return await member.engine.count(request, overrides=overrides)
            except EngineLost as error:
                if not self._pool.policy.gate.is_open and not self._pool.others(_lost_at(trail) | {member.url}):
                    await self._passed()
                    trail = Trail()
                else:
                    await self._lost(member, error, trail)

    async def _passed(self) -> None:
        if self._pool.policy.gate.is_open:
            return
        now = asyncio.get_running_loop().time
        if not self._held:
            self._held_since = now()
        self._held += 1
        try:
            await self._pool.policy.gate.passed()
        finally:
            self._held -= 1
            if not self._held:
                self._held_s += now() - self._held_since

    async def _lost(self, member: Member, error: EngineLost, trail: Trail) -> None:
        """Raises the error where no other engine is to be asked."""
        trail.tried.append(Tried(member.url, error.detail))
        await member.missed()
        lost = _lost_at(trail)
        if len(lost) >= MOST_LOST or not self._pool.others(lost):
            raise error

    def _choose(self, request: ChatRequest, avoid: set[str]) -> Member:
        """The engine for this call, which becomes the session's. Raises CallError and OtherPolicy."""
        if self._shared:
            opening = sha256(dumps([message_wire(message) for message in request.messages[:2]])).digest()
            member = self._place(self._openings.get(opening), avoid)
            self._openings[opening] = member
            self._openings.move_to_end(opening)
            if len(self._openings) > MOST_OPENINGS:
                self._openings.popitem(last=False)
        else:
            member = self._place(self._member, avoid)
        if self._wanted is not None and member.weights.version != self._wanted:
            now = member.weights.version or "one without a name"
            raise OtherPolicy(f"the session asked for the policy {self._wanted}, and {now} is served now")
        return member

    def _place(self, now: Member | None, avoid: set[str] | tuple[()]) -> Member:
        member = self._pool.place(now, self.group, avoid)
        if not self._shared and member is not self._member:
            self._leave()
            self._member = member
            member.seats.add(self)
            member.groups[self.group] = member.groups.get(self.group, 0) + 1
        return member

    def _leave(self) -> None:
        if (member := self._member) is None:
            return
        self._member = None
        member.seats.discard(self)
        member.groups[self.group] -= 1
        if not member.groups[self.group]:
            del member.groups[self.group]


def _lost_at(trail: Trail) -> set[str]:
    return {tried.url for tried in trail.tried if tried.why != _NEW_WEIGHTS}


def _name_weights(sample: Sample, version: str | None, member: Member) -> None:
    """Which weights sampled it: the engine's word for each span, polar's where the engine has none."""
    if version is None:
        return
    named = [(start, end, version if name == UNNAMED else name) for start, end, name in sample.weight_versions]
    sample.weight_versions = named
    sample.policy_version = named[0][2] if named else version
    if not named and member.weights.version != version:
        sample.invalid_reason = f"the weights changed from {version} to {member.weights.version} while it was sampled"
