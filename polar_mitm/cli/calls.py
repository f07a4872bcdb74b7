"""`polar calls PATH`: what was captured, a row a call; `--call` shows one of them, token by token."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from polar_mitm.capture.find import find_calls
from polar_mitm.capture.folder import SessionFileError, SessionFolder
from polar_mitm.capture.forms import text_of
from polar_mitm.capture.reader import CallReader, read_calls
from polar_mitm.capture.record import Call
from polar_mitm.capture.seal import open_checked
from polar_mitm.cli.one_call import call_json, show_call
from polar_mitm.cli.sessions import Captures, close_dead
from polar_mitm.cli.shell import BAD_USAGE, JsonFlag, err, exit_codes, out, print_json, tell
from polar_mitm.cli.tables import call_row, calls_table, not_carried
from polar_mitm.cli.vocabularies import EngineUrl, Tokenizer, vocabulary_for
from polar_mitm.trajectory.digest import whose

_WHY_TORN: Final = "its process was killed in the middle of it, or is writing it now"


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
        files = captures(path)
        if call is None:
            _table({shown_as(file): _rows(file) for file in files}, json=json)
            return
        chosen, place = _find(files, call)
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


def _rows(file: Path) -> list[dict[str, Any]]:
    reader = CallReader(file)
    rows = [call_row(call) for call in reader]
    if reader.torn:
        tell(err, f"{file}: its last line is not whole, and is left out: {_WHY_TORN}", style="yellow")
    return rows


def _table(rows_of: Mapping[Path, Sequence[dict[str, Any]]], *, json: bool) -> None:
    if json:
        print_json({str(path): rows for path, rows in rows_of.items()})
        return
    for path, rows in rows_of.items():
        tell(out, f"{path}  {_whose(path)}".rstrip(), style="bold")
        out.print(calls_table(rows))
        if lost := not_carried(rows):
            tell(out, "the model was not given: " + ", ".join(f"{field} x{count}" for field, count in lost.items()))


def _whose(path: Path) -> str:
    """Empty for a copy, and where the session's record can't be read: its calls are shown all the same."""
    try:
        record = SessionFolder(path).load()
    except (OSError, SessionFileError):
        return ""
    return whose(record.scenario, record.sample, record.harness)


def _find(files: Sequence[Path], name: str) -> tuple[Call, str]:
    """The call of this number or id, and which of its session's it is. BadParameter when there is not just one."""
    found: list[tuple[Call, str]] = []
    most = 0
    for file in files:
        number, here = 0, []
        for number, call in enumerate(read_calls(file), 1):  # one at a time: a long session's prompts fill the memory
            if name in (str(number), call.identity.call_id):
                here.append((call, number))
        found += [(call, f"call {place} of {number}") for call, place in here]
        most = max(most, number)
    if not found:
        there = (
            f"there are the numbers 1 to {most}" if most > 1 else "there is number 1" if most else "there is no call"
        )
        where = "" if len(files) == 1 else f", at most, in {len(files)} sessions"
        raise typer.BadParameter(f"no call has the number or id {name!r}: {there}{where}", param_hint="--call")
    if len(found) > 1:
        what = f"{len(found)} sessions here have a call {name}: name one session's folder, or the call's id"
        raise typer.BadParameter(what, param_hint="--call")
    return found[0]
