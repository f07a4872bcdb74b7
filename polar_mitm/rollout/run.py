"""Many samples of one scenario over one proxy: what `polar run-task` does."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from polar_mitm.engine.client import Engine
from polar_mitm.harnesses import HARNESSES
from polar_mitm.proxy.addons import core
from polar_mitm.proxy.border import Border
from polar_mitm.proxy.master import EmbeddedProxy
from polar_mitm.rollout.sample import Job, Outcome, run_sample
from polar_mitm.sandboxes import SANDBOXES
from polar_mitm.tasks.scenario import Scenario


class NotReady(Exception):
    """This machine lacks something the run needs; the message says what and how to mend it."""


async def run_task(
    scenario: Scenario, engine: Engine, *, out: Path, concurrency: int = 1, done: Callable[[Outcome], None]
) -> list[Outcome]:
    """Run `scenario.samples` samples, at most `concurrency` at once; `done` hears of each as it ends.

    The outcomes come in order of the samples. Raises NotReady, HarnessMissing and ProxyFailed before any sample starts.
    On cancellation every running sample is ended and closed first.
    """
    harness = HARNESSES[scenario.harness]
    installed = harness.find()
    sandbox = SANDBOXES[scenario.sandbox]
    if problems := await asyncio.to_thread(sandbox.check):
        raise NotReady(f"sandbox {scenario.sandbox}: " + "; ".join(problems))
    try:
        await asyncio.to_thread(out.mkdir, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise NotReady(f"no session folder can be made in {out}: {error}") from error
    border = Border()
    places = asyncio.Semaphore(concurrency)
    async with EmbeddedProxy(core(border)) as proxy:
        job = Job(scenario, harness, installed, sandbox, engine, border, proxy, out)

        async def one(sample: int) -> Outcome:
            async with places:
                outcome = await run_sample(job, sample)
            done(outcome)
            return outcome

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(sample)) for sample in range(scenario.samples)]
    return [task.result() for task in tasks]
