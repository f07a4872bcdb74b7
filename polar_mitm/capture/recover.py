"""What is done to sessions on the disk: those whose process ended without closing them are closed, a torn call cut off.

A session that is being written is never touched: its folder is locked.
"""

from dataclasses import dataclass
from pathlib import Path

from polar_mitm.capture.find import find_sessions
from polar_mitm.capture.folder import SessionFileError, SessionFolder, SessionRecord
from polar_mitm.capture.forms import CallFileError, NewerCalls
from polar_mitm.capture.lock import FolderLock, SessionBusy
from polar_mitm.capture.log import CallLog, CallLogError
from polar_mitm.capture.seal import COMPRESS_FROM, expand, finish, settle, take_digest, unseal, unsettled
from polar_mitm.capture.session import count

__all__ = ["Met", "SessionBusy", "change_form", "recover", "recover_below"]


@dataclass(slots=True, frozen=True)
class Met:
    """A session that was found open without a process: closed now, or why not."""

    folder: SessionFolder
    closed: SessionRecord | None = None
    trouble: str = ""


def recover_below(path: Path, *, lost: bool = False) -> list[Met]:
    """Close the sessions that a path stands for and whose process is gone. Those that are being written are left alone.

    With `lost` also those that have calls and no session.json, which is made anew. Raises OSError for folders that
    cannot be searched.
    """
    met = []
    for folder in find_sessions(path):
        try:
            if _says_open(folder) or (lost and not folder.record.exists()):
                met.append(Met(folder, closed=recover(folder.path)))
        except SessionBusy:
            continue
        except (OSError, CallFileError, SessionFileError) as error:
            met.append(Met(folder, trouble=str(error)))
    return met


def recover(path: Path, *, compress_from: int = COMPRESS_FROM) -> SessionRecord:
    """Close the session of a process that is gone, as `failed` with a reason that begins with `incomplete:`.

    A closed session stays so, and is sealed if it was not. Calls that cannot be read are left as they are, and the
    session is poisoned. Raises SessionBusy when it is being written, OSError, NewerCalls, CallFileError for sealed
    calls that were changed, and SessionFileError when the folder is no session's.
    """
    folder = SessionFolder(path)
    if not folder.record.exists() and not folder.calls.exists():
        raise SessionFileError(path, "it holds neither session.json nor calls.jsonl", "name a session's folder")
    with FolderLock(path):
        session = _record(folder)
        if session.status != "open" and session.seal:
            if unsettled(folder):
                take_digest(folder, compress_from=compress_from)
                settle(folder)
            return session
        last_sign = folder.calls.stat().st_mtime if folder.calls.exists() else session.started_at
        torn = _mend(folder, session)
        if session.status == "open":
            session.status = "failed"
            session.status_reason = "incomplete: the process that ran it ended before the session did" + torn
            session.finished_at = last_sign
        elif torn:
            session.poisoned = session.poisoned or f"a call that ended after the session was closed is incomplete{torn}"
        try:
            finish(folder, session, compress_from=compress_from)
        except CallFileError:  # why is on the record already
            folder.write(session)
        return session


def change_form(folder: SessionFolder, *, compressed: bool) -> SessionRecord:
    """Compress a closed session's calls, whatever their size, or make them text again. Raises what `recover` raises."""
    recover(folder.path)
    with FolderLock(folder.path):
        if compressed:
            take_digest(folder, compress_from=0)
            settle(folder)
        else:
            expand(folder)
        return folder.load()


def _record(folder: SessionFolder) -> SessionRecord:
    if folder.record.exists():
        return folder.load()
    # Nobody wrote one: the record was lost, or the machine died before it was on the disk.
    return SessionRecord(session_id=folder.path.name, started_at=folder.calls.stat().st_mtime)


def _mend(folder: SessionFolder, session: SessionRecord) -> str:
    """Cut what is torn, and count; says what was cut."""
    try:
        unseal(folder, session)
        with CallLog(folder.calls) as log:
            count(session, log)
            return "; its last call was cut off" if log.torn else ""
    except NewerCalls:
        raise
    except (CallLogError, CallFileError) as error:
        session.poisoned = session.poisoned or str(error)
        return ""


def _says_open(folder: SessionFolder) -> bool:
    """Whether to look closer; of a hundred thousand sessions all but a few are closed."""
    try:
        text = folder.record.read_bytes()
    except FileNotFoundError:
        return False
    return b'"open"' in text and folder.load().status == "open"
