"""`polar run-task`: scenarios, their samples, a table."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer

from polar_mitm.cli.sessions import close_dead
from polar_mitm.cli.shell import (
    FAILED,
    JsonFlag,
    Steps,
    TokensFlag,
    default_engine_urls,
    out,
    print_json,
    run_async,
    tell,
)
from polar_mitm.cli.summary import Tally, summary_rows, summary_table
from polar_mitm.cli.tables import many, outcome_lines, outcome_rows, outcomes_table
from polar_mitm.harnesses import RUNNABLE
from polar_mitm.prompts import Tokens
from polar_mitm.rollout.engines import engine_for
from polar_mitm.rollout.outcome import Outcome
from polar_mitm.rollout.run import run_tasks
from polar_mitm.rollout.summary import summary
from polar_mitm.tasks.errors import ScenarioError
from polar_mitm.tasks.reading import load
from polar_mitm.tasks.scenario import Scenario
from polar_mitm.tasks.work import notes_of, work_of

UNFINISHED = ("error", "cancelled")
"""Endings after which `--resume` runs a sample again."""

MOST_ROWS = 20
"""Samples of one task and harness that are still shown one by one at the end."""

EngineUrls = Annotated[
    list[str] | None,
    typer.Option(
        "--engine-url",
        help="A vLLM that runs already; may be given several times; $POLAR_ENGINE_URL. [default: a local one]",
    ),
]
Out = Annotated[Path, typer.Option("--out", help="Folder for the session folders.", file_okay=False)]


def run_task(
    scenario: Annotated[
        list[Path],
        typer.Argument(
            help="Scenario files, see scenarios/; Harbor task folders, or folders of such; files of SWE-bench rows."
        ),
    ],
    harness: Annotated[
        list[str] | None, typer.Option(help="Harness, instead of the scenario's; may be given several times.")
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Number of sessions, instead of the scenario's.")] = None,
    sandbox: Annotated[str | None, typer.Option(help="Sandbox: bwrap, container or host.")] = None,
    intercept: Annotated[str | None, typer.Option(help="base-url, proxy, hosts or transparent.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds a session may run.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Sessions at once.")] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Run only the samples that are not done yet in the folder.")
    ] = False,
    pass_k: Annotated[
        int | None, typer.Option(min=1, help="k of pass@k in the summary. [default: all samples]")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Of a set of tasks, the one of this id; may be given several times.")
    ] = None,
    tests_network: Annotated[
        str | None,
        typer.Option(help="none or public: what tests get of Harbor tasks that may use the network, and of SWE-bench."),
    ] = None,
    host_env: Annotated[
        list[str] | None,
        typer.Option(help="A variable of this machine that Harbor tasks may have; may be given several times."),
    ] = None,
    tokens: TokensFlag = None,
    engine_url: EngineUrls = None,
    out_folder: Out = Path("runs"),
    json: JsonFlag = False,
) -> None:
    """Run scenarios: real sessions of real harnesses, recorded and graded."""
    run(
        scenario,
        harnesses=harness or [],
        engine_urls=engine_url or default_engine_urls(),
        out_folder=out_folder,
        concurrency=concurrency,
        resume=resume,
        pass_k=pass_k,
        tokens=tokens,
        json=json,
        samples=samples,
        sandbox=sandbox,
        intercept=intercept,
        timeout_s=timeout,
        tasks=_given(only=only, tests_network=tests_network, host_env=host_env),
    )


def run(
    paths: list[Path],
    *,
    harnesses: list[str],
    engine_urls: list[str],
    out_folder: Path,
    concurrency: int,
    json: bool,
    resume: bool = False,
    pass_k: int | None = None,
    tokens: Tokens | None = None,
    **changes: object,
) -> list[Outcome]:
    """Load, run, print; exit 1 when a session did not end well."""
    given = _given(**changes) or {}
    outcomes = run_async(
        lambda: _run(_plan(paths, harnesses, given), engine_urls, out_folder, concurrency, resume, tokens, quiet=json)
    )
    rows = summary(outcomes, k=pass_k)
    if json:
        print_json({"samples": outcome_rows(outcomes), "summary": summary_rows(rows)})
    else:
        if [row.tasks for row in rows] == [1] and len(outcomes) <= MOST_ROWS:
            out.print(outcomes_table(outcomes))
            for line in outcome_lines(outcomes):
                tell(out, line)
        else:
            out.print(summary_table(rows, out.width))
            _tell_more(out_folder, unfinished=any(outcome.session.status in UNFINISHED for outcome in outcomes))
    if any(outcome.session.status != "completed" for outcome in outcomes):
        raise typer.Exit(FAILED)
    return outcomes


def _tell_more(folder: Path, *, unfinished: bool) -> None:
    """What to type next."""
    tell(out, f"{'A row a sample:':20} polar traces {folder}")
    tell(out, f"{'A row a call:':20} polar calls {folder}")
    tell(out, f"{'For a trainer:':20} polar export {folder} --format jsonl")
    if unfinished:
        tell(out, f"{'What did not run:':20} the same command with --resume")


def _given(**changes: object) -> dict[str, object] | None:
    """Those that are; None when none is."""
    return {name: value for name, value in changes.items() if value is not None} or None


def _plan(paths: list[Path], harnesses: list[str], changes: dict[str, object]) -> list[Scenario]:
    """Each scenario once for each harness. ScenarioError also when two of them could not be told apart afterwards."""
    plan: list[Scenario] = []
    for path in paths:
        for more in [{"harness": name} for name in dict.fromkeys(harnesses)] or [{}]:
            scenario = load(path, changes | more)
            if twin := next((s for s in plan if (s.name, s.harness) == (scenario.name, scenario.harness)), None):
                what = f"expected another name than that of {twin.path}; got {scenario.name!r} as well"
                raise ScenarioError(path, None, "name", what)
            plan.append(scenario)
    return plan


async def _run(
    plan: list[Scenario],
    engine_urls: list[str],
    out_folder: Path,
    concurrency: int,
    resume: bool,
    tokens: Tokens | None,
    *,
    quiet: bool,
) -> list[Outcome]:
    other = next((scenario for scenario in plan if scenario.model != plan[0].model), None)
    if other and not engine_urls:
        what = f"expected {plan[0].model!r} as in {plan[0].path}, or one --engine-url for all; got {other.model!r}"
        raise ScenarioError(other.path, None, "model", what)
    works = [await asyncio.to_thread(work_of, scenario) for scenario in plan]
    work = [part for parts in works for part in parts]
    with Steps(quiet=quiet) as steps:
        if not resume and (there := _sessions(out_folder)):
            mend = "see --resume, or name another --out"
            steps.say(f"{out_folder} holds {many(there, 'session')} already, and will hold both: {mend}")
        if not resume:  # which closes them too, and clears up after their sandboxes
            await asyncio.to_thread(close_dead, out_folder)
        model = plan[0].model if any(RUNNABLE[scenario.harness].FACTS.calls_model for scenario in plan) else None
        async with engine_for(model, engine_urls, say=steps.say, progress=steps.progress) as engine:
            sent, reason = engine.capabilities.tokens(tokens)
            for scenario, parts in zip(plan, works, strict=True):
                where = f"{scenario.harness} in {scenario.sandbox} ({scenario.intercept})"
                several = f"{many(sum(len(tasks) for _, tasks in parts), 'task')} x " if scenario.tasks else ""
                told = f", model {engine.capabilities.model}, tokens {sent}" if model else ""
                steps.say(f"{scenario.name}: {several}{scenario.samples} x {where}{told}")
            for note in notes_of(work):
                steps.say(f"  {note}")
            if model and reason:
                steps.say(f"prompts go as messages, not as token ids: {reason}")
            tally = Tally(sum(scenario.samples * len(tasks) for scenario, tasks in work))
            async with standing(steps, tally):
                outcomes = await run_tasks(
                    work,
                    engine,
                    out=out_folder,
                    concurrency=concurrency,
                    resume=resume,
                    tokens=tokens,
                    done=lambda ended: _tell(steps, tally, ended, several=len(work) > 1 or plan[0].tasks is not None),
                )
            if kept := len(outcomes) - tally.ended:
                steps.say(f"{kept} of {len(outcomes)} samples were done already")
            return outcomes


def _sessions(folder: Path) -> int:
    return sum(1 for _ in folder.glob("ses_*"))


@asynccontextmanager
async def standing(steps: Steps, tally: Tally) -> AsyncIterator[None]:
    """Say on a terminal, every second, how far the samples are. Elsewhere each has a line when it is done."""

    async def told() -> None:
        began = time.monotonic()
        while True:
            steps.progress(time.monotonic() - began, f"{tally.ended} of {many(tally.samples, 'sample')} done")
            await asyncio.sleep(1)

    telling = asyncio.create_task(told()) if steps.live else None
    try:
        yield
    finally:
        if telling:
            telling.cancel()


def _tell(steps: Steps, tally: Tally, ended: Outcome, *, several: bool) -> None:
    session = ended.session
    reward = "-" if session.reward is None else f"{session.reward:g}"
    stands = tally.add(ended)
    which = f"{session.task_id} {session.harness} " if several else ""
    more = f"  ({stands})" if tally.samples > 4 else ""
    steps.say(
        f"  {which}sample {session.sample}: {session.status}, {many(session.calls, 'call')}, reward {reward}{more}"
    )
    for trouble in (session.status_reason, session.evaluation_error, session.poisoned):
        if trouble:
            steps.say(f"    {trouble}")
