"""`polar calls PATH`: what was captured, a row a call; `--call` shows one of them, token by token."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from polar_mitm.capture.find import find_calls
from polar_mitm.capture.forms import text_of
from polar_mitm.capture.reader import read_calls
from polar_mitm.capture.record import Call
from polar_mitm.capture.seal import open_checked
from polar_mitm.cli.one_call import call_json, show_call
from polar_mitm.cli.sessions import Captures, close_dead
from polar_mitm.cli.shell import BAD_USAGE, JsonFlag, err, exit_codes, out, print_json, tell
from polar_mitm.cli.tables import call_row, calls_table, not_carried
from polar_mitm.cli.vocabularies import EngineUrl, Tokenizer, vocabulary_for


def calls(
    path: Captures,
    call: Annotated[str | None, typer.Option(help="Show this call: its number in the table, or its id.")] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="With --call: a row a token.")] = False,
    full: Annotated[bool, typer.Option("--full", help="With --call: leave nothing out.")] = False,
    tokenizer: Tokenizer = None,
    engine_url: EngineUrl = None,
    json: JsonFlag = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="The lines of calls.jsonl as they are.")] = False,
) -> None:
    """Show what was captured: a row a call, or one call token by token."""
    with exit_codes():
        if jsonl:
            for file in captures(path):
                _print(file)
            return
        captured = {shown_as(file): list(read_calls(file)) for file in captures(path)}
        if call is None:
            _table(captured, json=json)
            return
        chosen, place = _find(captured, call)
        known = vocabulary_for([chosen], tokenizer, engine_url)
        if json:
            print_json(call_json(chosen, known))
        else:
            show_call(out, chosen, place, known, full=full, tokens=tokens)


def _print(file: Path) -> None:
    _, text = open_checked(file)
    with text:
        shutil.copyfileobj(text, sys.stdout.buffer)
    sys.stdout.flush()


def captures(path: Path) -> list[Path]:
    """The calls.jsonl of the sessions at and below this path. Exits when there are none."""
    close_dead(path)
    files = list(find_calls(path))
    if not files:
        tell(err, f"polar: no calls.jsonl under {path}", style="red")
        raise typer.Exit(BAD_USAGE)
    return files


def shown_as(file: Path) -> Path:
    """A session's file by its folder; a copy elsewhere by its own name."""
    return file.parent if text_of(file).name == "calls.jsonl" else file


def _table(captured: Mapping[Path, Sequence[Call]], *, json: bool) -> None:
    rows_of = {path: [call_row(call) for call in calls] for path, calls in captured.items()}
    if json:
        print_json({str(path): rows for path, rows in rows_of.items()})
        return
    for path, rows in rows_of.items():
        tell(out, f"{path}", style="bold")
        out.print(calls_table(rows))
        if lost := not_carried(rows):
            tell(out, "the model was not given: " + ", ".join(f"{field} x{count}" for field, count in lost.items()))


def _find(captured: Mapping[Path, Sequence[Call]], name: str) -> tuple[Call, str]:
    """The call of this number or id, and which of its session's it is. BadParameter when there is not just one."""
    found = [
        (call, f"call {number} of {len(calls)}")
        for calls in captured.values()
        for number, call in enumerate(calls, 1)
        if name in (str(number), call.identity.call_id)
    ]
    if not found:
        raise typer.BadParameter(f"no call has the number or id {name!r}", param_hint="--call")
    if len(found) > 1:
        what = f"{len(found)} sessions here have a call {name}: name one session's folder, or the call's id"
        raise typer.BadParameter(what, param_hint="--call")
    return found[0]
