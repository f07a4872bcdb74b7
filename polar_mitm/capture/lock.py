"""One writer for a session: whoever runs it, or closes it afterwards, holds the lock on its folder."""

import errno
import fcntl
import os
import time
from pathlib import Path
from typing import Final

from polar_mitm.capture.log import CallLogError

LOOK_AGAIN_S: Final = 0.02
UNKNOWN: Final = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF)
"""What network file systems without locks on folders say; there only the lock on calls.jsonl is left."""


class SessionBusy(CallLogError):
    """Another process, or another log of this one, is writing the session."""


class FolderLock:
    """Held until `release`, or the end of the process, however it ends.

    Waits up to `wait_s` seconds for another holder. Raises SessionBusy and OSError.
    """

    def __init__(self, folder: Path, *, wait_s: float = 0.0) -> None:
        self._handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._claim(folder, time.monotonic() + wait_s)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _claim(self, folder: Path, until: float) -> None:
        while True:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() >= until:
                    raise SessionBusy(f"{folder} is being written by another process") from error
                time.sleep(LOOK_AGAIN_S)
            except OSError as error:
                if error.errno not in UNKNOWN:
                    raise
                return
            else:
                return
