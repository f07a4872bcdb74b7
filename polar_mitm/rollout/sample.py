"""One sample: a session opens at the proxy, the harness runs in its sandbox, the outcome is graded and written down."""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from polar_mitm.capture.session import (
    Ending,
    SessionEngine,
    SessionFolder,
    SessionLog,
    SessionRecord,
    new_session_id,
)
from polar_mitm.engine.pool import EnginePool
from polar_mitm.harnesses.actions import ToolCall
from polar_mitm.harnesses.base import Harness, Installed, Prepared
from polar_mitm.harnesses.events import complaint
from polar_mitm.prompts import Tokens
from polar_mitm.proxy.border import Border
from polar_mitm.proxy.limits import Meter
from polar_mitm.proxy.master import EmbeddedProxy
from polar_mitm.proxy.scripting import count
from polar_mitm.proxy.sessions import Session, Step
from polar_mitm.rollout.judging import judge, printed
from polar_mitm.rollout.outcome import Outcome, calls_of
from polar_mitm.rollout.ways_in import UNKNOWN_WINDOW, access, open_ways
from polar_mitm.sandboxes.base import Exit, Layout, RunSpec, Sandbox, SandboxError, to_the_end
from polar_mitm.tasks.evaluators import Evaluation, Finished
from polar_mitm.tasks.place import Place, place_of
from polar_mitm.tasks.scenario import Scenario
from polar_mitm.tasks.script import Step as ScriptStep
from polar_mitm.tasks.task_set import Task
from polar_mitm.tasks.workspace import Workspace

logger = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class Job:
    """What every sample of one run shares."""

    scenario: Scenario
    harness: Harness
    installed: Installed
    sandbox: Sandbox
    engine: EnginePool
    border: Border
    proxy: EmbeddedProxy
    out: Path
    tokens: Tokens = "chat"
    tokens_reason: str | None = None
    """Why prompts go as messages, where nobody asked for that."""
    group: str | None = None
    """Sessions of one group begin alike and may share an engine. None: the task is its own."""
    policy_version: str | None = None
    """The only version of the policy that may answer."""


