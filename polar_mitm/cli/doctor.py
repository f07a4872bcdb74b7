"""`polar doctor`: what is missing, wrong or untrusted here, and how to mend it."""

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from polar_mitm.cli.shell import NOT_READY, JsonFlag, Steps, default_engine_url, out, print_json
from polar_mitm.rollout.doctor import Finding, examine, prove_ways


def doctor(
    engine_url: Annotated[str | None, typer.Option(help="A vLLM that runs already; $POLAR_ENGINE_URL.")] = None,
    json: JsonFlag = False,
) -> None:
    """Say what is missing here, and how to mend it. Exit code 3 when the demo could not run."""
    with Steps(quiet=json) as steps:
        findings = examine(engine_url or default_engine_url())
        steps.progress(0, "asking polar from inside each sandbox")
        findings += asyncio.run(prove_ways())
    if json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            out.print(f"{_mark(finding)}  {finding.part:24}", end="")
            out.print(finding.says, markup=False, highlight=False, soft_wrap=True)
    if any(finding.needed and not finding.ok for finding in findings):
        raise typer.Exit(NOT_READY)


def _mark(finding: Finding) -> str:
    if finding.ok:
        return "[green]ok[/]"
    if not finding.possible:
        return "[dim]--[/]"
    return "[red]no[/]" if finding.needed else "[yellow]no[/]"
