"""One engine of a pool: whether it answers, which weights it has, which calls it is at."""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal

from polar_mitm.client.policy import EngineState
from polar_mitm.engine.capabilities import EngineNotReady
from polar_mitm.engine.client import Engine, Sample
from polar_mitm.engine.control import UNNAMED
from polar_mitm.prompts import Tokens

logger = logging.getLogger(__name__)

MISSES = 2
"""Looks in a row that are silent before an engine is taken for dead: a machine that is busy misses one."""


NEW = "was not asked yet"


class BrokenOff(Exception):
    """A call that was ended for new weights; what it had sampled is not known."""


@dataclass(slots=True, frozen=True)
class Weights:
    """What is known of an engine's weights."""

    version: str | None = None
    """In the trainer's words."""
    name: str | None = None
    """In the engine's own, where it has been given any."""
    began: float | None = None
    """When the process began that has them: another one has those it was started with."""

    def same(self, found: "Weights") -> bool:
        """Whether an engine that names its weights so still has these."""
        if found.name is not None:
            return found.name == self.version
        return self.name is None and self.began is not None and found.began == self.began


@dataclass(slots=True, eq=False)
class Flight:
    """A call at an engine."""

    session_id: str
    tokens: Tokens
    began: float
    """The loop's time."""
    cut: bool = False
    """It is being ended for new weights."""
    task: asyncio.Task[Sample] | None = None

    async def run(self, work: Coroutine[Any, Any, Sample]) -> Sample:
        """Raises BrokenOff, and what the work raises."""
        self.task = asyncio.create_task(work)
        try:
            return await self.task
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if self.cut and self.task.cancelled() and this and not this.cancelling():
                raise BrokenOff from None
            raise


@dataclass(slots=True, eq=False)
class Member:
    engine: Engine
    state: Literal["up", "down", "strange"] = "down"
    """`strange`: it answers, and has other weights than the pool's, or unknown ones. No call goes there."""
    model: str | None = None
    """Which it must serve, as the others do."""
    trouble: str = NEW
    """Why no call goes there, in words that go on from "the engine at <url>"."""
    weights: Weights = field(default_factory=Weights)
    flights: set[Flight] = field(default_factory=set)
    seats: set[object] = field(default_factory=set)
    groups: dict[str, int] = field(default_factory=dict)
    """Seats by group."""
    salted: bool = False
    """Its prefix cache cannot be emptied: prompts are kept apart by a salt, the version."""
    calls: int = 0
    lost: int = 0
    misses: int = 0

    @property
    def url(self) -> str:
        return self.engine.url

    @property
    def load(self) -> int:
        return len(self.seats) + len(self.flights)

    @property
    def opened(self) -> bool:
        return self.engine.opened

    def up(self) -> None:
        if self.state != "up" and self.trouble != NEW:
            logger.info("polar: the engine at %s answers", self.url)
        self.state, self.trouble, self.misses = "up", "", 0

    def down(self, why: str) -> None:
        if self.state != "down":
            logger.warning("polar: the engine at %s %s: sessions move on", self.url, why)
        self.state, self.trouble = "down", why

    def strange(self, why: str) -> None:
        if self.state != "strange":
            logger.warning("polar: the engine at %s %s", self.url, why)
        self.state, self.trouble = "strange", why

    async def find_weights(self) -> Weights:
        """What the engine says of its weights: `version` is its own name for them, where it has one."""
        control = self.engine.control
        name, began = await asyncio.gather(control.name(), control.began())
        known = None if name == UNNAMED else name
        return Weights(known, known, began)

    async def missed(self) -> None:
        """It gave no answer to a call: where it does not answer now, it is dead."""
        self.lost += 1
        if await self.engine.health() == "gone":
            self.down("gives no answer")

    async def look(self) -> bool:
        """See whether it answers; True where it has come back, and its weights are to be looked at."""
        if not self.opened:
            return await self._probed()
        match await self.engine.health():
            case "well":
                self.misses = 0
                return self.state == "down" and await self._probed()
            case "silent":
                self.misses += 1
            case "gone":
                self.misses = MISSES
        if self.misses >= MISSES:
            self.down("gives no answer")
        return False

    async def _probed(self) -> bool:
        """It may have been started again with another model."""
        try:
            was = self.engine.capabilities.model if self.opened else None
            found = await (self.engine.probe() if self.opened else self.engine.open(self.model))
        except EngineNotReady as error:
            self.down(error.reason)
            return False
        if was is not None and found.model != was:
            self.strange(f"serves {found.model} now, and not {was}")
            return False
        return True

    def shown(self) -> EngineState:
        return EngineState(
            url=self.url,
            healthy=self.state == "up",
            trouble=self.trouble or None,
            model=self.engine.capabilities.model if self.opened else None,
            policy_version=self.weights.version,
            began=self.weights.began,
            running=len(self.flights),
            sessions=len(self.seats),
            calls=self.calls,
            lost=self.lost,
        )
