"""`polar recover` and `polar seal`: what is done to sessions that lie on the disk; and how commands find them."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from polar_mitm.capture.find import find_sessions
from polar_mitm.capture.folder import SessionFileError, SessionFolder
from polar_mitm.capture.forms import CallFileError
from polar_mitm.capture.lock import SessionBusy
from polar_mitm.capture.recover import Met, change_form, recover_below
from polar_mitm.cli.shell import BAD_USAGE, FAILED, JsonFlag, err, exit_codes, out, print_json, tell
from polar_mitm.cli.tables import many, shown

Captures = Annotated[
    Path, typer.Argument(help="A calls.jsonl, its session's folder, or a folder of sessions.", exists=True)
]
Sessions = Annotated[Path, typer.Argument(help="A session's folder, or a folder of sessions.", exists=True)]


def close_dead(path: Path, *, lost: bool = False) -> list[Met]:
    """Close sessions whose process is gone, and say so on standard error. For commands that look at captures."""
    met = recover_below(path, lost=lost) if path.exists() else []
    for session in met:
        if session.closed:
            tell(err, f"{shown(session.folder.path)}: {session.closed.status_reason}", style="yellow")
        else:
            tell(err, f"polar: it is still open: {session.trouble}", style="yellow")
    return met


def recover_command(path: Sessions, json: JsonFlag = False) -> None:
    """Close sessions whose process ended without closing them, and remove the containers and images they left."""
    from polar_mitm.rollout.resume import sweep  # all sandboxes: who only looks at calls need not wait for them

    with exit_codes():
        met = close_dead(path, lost=True)
        for session in find_sessions(path):
            with suppress(SessionFileError, FileNotFoundError):  # told by close_dead
                sweep(session.load())
    if json:
        print_json(
            [{"folder": str(m.folder.path), "closed": m.closed is not None, "trouble": m.trouble or None} for m in met]
        )
    elif not met:
        tell(out, f"no session under {shown(path)} was left open")
    if any(session.trouble for session in met):
        raise typer.Exit(FAILED)


def seal(
    path: Sessions,
    plain: Annotated[bool, typer.Option("--plain", help="The other way: back to calls.jsonl as text.")] = False,
) -> None:
    """Compress the calls of closed sessions, whatever their size."""
    with exit_codes():
        sessions = find_sessions(path)
    if not sessions:
        tell(err, f"polar: no session under {path}", style="red")
        raise typer.Exit(BAD_USAGE)
    done, before, after, failed = 0, 0, 0, False
    for session in sessions:
        size = _size(session)
        try:
            change_form(session, compressed=not plain)
        except SessionBusy as busy:
            tell(err, f"{busy}", style="yellow")
        except (OSError, CallFileError, SessionFileError) as error:
            tell(err, f"polar: {error}", style="red")
            failed = True
        else:
            done, before, after = done + 1, before + size, after + _size(session)
    tell(out, f"{many(done, 'session')}: {before / 2**20:.2f} MiB of calls before, {after / 2**20:.2f} MiB now")
    if failed:
        raise typer.Exit(FAILED)


def _size(session: SessionFolder) -> int:
    return session.calls.stat().st_size if session.calls.exists() else 0
