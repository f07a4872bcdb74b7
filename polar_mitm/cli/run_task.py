"""`polar run-task`: a scenario, its samples, a table."""

from pathlib import Path
from typing import Annotated

import typer

from polar_mitm.cli.shell import FAILED, JsonFlag, Steps, default_engine_url, out, print_json, run_async, tell
from polar_mitm.cli.tables import outcome_rows, outcomes_table, shown
from polar_mitm.rollout.engines import engine_for
from polar_mitm.rollout.run import run_task as run_samples
from polar_mitm.rollout.sample import Outcome
from polar_mitm.tasks.scenario import Scenario, load

EngineUrl = Annotated[
    str | None, typer.Option("--engine-url", help="A vLLM that runs already; $POLAR_ENGINE_URL. [default: a local one]")
]
Out = Annotated[Path, typer.Option("--out", help="Folder for the session folders.", file_okay=False)]


def run_task(
    scenario: Annotated[Path, typer.Argument(help="A scenario file, see scenarios/.")],
    harness: Annotated[str | None, typer.Option(help="Harness, instead of the scenario's.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Number of sessions, instead of the scenario's.")] = None,
    sandbox: Annotated[str | None, typer.Option(help="Sandbox: host or bwrap.")] = None,
    intercept: Annotated[str | None, typer.Option(help="base-url or proxy.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds a session may run.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Sessions at once.")] = 1,
    engine_url: EngineUrl = None,
    out_folder: Out = Path("runs"),
    json: JsonFlag = False,
) -> None:
    """Run a scenario: real sessions of a real harness, recorded and graded."""
    run(
        scenario,
        engine_url=engine_url or default_engine_url(),
        out_folder=out_folder,
        concurrency=concurrency,
        json=json,
        harness=harness,
        samples=samples,
        sandbox=sandbox,
        intercept=intercept,
        timeout_s=timeout,
    )


def run(
    path: Path, *, engine_url: str | None, out_folder: Path, concurrency: int, json: bool, **changes: object
) -> list[Outcome]:
    """Load, run, print; exit 1 when a session did not end well."""
    outcomes = run_async(lambda: _run(path, engine_url, out_folder, concurrency, changes, quiet=json))
    if json:
        print_json(outcome_rows(outcomes))
    else:
        out.print(outcomes_table(outcomes))
        for outcome in outcomes:
            tell(out, f"{outcome.session.sample:6}  {shown(outcome.folder)}")
    if any(outcome.session.status != "completed" for outcome in outcomes):
        raise typer.Exit(FAILED)
    return outcomes


async def _run(
    path: Path,
    engine_url: str | None,
    out_folder: Path,
    concurrency: int,
    changes: dict[str, object],
    *,
    quiet: bool,
) -> list[Outcome]:
    scenario: Scenario = load(path, {name: value for name, value in changes.items() if value is not None})
    with Steps(quiet=quiet) as steps:
        async with engine_for(scenario.model, engine_url, say=steps.say, progress=steps.progress) as engine:
            where = f"{scenario.harness} in {scenario.sandbox} ({scenario.intercept})"
            steps.say(f"{scenario.name}: {scenario.samples} x {where}, model {engine.capabilities.model}")
            return await run_samples(
                scenario, engine, out=out_folder, concurrency=concurrency, done=lambda ended: _tell(steps, ended)
            )


def _tell(steps: Steps, ended: Outcome) -> None:
    session = ended.session
    reward = "-" if session.reward is None else f"{session.reward:g}"
    steps.say(f"  sample {session.sample}: {session.status}, {session.calls} calls, reward {reward}")
    for trouble in (session.status_reason, session.evaluation_error, session.poisoned):
        if trouble:
            steps.say(f"    {trouble}")
