"""One sample: a session opens at the proxy, the harness runs in its sandbox, the outcome is graded and written down."""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from polar_mitm.capture.session import (
    SessionEngine,
    SessionFolder,
    SessionLog,
    SessionRecord,
    new_session_id,
)
from polar_mitm.engine.client import Engine
from polar_mitm.harnesses.actions import ToolCall
from polar_mitm.harnesses.base import Harness, Installed, Prepared
from polar_mitm.prompts import Tokens
from polar_mitm.proxy.border import Border
from polar_mitm.proxy.limits import Meter
from polar_mitm.proxy.master import EmbeddedProxy
from polar_mitm.proxy.scripting import count
from polar_mitm.proxy.sessions import Session, Step
from polar_mitm.rollout.judging import judge, printed
from polar_mitm.rollout.outcome import Outcome, calls_of
from polar_mitm.rollout.ways_in import UNKNOWN_WINDOW, access, open_ways
from polar_mitm.sandboxes.base import Exit, Layout, RunSpec, Sandbox, SandboxError
from polar_mitm.tasks.evaluators import Finished
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
    engine: Engine
    border: Border
    proxy: EmbeddedProxy
    out: Path
    tokens: Tokens = "chat"
    tokens_reason: str | None = None
    """Why prompts go as messages, where nobody asked for that."""


async def run_sample(job: Job, task: Task, sample: int, attempt: int = 1) -> Outcome:
    """Run one sample to its graded end. Cancellation ends the harness and closes the session as `cancelled`."""
    folder = SessionFolder.create(job.out, new_session_id())
    log = SessionLog(folder, _record(job, task, folder.path.name, sample, attempt))
    session = Session(
        id=folder.path.name,
        log=log,
        engine=job.engine,
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
    session.meter = Meter(job.scenario.call_limits.limits())
    job.border.sessions.add(session)
    try:
        await _run(job, task, session, folder)
    except asyncio.CancelledError:
        log.close("cancelled", reason="interrupted")
        raise
    except (SandboxError, OSError) as error:
        log.close("error", reason=str(error))
    except Exception as error:  # the border of a sample: whatever broke here, the others go on
        logger.exception("session %s failed", session.id)
        log.close("error", reason=f"polar failed: {error!r}")
    finally:
        job.border.sessions.remove(session)
    return await asyncio.to_thread(Outcome.of, folder.path)


async def _run(job: Job, task: Task, session: Session, folder: SessionFolder) -> None:
    scenario = job.scenario
    place = await asyncio.to_thread(place_of, scenario)
    workspace = await Workspace.prepare(folder.path, scenario, place)
    home = folder.path / "home"
    home.mkdir(mode=0o700)
    layout = job.sandbox.layout(
        workspace=workspace.path,
        home=home,
        ca=job.proxy.ca,
        proxy_port=job.proxy.port,
        base_port=job.proxy.base_url_port,
        workdir=place.workdir,
    )
    session.script, session.summary = _script(job, layout), scenario.summary
    assignment = scenario.assignment(task.instruction)
    prepared = job.harness.prepare(
        job.installed, access(scenario.intercept, session, layout, _window(job)), layout, assignment
    )
    async with AsyncExitStack() as stack:
        spec = _spec(job, session, folder, workspace.path, home, prepared)
        await open_ways(
            stack,
            spec,
            scenario.intercept,
            session=session,
            sessions=job.border.sessions,
            proxy=job.proxy,
            layout=layout,
        )
        spec.image, spec.workdir, spec.keep = place.image, place.workdir, place.image is not None
        ended = await job.sandbox.run(spec)
    try:
        await _grade(job, task, session, folder, workspace, place, ended)
    finally:
        await asyncio.to_thread(job.sandbox.sweep, session.id)


async def _grade(
    job: Job,
    task: Task,
    session: Session,
    folder: SessionFolder,
    workspace: Workspace,
    place: Place,
    ended: Exit,
) -> None:
    """What came of it: the answer, the workspace's diff, the reward, the session's status."""
    stdout = await asyncio.to_thread(printed, folder.stdout)
    answer = job.harness.answer(stdout, folder.path / "home")
    folder.answer.write_text(answer, errors="replace")  # JSON can hold halves of surrogate pairs
    calls = calls_of(folder)
    folder.workspace_diff.write_bytes(await workspace.diff())
    last_words = (await asyncio.to_thread(printed, folder.stderr)).strip() or stdout.strip()
    status, reason = judge(ended, calls, steps=count(session.script or ()), last_words=last_words)
    record = session.log.session
    if status != "error":
        finished = Finished(
            sandbox=job.sandbox,
            session_id=session.id,
            workspace=workspace.path,
            answer=folder.answer,
            exit_code=ended.code,
            valid_calls=sum(call.checks.valid for call in calls),
            task=task.data,
            image=ended.image,
            workdir=place.workdir,
            task_folder=job.scenario.path.parent,
        )
        evaluation = await job.scenario.evaluator.evaluate(finished)
        record.reward, record.rewards, record.evaluation_error = evaluation.reward, evaluation.rewards, evaluation.error
        (folder.path / "evaluator.txt").write_text(evaluation.output)
    await asyncio.to_thread(session.log.close, status, reason=reason, exit_code=ended.code)


def _record(job: Job, task: Task, session_id: str, sample: int, attempt: int) -> SessionRecord:
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
        engine=SessionEngine(
            url=capabilities.url, model=capabilities.model, engine_version=capabilities.engine_version
        ),
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
