"""Gym's `TokenSink` and `TokenSource` over session folders: a rollout is a session, an entry a line of its calls.jsonl.

A rollout is a closed session from its first entry on, since nobody says when it ends; later entries are added as to any
closed session. `freeze` seals it. Nothing is ever deleted: `drop` only tells whether the snapshot is still the last.
Each operation locks the session, so any number of processes may share a folder.
"""

import asyncio
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from polar_mitm.capture.canonical import dumps, loads
from polar_mitm.capture.folder import SessionFolder, SessionRecord
from polar_mitm.capture.gym.entries import Fields, lost_call, to_call, to_fields
from polar_mitm.capture.lock import FolderLock
from polar_mitm.capture.log import CallLog
from polar_mitm.capture.reader import read_calls
from polar_mitm.capture.record import Call
from polar_mitm.capture.recover import recover
from polar_mitm.capture.seal import finish, sync_folder, unseal
from polar_mitm.capture.session import count

WAIT_S: Final = 60.0
"""How long an operation waits for others on the same rollout; each takes milliseconds."""
BEGUN: Final = "begun.jsonl"
"""In a session's folder: the ids of calls that were about to be made, a JSON string a line."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


class Store:
    """Fresh instances over the same folder see each other's entries at once."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    async def put(self, entry: Any) -> None:
        """Store a `TokenEntry`; it is on the disk on return. An equal one is taken once.

        Raises ValueError for another entry of the same call, and what cannot be written: CallLogError, OSError.
        """
        await asyncio.to_thread(self._put, entry.model_dump(mode="json"))

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        """Note that a call is about to be made; without an entry it makes the rollout incomplete."""
        await asyncio.to_thread(self._begin, rollout_id, model_call_id)

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        """Note that a call was not captured: the session is poisoned, and polar trains on it no more than Gym."""
        await asyncio.to_thread(self._mark, rollout_id, model_call_id)

    async def freeze(self, rollout_id: str) -> Any:
        """Seal the rollout; its `TokenCaptureSnapshot`. Sessions that polar captured can be frozen as well.

        Raises SessionBusy for a session that is still running.
        """
        return await asyncio.to_thread(self._freeze, rollout_id)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """Whether this is the rollout's last snapshot. The session stays where it is."""
        return await asyncio.to_thread(self._is_last, rollout_id, snapshot_id, version)

    async def close(self) -> None:
        """Nothing is kept open."""

    def session(self, rollout_id: str) -> SessionFolder:
        """The rollout's folder. Raises ValueError for an id that is no name of one."""
        if not _NAME.fullmatch(rollout_id):
            raise ValueError(f"{rollout_id!r} is no rollout id: letters, digits, '.', '_' and '-' make one")
        return SessionFolder(self.folder / rollout_id)

    def _put(self, fields: Fields) -> None:
        with self._held(fields["rollout_id"]) as (folder, session):
            earlier = {call.identity.call_id: call for call in _calls(folder)}
            if there := earlier.get(fields["model_call_id"]):
                if to_fields(there, earlier) != fields:
                    raise ValueError(f"call {fields['model_call_id']} is captured already, with another payload")
                return
            _append(folder, session, to_call(fields, earlier))

    def _begin(self, rollout_id: str, model_call_id: str) -> None:
        with self._held(rollout_id) as (folder, _):
            handle = os.open(folder.path / BEGUN, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(dumps(model_call_id) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            sync_folder(folder.path)

    def _mark(self, rollout_id: str, model_call_id: str) -> None:
        with self._held(rollout_id) as (folder, session):
            _poison(folder, session, f"NeMo Gym could not capture call {model_call_id or '(unnamed)'}")
            _append(folder, session, lost_call(rollout_id, model_call_id or str(session.calls + 1), time.time()))

    def _freeze(self, rollout_id: str) -> Any:
        from nemo_gym.token_id_capture.protocols import TokenCaptureSnapshot
        from nemo_gym.token_id_capture.records import TokenEntry, compute_digest

        if (path := self.session(rollout_id).path).exists():
            recover(path)
        with self._held(rollout_id) as (folder, session):
            calls = {call.identity.call_id: call for call in _calls(folder)}
            if lost := _begun(folder) - calls.keys():
                _poison(folder, session, f"calls were begun and not captured: {', '.join(sorted(lost))}")
            entries = []
            for fields in filter(None, (to_fields(call, calls) for call in calls.values())):
                entry = TokenEntry.model_validate(fields)
                if entry.digest is None and not entry.prompt_is_delta:
                    whole = entry.prompt_token_ids + entry.generation_token_ids
                    entry.cum_len, entry.digest = len(whole), compute_digest(whole)
                entries.append(entry)
            if session.seal is None:
                finish(folder, session)
            snapshot_id, version = _snapshot(session)
            return TokenCaptureSnapshot(
                rollout_id=rollout_id,
                entries=tuple(entries),
                incomplete=bool(session.poisoned) or session.incomplete or _has_lost(calls.values()),
                snapshot_id=snapshot_id,
                version=version,
            )

    def _is_last(self, rollout_id: str, snapshot_id: str, version: int) -> bool:
        with self._held(rollout_id) as (_, session):
            return session.seal is not None and _snapshot(session) == (snapshot_id, version)

    @contextmanager
    def _held(self, rollout_id: str) -> Iterator[tuple[SessionFolder, SessionRecord]]:
        """The rollout's session, made when it is new, with nobody else at it."""
        folder = self.session(rollout_id)
        folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FolderLock(folder.path, wait_s=WAIT_S):
            try:
                session = folder.load()
            except FileNotFoundError:
                now = time.time()
                session = SessionRecord(
                    session_id=rollout_id, started_at=now, finished_at=now, status="completed", harness="nemo-gym"
                )
                CallLog(folder.calls).close()
                finish(folder, session)
            yield folder, session


def _append(folder: SessionFolder, session: SessionRecord, call: Call) -> None:
    unseal(folder, session)
    with CallLog(folder.calls) as log:
        log.append(call)
        count(session, log)
    session.finished_at = time.time()
    folder.write(session)


def _poison(folder: SessionFolder, session: SessionRecord, reason: str) -> None:
    if session.poisoned is None:
        session.poisoned = reason
        folder.write(session)


def _calls(folder: SessionFolder) -> list[Call]:
    return list(read_calls(folder.calls)) if folder.calls.exists() else []


def _begun(folder: SessionFolder) -> set[str]:
    path = folder.path / BEGUN
    if not path.exists():
        return set()
    *whole, _torn = path.read_bytes().split(b"\n")
    return {loads(line) for line in whole}


def _has_lost(calls: Any) -> bool:
    """Whether tokens were sampled that the record does not have whole."""
    return any(call.imported is None and call.response and not call.checks.valid for call in calls)


def _snapshot(session: SessionRecord) -> tuple[str, int]:
    """The calls' digest, and a version that grows with each line, and when the session is poisoned."""
    assert session.seal
    return session.seal.sha256, session.calls + bool(session.poisoned)
