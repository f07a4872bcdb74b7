"""Sessions rebuilt from saved flows, without an engine: the record of each call stands on its flow.

The calls are written in the order in which they were written first, by the same log, so that the file comes out the
same. What a session was and how it ended is not on its flows; it is taken from the `session.json` beside them.
"""

import shutil
from collections import Counter
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

from polar_mitm.capture.canonical import loads
from polar_mitm.capture.folder import SessionFileError, SessionFolder, SessionRecord
from polar_mitm.capture.lock import FolderLock
from polar_mitm.capture.log import CallLog
from polar_mitm.capture.record import Call, CallLine
from polar_mitm.capture.seal import finish, open_checked
from polar_mitm.capture.session import count
from polar_mitm.errors import BadInput
from polar_mitm.proxy.saved import FlowFileError, SavedFlows, flow_at
from polar_mitm.proxy.view import LINE, recorded

UNWRITTEN = 2**62
"""Sorts calls that were never written behind the written ones."""


class ReplayError(BadInput):
    """Nothing can be rebuilt; the message says why and how to mend it."""


@dataclass(slots=True)
class Replayed:
    """A session that was rebuilt."""

    folder: SessionFolder
    session: SessionRecord
    missing: list[int] = field(default_factory=list)
    """Lines of the first file whose flow is not here, from 1."""
    regained: list[str] = field(default_factory=list)
    """Calls that the first file lacks, because they could not be written; they come last."""
    live: Path | None = None
    """The first file, where it lies beside the flows."""
    differs: int | None = None
    """The first line that says something else in the two, from 1; None when there is none."""
    same_bytes: bool = False
    """Whether they are the same byte for byte: a polar of another version may write the same in other words."""


@dataclass(slots=True)
class Replay:
    sessions: list[Replayed] = field(default_factory=list)
    others: int = 0
    """Flows that are no calls."""
    unfinished: int = 0
    """Calls whose flow was saved before they were over."""
    repeated: int = 0
    """Flows of calls that came before in the file."""
    torn: int = -1
    """The byte at which the file ends in the middle of a flow; -1 when it does not."""


@dataclass(slots=True, order=True)
class _Place:
    line: int
    finished_at: float
    offset: int


def replay(flows: Path, out: Path) -> Replay:
    """Rebuild every session of the file in a folder of its own, `<out>/<session_id>/`.

    Raises ReplayError when the file holds no call or a session's folder is there already, FlowFileError, CallLogError
    when a call cannot be written, and OSError. Of a session that cannot be rebuilt nothing is left.
    """
    result = Replay()
    sessions = _survey(flows, result)
    if not sessions:
        raise ReplayError(f"{flows}: no call of a session is in it, only {result.others} other flows")
    if taken := [out / name for name in sessions if (out / name).exists()]:
        raise ReplayError(f"{taken[0]} is there already: name another folder with --out")
    for session_id, places in sorted(sessions.items()):
        result.sessions.append(_rebuild(flows, session_id, sorted(places), out, torn=result.torn >= 0))
    return result


def _survey(flows: Path, result: Replay) -> dict[str, list[_Place]]:
    """Where the calls of each session stand in the file."""
    sessions: dict[str, list[_Place]] = {}
    seen: Counter[str] = Counter()
    saved = SavedFlows(flows)
    for number, (offset, flow) in enumerate(saved, start=1):
        try:
            call = recorded(flow)
        except ValueError as error:
            raise FlowFileError(flows, number, offset, f"its record can't be read: {error}") from error
        if call is None:
            result.others += 1
        elif Path(call.identity.session_id).name != call.identity.session_id:
            raise FlowFileError(flows, number, offset, f"{call.identity.session_id!r} is no id of a session")
        elif LINE not in flow.metadata:
            result.unfinished += 1
        elif seen[call.identity.call_id]:
            result.repeated += 1
        else:
            seen[call.identity.call_id] += 1
            place = _Place(flow.metadata[LINE] or UNWRITTEN, call.identity.finished_at, offset)
            sessions.setdefault(call.identity.session_id, []).append(place)
    result.torn = saved.torn
    return sessions


def _rebuild(flows: Path, session_id: str, places: list[_Place], out: Path, *, torn: bool) -> Replayed:
    beside = SessionFolder(flows.parent)
    first = _first_record(beside, session_id)
    lines = [place.line for place in places if place.line != UNWRITTEN]
    written = max([*lines, first.calls if first else 0])
    missing = sorted(set(range(1, written + 1)) - set(lines))
    regained: list[str] = []
    folder = SessionFolder.create(out, session_id)
    try:
        with FolderLock(folder.path), flows.open("rb") as file:
            last = _call_at(file, places[0])
            session = first.model_copy() if first else _from_call(last)
            session.status, session.seal = "open", None
            folder.write(session)
            with CallLog(folder.calls, durability="none") as log:
                for place in places:
                    log.append(last := _call_at(file, place))
                    if place.line == UNWRITTEN:
                        regained.append(last.identity.call_id)
                count(session, log)
            _end(session, first, flows, last, lacking=len(missing) + torn)
            finish(folder, session)
    except BaseException:
        shutil.rmtree(folder.path)
        raise
    replayed = Replayed(folder, session, missing, regained)
    if first and beside.calls.exists():
        replayed.live = beside.calls
        replayed.same_bytes, replayed.differs = _compare(beside.calls, folder.calls)
    return replayed


def _end(session: SessionRecord, first: SessionRecord | None, flows: Path, last: Call, *, lacking: int) -> None:
    """How the session ended is the first record's to say; what the flows lack makes it no good for training."""
    if first and first.status != "open":
        session.status = first.status
    else:
        session.status = "failed"
        session.status_reason = f"incomplete: rebuilt from {flows.name}, which does not say how the session ended"
        session.finished_at = last.identity.finished_at
    if lacking:
        session.poisoned = session.poisoned or f"rebuilt from {flows.name}, which lacks {lacking} of its calls"


def _first_record(beside: SessionFolder, session_id: str) -> SessionRecord | None:
    try:
        record = beside.load()
    except FileNotFoundError:
        return None
    except SessionFileError as error:
        raise ReplayError(f"{error}; or move it away to rebuild without it") from error
    return record if record.session_id == session_id else None


def _from_call(call: Call) -> SessionRecord:
    identity = call.identity
    return SessionRecord(
        session_id=identity.session_id,
        task_id=identity.task_id,
        sample=identity.sample,
        attempt=identity.attempt,
        harness=identity.harness,
        harness_version=identity.harness_version,
        started_at=identity.started_at,
    )


def _call_at(file: BinaryIO, place: _Place) -> Call:
    call = recorded(flow_at(file, place.offset))
    assert call
    return call


def _compare(left: Path, right: Path) -> tuple[bool, int | None]:
    """Whether two files of calls are the same, whatever their form, and the first line that says something else."""
    same = True
    (_, one), (_, other) = open_checked(left), open_checked(right)
    with one, other:
        for number, (ours, theirs) in enumerate(zip_longest(one, other), start=1):
            if ours != theirs:
                same = False
                if ours is None or theirs is None or _read(ours) != _read(theirs):
                    return False, number
    return same, None


def _read(text: bytes) -> CallLine | bytes:
    try:
        return CallLine.model_validate(loads(text))
    except ValueError:
        return text
