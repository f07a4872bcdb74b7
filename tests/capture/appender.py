"""A process that appends calls, for the tests that kill it or limit its disk: `python -m tests.capture.appender`."""

import json
import resource
import sys
from pathlib import Path

from polar_mitm.capture.log import CallLog, CallLogError
from polar_mitm.capture.record import Call
from polar_mitm.capture.session import SessionFolder, SessionLog, SessionRecord
from tests.capture.samples import SYSTEM, make_call, user

FILE_LIMIT = 70_000
"""Bytes; four of the calls below fit."""


def endless(path: Path) -> None:
    """Append until killed; print each call's name once it is written."""
    with CallLog(path) as log:
        while True:
            name = f"call_{log.calls}"
            log.append(make_call(name, [SYSTEM, user(name * 20_000)], [1, 2, log.calls]))
            print(name, flush=True)


def limited(path: Path) -> None:
    """Fill the disk (a file size limit stands in for it), then make room; print what became of each call."""
    log, outcomes = CallLog(path), []
    _limit(FILE_LIMIT)
    for number in range(8):
        if number == 6:
            _limit(resource.RLIM_INFINITY)
        before = path.read_bytes()
        try:
            log.append(_large(number))
            outcomes.append("written")
        except CallLogError as error:
            outcomes.append(f"{error}" if path.read_bytes() == before else "damaged")
    print(json.dumps(outcomes))


def poisoned(folder: Path) -> None:
    """The same through a session log that is closed at the end."""
    log = SessionLog(SessionFolder(folder), SessionRecord(session_id="ses_1", started_at=1.0))
    _limit(FILE_LIMIT)
    outcomes = []
    for number in range(8):
        if number == 6:
            _limit(resource.RLIM_INFINITY)
        outcomes.append(log.record(_large(number)) is not None)
    on_disk = SessionFolder(folder).load().poisoned
    log.close("completed")
    print(json.dumps([outcomes, on_disk]))


def _large(number: int) -> Call:
    return make_call(f"call_{number}", [SYSTEM, user(f"{number}" * 14_000)])


def _limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


if __name__ == "__main__":
    {"endless": endless, "limited": limited, "poisoned": poisoned}[sys.argv[1]](Path(sys.argv[2]))
