"""Kills a process at every point of closing a session, of a late call, of recovery: `python -m tests.capture.killer`.

The points are the lines of the files in LINES as they are run, and CPython's audit events: each opening, renaming,
removing, locking and truncating of a file is one. The work is done by a forked process, which kills itself at the n-th;
n goes up until the work gets through. Nothing waits for the disk, which outlives a killed process.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from polar_mitm.capture.folder import SessionFolder, SessionRecord
from polar_mitm.capture.reader import read_calls
from polar_mitm.capture.recover import recover
from polar_mitm.capture.session import SessionLog
from tests.capture.samples import SYSTEM, make_call, user

type Report = Callable[[str], None]
LINES = ("/capture/seal.py", "/capture/forms.py", "/capture/session.py", "/capture/recover.py")
STEP = 2
"""Every second point: a file is never whole, or lacking, for one line only."""
STATUS = {"close": ("completed", "failed"), "late": ("timeout",), "recover": ("failed",)}


def kill_everywhere(work: str, compress_from: int, out: Path) -> int:
    """How many kills it took until the work got through."""
    kills = 0
    while True:
        folder = SessionFolder.create(out, f"ses_{kills}")
        through, written = _in_a_process(work, folder, compress_from, kills * STEP)
        _assert_whole(folder, work, written, compress_from)
        if through:
            return kills
        kills += 1


def _do(work: str, folder: SessionFolder, compress_from: int, report: Report, arm: Callable[[], None]) -> None:
    log = SessionLog(folder, SessionRecord(session_id=folder.path.name, started_at=1.0), compress_from=compress_from)
    for name in ("a", "b"):
        assert log.record(make_call(name, [SYSTEM, user(name * 100)]))
        report(name)
    if work == "close":
        arm()
        log.close("completed")
    elif work == "late":
        log.close("timeout")
        arm()
        assert log.record(make_call("late"))
        report("late")
    else:
        log._release()
        folder.calls.open("ab").write(b'{"torn')
        arm()
        recover(folder.path, compress_from=compress_from)


def _in_a_process(work: str, folder: SessionFolder, compress_from: int, kill_at: int) -> tuple[bool, list[str]]:
    """Whether it got through before the n-th event, and the calls that it had written by then."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _do(work, folder, compress_from, lambda name: _tell(writer, name), lambda: _arm(kill_at))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        written = pipe.read().split()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False, written
    assert os.waitstatus_to_exitcode(status) == 0
    return True, written


def _tell(writer: int, name: str) -> None:
    os.write(writer, f"{name}\n".encode())


def _arm(kill_at: int) -> None:
    left = kill_at

    def point() -> None:
        nonlocal left
        left -= 1
        if left == -1:
            os.kill(os.getpid(), signal.SIGKILL)

    def line(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            point()
        return line

    def call(frame: FrameType, event: str, _: object) -> Any:
        return line if frame.f_code.co_filename.endswith(LINES) else None

    def audit(event: str, _: object) -> None:
        if event == "open" or event.startswith(("os.", "fcntl.")):
            point()

    sys.settrace(call)
    sys.addaudithook(audit)


def _assert_whole(folder: SessionFolder, work: str, written: list[str], compress_from: int) -> None:
    """Every call is there before anyone mends anything, and after; then it is closed, sealed and in one form."""
    before = [call.identity.call_id for call in read_calls(folder.calls)]
    assert before[: len(written)] == written, (before, written)
    record = recover(folder.path, compress_from=compress_from)
    assert [call.identity.call_id for call in read_calls(folder.calls)] == before
    assert record == folder.load()
    assert record.seal
    assert record.calls == len(before)
    assert record.status in STATUS[work], record
    left = {path.name for path in folder.path.iterdir() if ".torn-" not in path.name}
    assert left == {"session.json", "calls.jsonl.zst" if compress_from == 0 else "calls.jsonl"}, left


def _no_sync(file: int) -> None:
    pass


if __name__ == "__main__":
    os.fsync = os.fdatasync = _no_sync
    print(kill_everywhere(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
