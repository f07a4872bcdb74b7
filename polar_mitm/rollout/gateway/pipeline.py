"""The stages of the sessions that a gateway holds, with a pool of places for each.

Clocks are separate: waiting (in line, and prepared without a place to run), preparing, running, grading. Only the one
of running is the agent's; a session over another one was not let run, or not graded, and says so.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from polar_mitm.capture.session import Ending, SessionFolder, SessionLog, SessionRecord
from polar_mitm.client.models import Stage, StageTimes
from polar_mitm.client.nodes import Assignment
from polar_mitm.rollout.gateway.settings import Workers
from polar_mitm.sandboxes.base import to_the_end

logger = logging.getLogger(__name__)

REMEMBERED = 100_000
"""Sessions that have been here and are never begun again, however late a copy of their assignment comes."""


class Attempt(Protocol):
    """What the stages need of a `polar_mitm.rollout.sample.Sample`."""

    folder: SessionFolder
    log: SessionLog

    @property
    def exit_code(self) -> int | None: ...
    async def prepare(self) -> None: ...
    async def run(self, timeout_s: float | None = None) -> None: ...
    async def grade(self) -> None: ...
    async def ungraded(self, why: str) -> SessionRecord: ...
    async def close(self, status: Ending, reason: str | None = None, exit_code: int | None = None) -> SessionRecord: ...
    async def failed(self, error: Exception) -> SessionRecord: ...


type Open = Callable[[Assignment], Awaitable[Attempt]]
"""Opens the session of an assignment. Raises what says that it can't be."""
type Done = Callable[["Held"], None]
"""Told of a session that has come to its end, whatever that is."""


class OverBudget(Exception):
    """A stage took longer than the session has for it."""


class Refused(Exception):
    """An assignment that can't be taken."""


class Busy(Refused):
    """No place."""


class Draining(Refused):
    """No more sessions are taken."""


class Places(asyncio.Semaphore):
    """The places of a stage, and how many are taken."""

    taken = 0

    async def acquire(self) -> Literal[True]:
        await super().acquire()
        self.taken += 1
        return True

    def release(self) -> None:
        self.taken -= 1
        super().release()


