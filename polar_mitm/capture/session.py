"""The log of a running session, as the proxy holds it.

What a session's folder holds is in `folder`, how a call is written in `log`, what closing does to the calls in `seal`;
a session whose process is gone is `recover`'s.
"""

import logging
import threading
import time
from typing import NamedTuple

from polar_mitm.capture.folder import (
    Ending,
    SessionEngine,
    SessionFileError,
    SessionFolder,
    SessionRecord,
    Status,
)
from polar_mitm.capture.forms import CallFileError
from polar_mitm.capture.lock import FolderLock, SessionBusy
from polar_mitm.capture.log import CallLog, CallLogError, Durability
from polar_mitm.capture.names import new_call_id, new_session_id
from polar_mitm.capture.record import Call, CallLine
from polar_mitm.capture.seal import COMPRESS_FROM, settle, take_digest, unseal

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
]

logger = logging.getLogger(__name__)

LATE_WAIT_S = 10.0
"""How long a call that ends after the close waits for whoever works on the closed session, say `polar seal`."""


class Recorded(NamedTuple):
    line: CallLine
    number: int
    """Of the line in the file, from 1."""


class SessionLog:
    """What the proxy holds of a session: takes its calls, keeps its record.

    Capture never fails a model call: whatever cannot be written poisons the session instead, says so in the log and in
    session.json, and later calls are still tried. Thread-safe. The folder is locked until `close`, which seals the
    calls.
    """

    def __init__(
        self,
        folder: SessionFolder,
        session: SessionRecord,
        *,
        durability: Durability = "call",
        compress_from: int = COMPRESS_FROM,
    ) -> None:
        self.folder = folder
        self.session = session
        """The live record. Who changes it afterwards (rewards) writes it with `folder.write`."""
        self._durability: Durability = durability
        self._compress_from = compress_from
        self._lock = threading.Lock()
        self._held: FolderLock | None = None
        self._log: CallLog | None = None
        self._unsaved = True
        try:
            self._open()
        except (OSError, CallLogError, CallFileError) as error:
            self.poison(str(error), save=not isinstance(error, SessionBusy))
        else:
            self._save()

    def record(self, call: Call) -> Recorded | None:
        """Write a call; None when it could not be written. Never raises.

        A call that ends after the session was closed is written too: it was sampled like the others.
        """
        with self._lock:
            late = self.session.status != "open"
            recorded: Recorded | None = None
            try:
                log = self._open(wait_s=LATE_WAIT_S if late else 0.0)
                recorded = Recorded(log.append(call), log.calls)
                count(self.session, log)
            except (OSError, CallLogError, CallFileError) as error:
                reason = f"call {call.identity.call_id} was not recorded: {error}"
                self.poison(reason, save=not isinstance(error, SessionBusy))
            if late:
                self._seal()
            elif self._unsaved and self._held:
                self._save()
            return recorded

    def close(self, status: Ending, *, reason: str | None = None, exit_code: int | None = None) -> SessionRecord:
        """End the session and write its record, which is returned. The first close counts. Never raises."""
        with self._lock:
            if self.session.status == "open":
                self.session.status = status
                self.session.status_reason = reason
                self.session.exit_code = exit_code
                self.session.finished_at = time.time()
                self._seal()
            return self.session

    def poison(self, reason: str, *, save: bool = True) -> None:
        """Mark the session: something of it could not be kept. The first reason stays."""
        logger.error("session %s is poisoned: %s", self.session.session_id, reason)
        if self.session.poisoned is None:
            self.session.poisoned = reason
            self._unsaved = True
            if save:
                self._save()

    def _open(self, wait_s: float = 0.0) -> CallLog:
        if self._held is None:
            self._held = FolderLock(self.folder.path, wait_s=wait_s)
        if self._log is None:
            if not self.folder.record.exists():
                self._save()  # before there are calls: recovery knows a session by its record
            unseal(self.folder, self.session)
            self._log = CallLog(self.folder.calls, durability=self._durability)
            count(self.session, self._log)
        return self._log

    def _seal(self) -> None:
        """End the writing: the record names what was written, and the folder is free for others."""
        if self._log is not None:
            self._log.close()
            self._log = None
        try:
            self._held = self._held or FolderLock(self.folder.path)
        except SessionBusy as error:
            logger.error("session %s: its record stays as it is: %s", self.session.session_id, error)
            return
        except OSError:
            self._save()  # which says what is wrong with the folder
            return
        try:
            self.session.seal = take_digest(self.folder, compress_from=self._compress_from)
        except (OSError, CallFileError) as error:
            logger.error("session %s is not sealed: %s", self.session.session_id, error)
        self._save()
        try:
            if self.session.seal and not self._unsaved:
                settle(self.folder)
        except OSError as error:
            logger.error("session %s: %s", self.session.session_id, error)
        self._release()

    def _release(self) -> None:
        """Let go of the session's files, as the end of the process would."""
        if self._log:
            self._log.close()
        if self._held:
            self._held.release()
        self._log = self._held = None

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


def count(session: SessionRecord, log: CallLog) -> None:
    """Write into the record what the log says of its file."""
    session.calls, session.prompt_tokens, session.response_tokens = log.calls, log.prompt_tokens, log.response_tokens
    session.not_carried = dict(sorted(log.not_carried.items()))
