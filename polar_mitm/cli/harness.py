"""`polar harness`: which agents can be run, and installing them."""

from typing import Annotated

import typer

from polar_mitm.cli.shell import JsonFlag, Steps, exit_codes, one_of, out, print_json
from polar_mitm.harnesses import HARNESSES
from polar_mitm.harnesses.base import HarnessMissing
from polar_mitm.harnesses.install import install as install_harness

app = typer.Typer(help="The agents that polar can run.", no_args_is_help=True)


@app.command("list")
def list_harnesses(json: JsonFlag = False) -> None:
    """Which harnesses polar knows, and which are installed."""
    rows = []
    for name, harness in HARNESSES.items():
        try:
            rows.append({"harness": name, "version": harness.find().version, "missing": None})
        except HarnessMissing as missing:
            rows.append({"harness": name, "version": None, "missing": str(missing)})
    if json:
        print_json(rows)
        return
    for row in rows:
        out.print(f"{row['harness']:12} {row['version'] or row['missing']}", highlight=False)


@app.command()
def install(names: Annotated[list[str], typer.Argument(help=", ".join(HARNESSES), callback=one_of(HARNESSES))]) -> None:
    """Install harnesses into polar's own folder. Quick when they are there."""
    with exit_codes(), Steps() as steps:
        for name in names:
            installed = install_harness(name, steps.say)
            steps.say(f"{name} {installed.version}")
