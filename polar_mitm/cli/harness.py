"""`polar harness`: which agents can be run, and installing them."""

import shlex
from typing import Annotated

import typer

from polar_mitm.cli.shell import JsonFlag, Steps, exit_codes, one_of, out, print_json
from polar_mitm.harnesses import HARNESSES, Harness
from polar_mitm.harnesses.base import HarnessMissing
from polar_mitm.harnesses.install import install as install_harness
from polar_mitm.harnesses.versions import split_version

app = typer.Typer(help="The agents that polar can run.", no_args_is_help=True, add_completion=False)


@app.command("list")
def list_harnesses(json: JsonFlag = False) -> None:
    """Which harnesses polar knows, and which are installed."""
    rows = []
    for name, harness in HARNESSES.items():
        version, command, missing = None, None, None
        try:
            found = harness.find()
            version, command = found.version, found.command
        except HarnessMissing as error:
            missing = str(error)
        good = harness.FACTS.known_good
        rows.append({"harness": name, "version": version, "command": command, "known_good": good, "missing": missing})
        if not json:
            out.print(f"{name:15} {missing or _shown(harness, version)}", highlight=False, markup=False, soft_wrap=True)
            if command:
                out.print(f"{'':15} {shlex.join(command)}", highlight=False, markup=False, soft_wrap=True)
    if json:
        print_json(rows)


def _shown(harness: Harness, version: str | None) -> str:
    facts = harness.FACTS
    if facts.source is None:
        return "a program of your own: the scenario's `command`"
    good = facts.known_good
    return f"{version}" if version in good else f"{version}, which polar was not tried with; {', '.join(good)} works"


def _known(names: list[str]) -> list[str]:
    one_of(HARNESSES)([split_version(name)[0] for name in names])
    return names


@app.command()
def install(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME[@VERSION]...", help=", ".join(HARNESSES), callback=_known)
    ],
) -> None:
    """Install harnesses into polar's own folder. Quick when they are there."""
    with exit_codes(), Steps() as steps:
        for name, version in map(split_version, names):
            installed = install_harness(name, steps.say, version)
            steps.say(f"{name} {installed.version}: {shlex.join(installed.command)}")
