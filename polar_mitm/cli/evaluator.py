"""`polar evaluator`: what grades a session, and installing what one needs."""

from typing import Annotated, Final

import typer

from polar_mitm.cli.shell import JsonFlag, Steps, exit_codes, one_of, out, print_json, tell
from polar_mitm.tasks.evaluators import EVALUATORS
from polar_mitm.tasks.swebench import package

app = typer.Typer(help="What grades a session.", no_args_is_help=True)

INSTALLABLE: Final = {"swebench": package}


@app.command("list")
def list_evaluators(json: JsonFlag = False) -> None:
    """Which evaluators polar knows, and what each lacks here."""
    rows = [
        {"evaluator": name, "problems": INSTALLABLE[name].problems() if name in INSTALLABLE else []}
        for name in EVALUATORS
    ]
    if json:
        print_json(rows)
        return
    for row in rows:
        tell(out, f"{row['evaluator']:18} {'; '.join(row['problems']) or 'ready'}")


@app.command()
def install(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help=", ".join(INSTALLABLE), callback=one_of(INSTALLABLE))
    ],
) -> None:
    """Install what an evaluator needs into polar's own folder. Quick when it is there."""
    with exit_codes(), Steps() as steps:
        for name in names:
            INSTALLABLE[name].install(steps.say)
            steps.say(f"{name} {INSTALLABLE[name].VERSION}")
