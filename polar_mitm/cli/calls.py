"""`polar calls PATH`: what was captured, a row a call."""

from pathlib import Path
from typing import Annotated

import typer

from polar_mitm.capture.find import find_calls
from polar_mitm.capture.reader import read_calls
from polar_mitm.cli.shell import BAD_USAGE, JsonFlag, err, exit_codes, out, print_json, tell
from polar_mitm.cli.tables import call_row, calls_table, not_carried

Captures = Annotated[
    Path, typer.Argument(help="A calls.jsonl, its session's folder, or a folder of sessions.", exists=True)
]


def calls(path: Captures, json: JsonFlag = False) -> None:
    """Show what was captured: a row a call."""
    with exit_codes():
        captured = {
            file.parent if file.name == "calls.jsonl" else file: [call_row(call) for call in read_calls(file)]
            for file in find_calls(path)
        }
    if not captured:
        tell(err, f"polar: no calls.jsonl under {path}", style="red")
        raise typer.Exit(BAD_USAGE)
    if json:
        print_json({str(folder): rows for folder, rows in captured.items()})
        return
    for folder, rows in captured.items():
        tell(out, f"{folder}", style="bold")
        out.print(calls_table(rows))
        if lost := not_carried(rows):
            what = ", ".join(f"{field} x{count}" for field, count in lost.items())
            out.print(f"the model was not given: {what}", markup=False, highlight=False)