@dataclass(slots=True, eq=False)
class Held:
    """A session on this gateway, from its assignment until its report was answered."""

    assignment: Assignment
    stage: Stage = "waiting"
    times: StageTimes = field(default_factory=StageTimes)
    sample: Attempt | None = None
    ended_in: Stage = "waiting"
    trouble: str | None = None
    """Why there is no session folder: it could not be opened, or waited for too long."""
    cancelled: bool = False
    task: asyncio.Task[None] | None = None
    _waiting_left: float | None = None

    def __post_init__(self) -> None:
        self._waiting_left = self.assignment.budgets.waiting_s

    def enter(self, stage: Stage) -> None:
        self.stage = stage
        if stage != "done":
            self.ended_in = stage
        name = "finished_at" if stage == "done" else f"{stage}_at"
        if name in StageTimes.model_fields:
            setattr(self.times, name, time.time())

    @asynccontextmanager
    async def place(self, pool: asyncio.Semaphore) -> AsyncIterator[None]:
        """Wait for a place in the pool, on the clock of waiting, and hold it. Raises OverBudget."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._waiting_left):
                await pool.acquire()
        except TimeoutError:
            whole = self.assignment.budgets.waiting_s
            raise OverBudget(f"waited for longer than the {whole:g} s that it may") from None
        if self._waiting_left is not None:
            self._waiting_left = max(0.0, self._waiting_left - (time.monotonic() - began))
        try:
            yield
        finally:
            pool.release()


class Pipeline:
    """Holds sessions by id. `take` begins one; `done` hears of its end; `forget` lets go of it."""

    def __init__(self, workers: Workers, *, open_sample: Open, done: Done) -> None:
        self.workers = workers
        self.held: dict[str, Held] = {}
        self.draining = False
        """The server wants it so."""
        self.unfit: str | None = None
        """Why no session can be run here for now."""
        self._open = open_sample
        self._done = done
        self._past: OrderedDict[str, None] = OrderedDict()
        self._preparing = Places(workers.preparing)
        self._ahead = Places(workers.running + workers.ready)
        self._running = Places(workers.running)
        self._grading = Places(workers.grading)

    @property
    def stages(self) -> dict[str, Stage]:
        return {session_id: held.stage for session_id, held in self.held.items()}

    @property
    def taken(self) -> dict[str, int]:
        """Places that sessions have now; `ahead`: of those that are prepared or run."""
        pools = {"preparing": self._preparing, "ahead": self._ahead, "running": self._running, "grading": self._grading}
        return {name: pool.taken for name, pool in pools.items()}

    def stage(self, session_id: str) -> Stage | None:
        """Of a session that is here or was; None of one that never was."""
        if held := self.held.get(session_id):
            return held.stage
        return "done" if session_id in self._past else None

    def take(self, assignment: Assignment) -> Stage:
        """Begin a session, once: one that is here, or was, stays as it is. Raises Busy and Draining."""
        if stage := self.stage(assignment.session_id):
            return stage
        if self.draining:
            raise Draining("this gateway is draining: it takes no more sessions")
        if self.unfit:
            raise Draining(f"this gateway can't run sessions for now: {self.unfit}")
        if sum(held.stage != "done" for held in self.held.values()) >= self.workers.capacity:
            raise Busy(f"this gateway holds {self.workers.capacity} sessions already")
        held = self.held[assignment.session_id] = Held(assignment)
        held.task = asyncio.create_task(self._go(held), name=assignment.session_id)
        held.task.add_done_callback(lambda task: self._ended(held, task))
        return held.stage

    def hold(self, held: Held) -> None:
        """Hold a session of an earlier life, whose report was never answered."""
        self.held[held.assignment.session_id] = held

    def cancel(self, session_id: str) -> bool:
        """End a session. False when it is not held; one that is done stays as it is."""
        held = self.held.get(session_id)
        if held is None:
            return False
        if held.stage != "done" and held.task and not held.cancelled:
            held.cancelled = True
            held.task.cancel()
        return True

    def forget(self, session_id: str) -> None:
        """Its report was answered."""
        if self.held.pop(session_id, None):
            self._past[session_id] = None
            if len(self._past) > REMEMBERED:
                self._past.popitem(last=False)

    async def close(self) -> None:
        """End every session that is not done, as cancelled."""
        for session_id in list(self.held):
            self.cancel(session_id)
        tasks = [held.task for held in self.held.values() if held.task]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _go(self, held: Held) -> None:
        """From the line to the end, cancellation included."""
        try:
            await self._stages(held)
        except asyncio.CancelledError:
            if held.sample:
                await to_the_end(held.sample.close("cancelled", "cancelled", held.sample.exit_code))
        except Exception as error:
            await to_the_end(self._fail(held, error))

    def _ended(self, held: Held, task: asyncio.Task[None]) -> None:
        """Whatever happened on the way, and also where it was cancelled before its first step."""
        if not task.cancelled() and (error := task.exception()):
            logger.error("session %s could not be closed", held.assignment.session_id, exc_info=error)
        held.enter("done")
        self._done(held)

    async def _stages(self, held: Held) -> None:
        budgets = held.assignment.budgets
        async with held.place(self._ahead):
            async with held.place(self._preparing):
                held.enter("preparing")
                async with _clock("preparing", budgets.preparing_s):
                    held.sample = await self._open(held.assignment)
                    await held.sample.prepare()
            held.enter("ready")
            async with held.place(self._running):
                held.enter("running")
                await held.sample.run(budgets.running_s)
        held.enter("grading")
        async with self._grading:
            try:
                async with _clock("grading", budgets.grading_s):
                    await held.sample.grade()
            except OverBudget as error:
                await held.sample.ungraded(str(error))

    async def _fail(self, held: Held, error: Exception) -> None:
        if held.sample is None:
            held.trouble = str(error) or type(error).__name__
            logger.warning("session %s could not be opened: %s", held.assignment.session_id, held.trouble)
        elif isinstance(error, OverBudget):
            await held.sample.close("error", str(error))
        else:
            await held.sample.failed(error)


@asynccontextmanager
async def _clock(stage: str, seconds: float) -> AsyncIterator[None]:
    """A TimeoutError from within is no matter of this clock, and passes."""
    clock = asyncio.timeout(seconds)
    try:
        async with clock:
            yield
    except TimeoutError as error:
        if not clock.expired():
            raise
        raise OverBudget(f"{stage} took longer than the {seconds:g} s that it may") from error