class Sample:
    """One attempt at a task, in its stages: `prepare`, `run` and `grade`, each once and in this order.

    Whoever leaves one out, or is cancelled in one, calls `close`. What each raises has not closed the session.
    """

    def __init__(self, job: Job, task: Task, sample: int, attempt: int = 1, session_id: str | None = None) -> None:
        """Opens the session at the proxy. Raises OSError."""
        self.job = job
        self.task = task
        self.folder = SessionFolder.create(job.out, session_id or new_session_id())
        seat = job.engine.seat(self.folder.path.name, job.group or task.id, job.policy_version)
        self.log = SessionLog(self.folder, _record(job, task, self.folder.path.name, sample, attempt, seat.url))
        self.session = Session(
            id=self.folder.path.name,
            log=self.log,
            engine=seat,
            identity={
                "task_id": task.id,
                "sample": sample,
                "attempt": attempt,
                "harness": job.harness.NAME,
                "harness_version": job.installed.version,
            },
            sampling=job.scenario.sampling,
            tokens=job.tokens,
        )
        self._prepared: _Prepared | None = None
        self._ended: Exit | None = None
        self._verdict: tuple[Ending, str | None] | None = None
        job.border.sessions.add(self.session)

    async def prepare(self) -> None:
        """Make the workspace, an image where one is built, the harness's files. Raises SandboxError and OSError."""
        job, session, folder, scenario = self.job, self.session, self.folder, self.job.scenario
        place = await asyncio.to_thread(place_of, scenario, folder.path)
        workspace = await Workspace.prepare(folder.path, scenario, place)
        home = folder.path / "home"
        home.mkdir(mode=0o700)
        layout = place.layout(
            job.sandbox.layout(
                workspace=workspace.path,
                home=home,
                ca=job.proxy.ca,
                proxy_port=job.proxy.port,
                base_port=job.proxy.base_url_port,
                workdir=place.workdir,
            )
        )
        session.script, session.summary = _script(job, layout), scenario.summary
        told = access(scenario.intercept, session, layout, _window(job))
        prepared = job.harness.prepare(job.installed, told, layout, scenario.assignment(self.task.instruction))
        spec = _spec(job, session, folder, workspace.path, home, prepared)
        await asyncio.to_thread(place.settle, spec)
        self._prepared = _Prepared(spec, layout, workspace, place)

    async def run(self, timeout_s: float | None = None) -> None:
        """Run the harness to its end, for at most the scenario's time or this. Raises SandboxError and OSError.

        Cancellation ends it first.
        """
        assert self._prepared
        job, spec = self.job, self._prepared.spec
        spec.timeout_s = timeout_s or spec.timeout_s
        seat = self.session.engine
        spec.given_back_s = lambda: seat.held_s
        self.session.meter = Meter(job.scenario.call_limits.limits(), given_back_s=spec.given_back_s)
        async with AsyncExitStack() as stack:
            await open_ways(
                stack,
                spec,
                job.scenario.intercept,
                session=self.session,
                sessions=job.border.sessions,
                proxy=job.proxy,
                layout=self._prepared.layout,
            )
            try:
                self._ended = await job.sandbox.run(spec)
            finally:
                self.session.over.set()

    async def grade(self) -> None:
        """What came of it: the answer, the workspace's diff, the reward, the session's status. Closes the session."""
        assert self._prepared
        assert self._ended
        job, folder, workspace, ended = self.job, self.folder, self._prepared.workspace, self._ended
        stdout = await asyncio.to_thread(printed, folder.stdout)
        answer = job.harness.answer(stdout, folder.path / "home")
        folder.answer.write_text(answer, errors="replace")  # JSON can hold halves of surrogate pairs
        calls = await asyncio.to_thread(calls_of, folder)
        stderr = await asyncio.to_thread(printed, folder.stderr)
        last_words = complaint(stdout) or stderr.strip() or stdout.strip()
        status, reason = judge(
            ended,
            calls,
            steps=count(self.session.script or ()),
            last_words=last_words,
            calls_model=job.harness.FACTS.calls_model,
        )
        self._verdict = status, reason
        place = self._prepared.place
        if place.inside is not None and place.workdir is not None and ended.image is not None:
            await workspace.take(ended.image, place.workdir)
        folder.workspace_diff.write_bytes(await workspace.diff())
        if status != "error":
            finished = Finished(
                sandbox=job.sandbox,
                session_id=self.session.id,
                workspace=workspace.path,
                answer=folder.answer,
                exit_code=ended.code,
                valid_calls=sum(call.checks.valid for call in calls),
                task=self.task.data,
                image=ended.image,
                workdir=place.workdir,
                task_folder=job.scenario.path.parent,
                harbor=place.harbor,
                swebench=job.scenario.swebench,
                folder=folder,
            )
            self._evaluated(await job.scenario.evaluator.evaluate(finished))
        await self.close(status, reason, ended.code)

    async def ungraded(self, why: str) -> SessionRecord:
        """Close a session whose grading was cut off: its status stays what it is, and it has no reward."""
        self._evaluated(Evaluation.failed(why))
        status, reason = self._verdict or ("error", why)
        return await self.close(status, reason, self.exit_code)

    async def close(self, status: Ending, reason: str | None = None, exit_code: int | None = None) -> SessionRecord:
        """End the session, wherever it is; the first close counts. The harness has ended."""
        self.job.border.sessions.remove(self.session)
        self.session.engine.close()
        if self._prepared:
            await asyncio.to_thread(self.job.sandbox.sweep, self.session.id)
        return await asyncio.to_thread(self.log.close, status, reason=reason, exit_code=exit_code)

    async def failed(self, error: Exception) -> SessionRecord:
        """Close it as `error`, for what a stage raised. The border of a sample: whatever broke, the others go on."""
        if isinstance(error, SandboxError | OSError):
            return await self.close("error", str(error))
        logger.error("session %s failed", self.session.id, exc_info=error)
        return await self.close("error", f"polar failed: {error!r}")

    @property
    def exit_code(self) -> int | None:
        """The harness's; None before its end, and when it was killed."""
        return self._ended.code if self._ended else None

    def _evaluated(self, evaluation: Evaluation) -> None:
        record = self.log.session
        record.reward, record.rewards, record.evaluation_error = evaluation.reward, evaluation.rewards, evaluation.error
        record.reward_from = evaluation.reward_from
        (self.folder.path / "evaluator.txt").write_text(evaluation.output)


