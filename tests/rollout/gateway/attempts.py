"""Sessions that do nothing but what a test says, and assignments of them."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polar_mitm.capture.session import Ending, SessionFolder, SessionLog, SessionRecord
from polar_mitm.client.nodes import Assignment
from polar_mitm.rollout.gateway.pipeline import Held, Pipeline
from polar_mitm.rollout.gateway.settings import Workers

PATIENCE_S = 20.0


def assignment(session_id: str = "ses_1", *, incarnation: str = "i1", **budgets: float) -> Assignment:
    return Assignment.model_validate(
        {
            "session_id": session_id,
            "task_id": "tsk_1",
            "group_id": "tsk_1",
            "sample": 0,
            "attempt": 1,
            "gateway": "gw",
            "incarnation": incarnation,
            "scenario": "hello",
            "budgets": {"preparing_s": 60.0, "grading_s": 60.0} | budgets,
        }
    )


@dataclass
class Attempt:
    """Each stage goes on until the test opens its gate; `fails` names what a stage raises."""

    folder: SessionFolder
    log: SessionLog
    gates: dict[str, asyncio.Event]
    fails: dict[str, Exception]
    seen: list[str] = field(default_factory=list)
    timeout_s: float | None = None
    exit_code: int | None = None

    async def _stage(self, name: str) -> None:
        self.seen.append(name)
        await self.gates[name].wait()
        if error := self.fails.get(name):
            raise error

    async def prepare(self) -> None:
        await self._stage("preparing")

    async def run(self, timeout_s: float | None = None) -> None:
        self.timeout_s = timeout_s
        await self._stage("running")

    async def grade(self) -> None:
        await self._stage("grading")
        self.log.session.reward = 1.0
        await self.close("completed")

    async def ungraded(self, why: str) -> SessionRecord:
        self.log.session.evaluation_error = why
        return await self.close("completed")

    async def close(self, status: Ending, reason: str | None = None, exit_code: int | None = None) -> SessionRecord:
        return await asyncio.to_thread(self.log.close, status, reason=reason, exit_code=exit_code)

    async def failed(self, error: Exception) -> SessionRecord:
        return await self.close("error", str(error))


class Bench:
    """A pipeline over such sessions. A stage's gate is shut while its name is in `shut`."""

    def __init__(self, out: Path, workers: Workers | None = None) -> None:
        self.out = out
        self.shut: set[str] = set()
        self.fails: dict[str, Exception] = {}
        self.attempts: dict[str, Attempt] = {}
        self.ended: list[Held] = []
        self.opening: Exception | None = None
        self.pipeline = Pipeline(workers or Workers(), open_sample=self.open, done=self.ended.append)

    async def open(self, given: Assignment) -> Attempt:
        if self.opening:
            raise self.opening
        folder = SessionFolder.create(self.out, given.session_id)
        record = SessionRecord(session_id=given.session_id, task_id=given.task_id, started_at=1.0)
        gates: dict[str, asyncio.Event] = {}
        for name in ("preparing", "running", "grading"):
            gates[name] = asyncio.Event()
            if name not in self.shut:
                gates[name].set()
        made = Attempt(folder, SessionLog(folder, record, durability="none"), gates, self.fails)
        self.attempts[given.session_id] = made
        return made

    async def at(self, session_id: str, stage: str) -> Held:
        """The session, once it has come to the stage."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                held = self.pipeline.held[session_id]
                entered = stage not in ("preparing", "running", "grading") or (
                    session_id in self.attempts and stage in self.attempts[session_id].seen
                )
                if held.stage == stage and entered:
                    return held
                await asyncio.sleep(0.01)

    async def end(self, session_id: str) -> SessionRecord:
        """The record of a session that has come to its end."""
        held = await self.at(session_id, "done")
        assert self.ended.count(held) == 1
        assert held.sample
        return held.sample.log.session

    async def __aenter__(self) -> "Bench":
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.pipeline.close()
