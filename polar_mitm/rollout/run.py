"""Many samples of scenarios over one proxy: what `polar run-task` does."""

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from polar_mitm.engine.pool import EnginePool
from polar_mitm.errors import NotReady
from polar_mitm.harnesses import HARNESSES, RUNNABLE
from polar_mitm.harnesses.window import too_long
from polar_mitm.prompts import Tokens
from polar_mitm.proxy.addons import core
from polar_mitm.proxy.border import Border
from polar_mitm.proxy.master import EmbeddedProxy
from polar_mitm.rollout.outcome import Outcome
from polar_mitm.rollout.resume import Cell, Kept, held, take_up
from polar_mitm.rollout.sample import Job, run_sample
from polar_mitm.rollout.ways_in import refusal
from polar_mitm.sandboxes import SANDBOXES
from polar_mitm.tasks.scenario import Scenario
from polar_mitm.tasks.task_set import Task


async def run_tasks(
    work: Sequence[tuple[Scenario, Sequence[Task]]],
    engine: EnginePool,
    *,
    out: Path,
    concurrency: int = 1,
    resume: bool = False,
    tokens: Tokens | None = None,
    done: Callable[[Outcome], None],
) -> list[Outcome]:
    """Run the samples of each scenario's tasks, at most `concurrency` at once; `done` hears of each as it ends.

    With `resume`, samples that are done in `out` are not run again and come back as they are; those that were begun
    only are run as a next attempt. `tokens`: how prompts go to the engine, by default as it can. The outcomes come in
    order of scenarios, tasks and samples.
    Raises NotReady, EngineUnfit, HarnessMissing, RunBusy and ProxyFailed before any sample starts.
    On cancellation every running sample is ended and closed first.
    """
    tokens, reason = engine.capabilities.tokens(tokens)
    await _check([scenario for scenario, _ in work], engine, out)
    with held(out, alone=resume):
        kept = await asyncio.to_thread(take_up, out) if resume else Kept()
        border = Border()
        places = asyncio.Semaphore(concurrency)
        names = any(scenario.intercept in ("hosts", "transparent") for scenario, _ in work)
        async with EmbeddedProxy(core(border), names=names) as proxy:

            async def one(job: Job, task: Task, sample: int) -> Outcome:
                key = Kept.key(Cell.of(job.scenario), task.id, sample)
                if key in kept.done:
                    return kept.done[key]
                async with places:
                    outcome = await run_sample(job, task, sample, kept.attempts.get(key, 0) + 1)
                done(outcome)
                return outcome

            async with asyncio.TaskGroup() as group:
                running = []
                for scenario, tasks in work:
                    harness = RUNNABLE[scenario.harness]
                    sandbox = SANDBOXES[scenario.sandbox]
                    job = Job(scenario, harness, harness.find(), sandbox, engine, border, proxy, out, tokens, reason)
                    running += [
                        group.create_task(one(job, task, sample))
                        for task in tasks
                        for sample in range(scenario.samples)
                    ]
    return [sample.result() for sample in running]


async def _check(scenarios: Sequence[Scenario], engine: EnginePool, out: Path) -> None:
    served = engine.capabilities.max_model_len
    for scenario in scenarios:
        harness = RUNNABLE[scenario.harness]
        harness.find()
        if served and scenario.window and scenario.window > served:
            raise NotReady(
                f"{scenario.name} asks for a window of {scenario.window:,}, and the engine serves {served:,}"
            )
        window = scenario.window or served
        if window and (why := too_long(harness, window, HARNESSES.values())):
            raise NotReady(why)
        if why := refusal(scenario.intercept, SANDBOXES[scenario.sandbox]):
            raise NotReady(f"{scenario.path}: {why}")
    for name in sorted({scenario.sandbox for scenario in scenarios}):
        if problems := await asyncio.to_thread(SANDBOXES[name].check):
            raise NotReady(f"sandbox {name}: " + "; ".join(problems))
    for kind, evaluator in {scenario.evaluator.type: scenario.evaluator for scenario in scenarios}.items():
        if problems := await asyncio.to_thread(evaluator.lacks):
            raise NotReady(f"evaluator {kind}: " + "; ".join(problems))
    try:
        await asyncio.to_thread(out.mkdir, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise NotReady(f"no session folder can be made in {out}: {error}") from error
