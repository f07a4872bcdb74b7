"""`polar demo`: the main job on the default local model, all set-up included."""

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from polar_mitm.cli import run_task
from polar_mitm.cli.shell import JsonFlag, Steps, TokensFlag, default_engine_urls, exit_codes, out
from polar_mitm.cli.tables import shown
from polar_mitm.harnesses.install import install as install_harness
from polar_mitm.tasks.reading import bundled


def demo(
    samples: Annotated[int, typer.Option(min=1, help="Number of sessions.")] = 4,
    engine_url: run_task.EngineUrls = None,
    out_folder: run_task.Out = Path("runs"),
    tokens: TokensFlag = None,
    json: JsonFlag = False,
) -> None:
    """Run the first scenario: a real harness, a real model, a table of results."""
    scenario = bundled("hello")
    with exit_codes(), Steps(quiet=json) as steps:
        install_harness("pi", steps.say)
    outcomes = run_task.run(
        [scenario],
        harnesses=[],
        engine_urls=engine_url or default_engine_urls(),
        out_folder=out_folder,
        concurrency=1,
        json=json,
        tokens=tokens,
        samples=samples,
    )
    if json:
        return
    session = shown(outcomes[0].folder)
    polar = "polar" if shutil.which("polar") else shown(Path(sys.argv[0]).absolute())
    out.print(
        f"\nThe records:                 {session}/calls.jsonl\n"
        f"A row a call:                {polar} calls {out_folder}\n"
        f"A call, token by token:      {polar} calls {session} --call 1\n"
        f"What a trainer gets:         {polar} traces {out_folder}\n"
        f"The flows in mitmweb:        {polar} web --read {session}/flows.mitm\n"
        f"Next, a file made by a tool: {polar} run-task scenarios/write_file.yaml",
        highlight=False,
        soft_wrap=True,
    )