@dataclass(slots=True, frozen=True)
class _Prepared:
    spec: RunSpec
    layout: Layout
    workspace: Workspace
    place: Place


async def run_sample(job: Job, task: Task, sample: int, attempt: int = 1) -> Outcome:
    """Run one sample to its graded end. Cancellation ends the harness and closes the session as `cancelled`."""
    running = Sample(job, task, sample, attempt)
    try:
        await running.prepare()
        await running.run()
        await running.grade()
    except asyncio.CancelledError:
        await to_the_end(running.close("cancelled", "interrupted"))
        raise
    except Exception as error:
        await running.failed(error)
    return await asyncio.to_thread(Outcome.of, running.folder.path)


def _record(job: Job, task: Task, session_id: str, sample: int, attempt: int, engine_url: str) -> SessionRecord:
    capabilities = job.engine.capabilities
    return SessionRecord(
        session_id=session_id,
        task_id=task.id,
        sample=sample,
        attempt=attempt,
        harness=job.harness.NAME,
        harness_version=job.installed.version,
        sandbox=job.sandbox.NAME,
        intercept=job.scenario.intercept,
        scenario=str(job.scenario.path),
        engine=SessionEngine(url=engine_url, model=capabilities.model, engine_version=capabilities.engine_version),
        tokens=job.tokens,
        tokens_reason=job.tokens_reason,
        started_at=time.time(),
    )


def _script(job: Job, layout: Layout) -> tuple[Step, ...] | None:
    if not job.scenario.script:
        return None
    return tuple(_steps(job.harness, layout, job.scenario.script, job.harness.FINISH))


def _steps(harness: Harness, layout: Layout, script: Sequence[ScriptStep], finish: ToolCall | None) -> Iterator[Step]:
    """The steps as calls of the harness's own tools, and the call that ends the run."""
    for step in script:
        if agent := step.agent:
            inner = tuple(_steps(harness, layout, agent.script, harness.FACTS.sub_agent_finish))
            yield Step(*harness.delegate(agent.prompt), agent.prompt, inner)
        elif action := step.action:
            yield Step(*harness.tool_call(action, layout))
        else:
            yield Step(step.tool or "", step.arguments)
    if finish:
        yield Step(*finish)


def _window(job: Job) -> int:
    served = job.engine.capabilities.max_model_len or UNKNOWN_WINDOW
    return min(served, job.scenario.window or served)


def _spec(
    job: Job, session: Session, folder: SessionFolder, workspace: Path, home: Path, prepared: Prepared
) -> RunSpec:
    for name, text in prepared.files.items():
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o600)
    stdin = None
    if prepared.stdin is not None:
        stdin = folder.path / "stdin.txt"
        stdin.write_bytes(prepared.stdin)
    return RunSpec(
        argv=prepared.argv,
        env=prepared.env,
        workspace=workspace,
        home=home,
        ca=job.proxy.ca,
        stdout=folder.stdout,
        stderr=folder.stderr,
        stdin=stdin,
        timeout_s=job.scenario.timeout_s,
        marker=session.id,
        read_only=job.installed.read_only,
        limits=job.scenario.limits.limits(),
    )
