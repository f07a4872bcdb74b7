"""The log of a running session, as the proxy holds it; and the recovery of one whose process is gone.

What a session's folder holds is in `folder`, how a call is written in `log`.
"""

import logging
import threading
import time
from pathlib import Path

from polar_mitm.capture.folder import (
    Ending,
    SessionEngine,
    SessionFileError,
    SessionFolder,
    SessionRecord,
    Status,
)
from polar_mitm.capture.log import CallLog, CallLogError, Durability
from polar_mitm.capture.names import new_call_id, new_session_id
from polar_mitm.capture.reader import CallFileError
from polar_mitm.capture.record import Call, CallLine

__all__ = [
    "Ending",
    "SessionEngine",
    "SessionFileError",
    "SessionFolder",
    "SessionLog",
    "SessionRecord",
    "Status",
    "new_call_id",
    "new_session_id",
    "recover",
]

logger = logging.getLogger(__name__)


class SessionLog:
    """What the proxy holds of a session: takes its calls, keeps its record.

    Capture never fails a model call: whatever cannot be written poisons the session instead, says so in the log and in
    session.json, and later calls are still tried. Thread-safe.
    """

    def __init__(self, folder: SessionFolder, session: SessionRecord, *, durability: Durability = "call") -> None:
        self.folder = folder
        self.session = session
        """The live record. Who changes it afterwards (rewards) writes it with `folder.write`."""
        self._durability: Durability = durability
        self._lock = threading.Lock()
        self._log: CallLog | None = None
        self._unsaved = True
        try:
            self._open()
        except (OSError, CallLogError, CallFileError) as error:
            self.poison(str(error))
        if self._unsaved:
            self._save()

    def record(self, call: Call) -> CallLine | None:
        """Write a call; its line, or None when it could not be written. Never raises.

        A call that ends after the session was closed is written too: it was sampled like the others.
        """
        with self._lock:
            late = self.session.status != "open"
            line: CallLine | None = None
            try:
                log = self._open()
                line = log.append(call)
                _count(self.session, log)
            except (OSError, CallLogError, CallFileError) as error:
                self.poison(f"call {call.identity.call_id} was not recorded: {error}")
            if late:
                self._release()
            if late or self._unsaved:
                self._save()
            return line

    def close(self, status: Ending, *, reason: str | None = None, exit_code: int | None = None) -> SessionRecord:
        """End the session and write its record, which is returned. The first close counts. Never raises."""
        with self._lock:
            if self.session.status == "open":
                self.session.status = status
                self.session.status_reason = reason
                self.session.exit_code = exit_code
                self.session.finished_at = time.time()
                self._release()
                self._save()
            return self.session

    def _open(self) -> CallLog:
        if self._log is None:
            self._log = CallLog(self.folder.calls, durability=self._durability)
            _count(self.session, self._log)
        return self._log

    def _release(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def poison(self, reason: str) -> None:
        """Mark the session: something of it could not be kept. The first reason stays."""
        logger.error("session %s is poisoned: %s", self.session.session_id, reason)
        if self.session.poisoned is None:
            self.session.poisoned = reason
            self._save()

    def limit(self, reason: str) -> None:
        """Say once on the record that a size limit was met. What was recorded stays good."""
        with self._lock:
            if reason not in self.session.limited:
                logger.warning("session %s: %s", self.session.session_id, reason)
                self.session.limited = [*self.session.limited, reason]
                self._save()

    def _save(self) -> None:
        try:
            self.folder.write(self.session)
            self._unsaved = False
        except OSError as error:
            self._unsaved = True
            reason = f"{self.folder.record} was not written: {error}"
            logger.error("session %s: %s", self.session.session_id, reason)
            self.session.poisoned = self.session.poisoned or reason


def recover(path: Path) -> SessionRecord:
    """Close the session of a process that ended without doing so: cut a torn call, say `failed` in session.json.

    A session that was closed is returned as it is. Raises CallLogError when it is still being written, OSError,
    CallFileError, and SessionFileError when the folder is no session's.
    """
    folder = SessionFolder(path)
    if folder.record.exists():
        session = folder.load()
    elif folder.calls.exists():  # killed before its record was written
        session = SessionRecord(session_id=path.name, started_at=folder.calls.stat().st_mtime)
    else:
        raise SessionFileError(path, "it holds neither session.json nor calls.jsonl", "name a session's folder")
    if session.status != "open":
        return session
    last_sign = folder.calls.stat().st_mtime if folder.calls.exists() else session.started_at
    with CallLog(folder.calls) as log:
        _count(session, log)
        torn = log.torn
    session.status = "failed"
    session.status_reason = "incomplete: the process that ran it ended before the session did" + (
        "; its last call was cut off" if torn else ""
    )
    session.finished_at = last_sign
    for unfinished in path.glob(".session-*.tmp"):
        unfinished.unlink()
    folder.write(session)
    return session


def _count(session: SessionRecord, log: CallLog) -> None:
    session.calls, session.prompt_tokens, session.response_tokens = log.calls, log.prompt_tokens, log.response_tokens
    session.not_carried = dict(sorted(log.not_carried.items()))
