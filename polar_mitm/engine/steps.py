"""The plumbing of an installation: one program run after another into a log file, and one polar at a time.

What is installed, and how, is `install`'s and `models`' business.
"""

import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from polar_mitm.errors import NotReady
from polar_mitm.home import home

type Say = Callable[[str], None]
"""Takes one line of progress for a person."""

_SHOWN_LINES: Final = 12
_LOCK_WAIT_S: Final = 3600.0
LOCK_POLL_S: Final = 0.2
_NOT_INHERITED: Final = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
"""What would make another Python find this one's packages."""


class InstallFailed(NotReady):
    """Something could not be installed. The message says what, shows the log's last lines and names the log."""


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment variables for a program that runs in another Python's environment."""
    return {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED} | dict(extra or {})


def log_file(name: str) -> Path:
    folder = home() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.log"


def run_step(what: str, command: Sequence[str], *, log: Path, timeout_s: float = 3600) -> None:
    """Run the program, its output appended to the log. InstallFailed when it fails or does not end in time."""
    with log.open("ab") as output:
        output.write(f"\n== {what}\n".encode())
        output.flush()
        try:
            result = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(),
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise InstallFailed(_report(f"{what} did not end within {timeout_s:.0f} s", log)) from error
        except OSError as error:
            raise InstallFailed(f"{what}: {command[0]} cannot be run: {error.strerror}") from error
    if result.returncode != 0:
        raise InstallFailed(_report(f"{what} failed (exit {result.returncode})", log))


def last_lines(log: Path, count: int = _SHOWN_LINES) -> list[str]:
    """The log's last lines that are not blank; none when there is no log."""
    if not log.exists():
        return []
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line.rstrip() for line in lines if line.strip()][-count:]


class Lock:
    """A lock file, so that two polars do not do the same work at once. `what` says what work, for a person.

    The lock is given up by closing it, and by the end of this process, however it ends.
    """

    def __init__(self, file: Path, say: Say, what: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file
        self._say = say
        self._what = what
        self._handle = file.open("ab")
        self._began = time.monotonic()
        self._told = False

    def acquired(self) -> bool:
        """Try to take it, without waiting. InstallFailed when an hour has passed since the first try."""
        try:
            fcntl.flock(self._handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() - self._began > _LOCK_WAIT_S:
                message = f"another polar has been busy with {self._what} for an hour (lock: {self._file})"
                raise InstallFailed(message) from None
            if not self._told:
                self._say(f"waiting for another polar that is busy with {self._what}")
                self._told = True
            return False
        return True

    def close(self) -> None:
        self._handle.close()


@contextmanager
def exclusive(file: Path, say: Say, what: str) -> Iterator[None]:
    """Hold the lock; waits for it, and blocks meanwhile."""
    with closing(Lock(file, say, what)) as lock:
        while not lock.acquired():
            time.sleep(LOCK_POLL_S)
        yield


def _report(headline: str, log: Path) -> str:
    return "\n".join([f"{headline}:", *(f"  {line}" for line in last_lines(log)), f"The whole log: {log}"])
