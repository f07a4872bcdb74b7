"""`polar calls DIR`: what was captured, a row a call."""

from pathlib import Path
from typing import Annotated

import typer

from polar_mitm.capture.reader import read_calls
from polar_mitm.capture.session import SessionFolder
from polar_mitm.cli.shell import BAD_USAGE, JsonFlag, err, exit_codes, out, print_json, tell
from polar_mitm.cli.tables import call_row, calls_table, not_carried


def calls(
    folder: Annotated[Path, typer.Argument(help="A session's folder, or a folder of them.", exists=True)],
    json: JsonFlag = False,
) -> None:
    """Show what was captured: a row a call."""
    sessions = [path.parent for path in sorted(folder.rglob("calls.jsonl"))]
    if not sessions:
        err.print(f"polar: no calls.jsonl under {folder}", style="red", highlight=False)
        raise typer.Exit(BAD_USAGE)
    with exit_codes():
        captured = {path: [call_row(call) for call in read_calls(SessionFolder(path).calls)] for path in sessions}
    if json:
        print_json({str(path): rows for path, rows in captured.items()})
        return
    for path, rows in captured.items():
        tell(out, f"{path}", style="bold")
        out.print(calls_table(rows))
        if lost := not_carried(rows):
            what = ", ".join(f"{field} x{count}" for field, count in lost.items())
            out.print(f"the model was not given: {what}", markup=False, highlight=False)
