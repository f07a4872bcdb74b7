"""Reports: what is said of a session's end, whatever end that was, and what a later life of the gateway makes of it."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from polar_mitm.capture.folder import SessionFolder
from polar_mitm.capture.record import Call
from polar_mitm.capture.session import SessionLog, SessionRecord
from polar_mitm.client.models import StageTimes
from polar_mitm.rollout.gateway import reporting
from polar_mitm.rollout.gateway.pipeline import Held
from polar_mitm.rollout.gateway.reporting import (
    ASSIGNMENT,
    REPORT,
    answered,
    assignments_left,
    remember,
    report_left,
    report_of,
)
from tests.capture.samples import make_call
from tests.rollout.gateway.attempts import Attempt, assignment

KILLED = """
import os, signal, sys
from pathlib import Path
from polar_mitm.capture.session import SessionFolder, SessionLog, SessionRecord
from polar_mitm.rollout.gateway.reporting import remember
from tests.capture.samples import make_call
from tests.rollout.gateway.attempts import assignment

folder = SessionFolder.create(Path(sys.argv[1]), "ses_1")
log = SessionLog(folder, SessionRecord(session_id="ses_1", task_id="tsk_1", sandbox="host", started_at=1.0))
remember(folder.path, assignment())
log.record(make_call("call_1"))
if sys.argv[2] == "closed":
    log.session.reward = 1.0
    log.close("completed", exit_code=0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def held(tmp_path: Path, *calls: Call) -> Held:
    folder = SessionFolder.create(tmp_path / "sessions", "ses_1")
    record = SessionRecord(session_id="ses_1", task_id="tsk_1", started_at=1.0)
    log = SessionLog(folder, record, durability="none")
    remember(folder.path, assignment())
    for call in calls:
        log.record(call)
    return Held(assignment(), stage="done", ended_in="grading", sample=Attempt(folder, log, {}, {}))


def attempt(of: Held) -> Attempt:
    assert isinstance(of.sample, Attempt)
    return of.sample


def killed(tmp_path: Path, how: str) -> Path:
    """The sessions' folder of a gateway that was killed while a session was open, or before it was reported."""
    sessions = tmp_path / "sessions"
    run = subprocess.run([sys.executable, "-c", KILLED, str(sessions), how], check=False, timeout=60, cwd=Path.cwd())
    assert run.returncode == -signal.SIGKILL
    return sessions


def test_a_report_has_the_reward_the_counts_the_traces_and_the_files(tmp_path: Path) -> None:
    session = held(tmp_path, make_call("call_1"))
    attempt(session).log.session.reward = 0.5
    attempt(session).log.session.rewards = {"tests": 0.5}
    attempt(session).log.close("completed", exit_code=0)
    report = report_of(session, "i1")
    assert (report.status, report.reward, report.rewards, report.calls) == ("completed", 0.5, {"tests": 0.5}, 1)
    assert report.trained_tokens
    assert report.response_tokens
    names = {file.name for file in report.files}
    assert {"session.json", "calls.jsonl", "trajectory.json"} <= names
    assert report.record["status"] == "completed"


def test_a_session_that_ran_out_of_time_has_its_calls_its_traces_and_its_reward(tmp_path: Path) -> None:
    session = held(tmp_path, make_call("call_1"))
    attempt(session).log.session.reward = 1.0
    attempt(session).log.close("timeout", reason="stopped after 5 s")
    report = report_of(session, "i1")
    assert (report.status, report.reward, report.calls) == ("timeout", 1.0, 1)
    assert report.masked == "timeout: stopped after 5 s"
    assert "trajectory.json" in {file.name for file in report.files}


def test_a_session_without_a_reward_says_why(tmp_path: Path) -> None:
    session = held(tmp_path, make_call("call_1"))
    attempt(session).log.session.evaluation_error = "grading took longer than the 1 s that it may"
    attempt(session).log.close("completed")
    report = report_of(session, "i1")
    assert (report.reward, report.evaluation_error) == (None, "grading took longer than the 1 s that it may")


def test_a_session_that_was_never_opened_is_reported_all_the_same(tmp_path: Path) -> None:
    refused = Held(assignment(), stage="done", ended_in="preparing", trouble="there is no harness pi here")
    report = report_of(refused, "i1")
    assert (report.status, report.status_reason, report.calls) == ("error", "there is no harness pi here", 0)
    refused.cancelled = True
    assert report_of(refused, "i1").status == "cancelled"


def test_a_session_that_nobody_closed_is_closed_as_error(tmp_path: Path) -> None:
    report = report_of(held(tmp_path, make_call("call_1")), "i1")
    assert (report.status, report.status_reason) == ("error", "polar failed: the session was left open")


def test_traces_that_cannot_be_built_mask_the_session_and_the_reward_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such token")

    monkeypatch.setattr(reporting, "build", fail)
    session = held(tmp_path, make_call("call_1"))
    attempt(session).log.session.reward = 1.0
    attempt(session).log.close("completed")
    report = report_of(session, "i1")
    assert (report.reward, report.masked) == (1.0, "its traces could not be built: no such token")


def test_traces_that_take_too_long_are_left_out_and_the_reward_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(reporting, "build", lambda *_: over.wait(60))
    session = held(tmp_path, make_call("call_1"))
    session.assignment = assignment(grading_s=0.1)
    attempt(session).log.session.reward = 1.0
    attempt(session).log.close("completed")
    report = report_of(session, "i1")
    over.set()
    said = "its traces were not built within the 0.1 s that grading may take"
    assert (report.reward, report.calls, report.masked) == (1.0, 1, said)
    assert "trajectory.json" not in {file.name for file in report.files}


def test_without_room_there_is_no_report_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    session = held(tmp_path, make_call("call_1"))
    attempt(session).log.close("completed")
    with monkeypatch.context() as patch:
        patch.setattr(reporting, "write_trajectories", full)
        with pytest.raises(OSError, match="No space left"):
            report_of(session, "i1")
    assert report_of(session, "i1").status == "completed"


def test_the_next_life_reports_a_session_that_was_cut_off_as_incomplete(tmp_path: Path) -> None:
    sessions = killed(tmp_path, "open")
    [(path, given)] = list(assignments_left(sessions))
    report = report_left(path, given, "i2")
    assert report
    assert (report.session_id, report.incarnation, report.status) == ("ses_1", "i2", "error")
    assert report.status_reason
    assert report.status_reason.startswith("incomplete:")
    assert (report.calls, report.ended_in, report.times.finished_at is not None) == (1, "running", True)
    assert "calls.jsonl" in {file.name for file in report.files}


def test_the_next_life_reports_a_session_that_had_ended_as_it_ended(tmp_path: Path) -> None:
    sessions = killed(tmp_path, "closed")
    [(path, given)] = list(assignments_left(sessions))
    report = report_left(path, given, "i2")
    assert report
    assert (report.status, report.reward, report.ended_in) == ("completed", 1.0, "grading")


def test_a_report_that_was_written_is_sent_by_the_next_life_word_for_word(tmp_path: Path) -> None:
    session = held(tmp_path, make_call("call_1"))
    attempt(session).log.session.reward = 1.0
    attempt(session).log.close("completed")
    session.times = StageTimes(running_at=2.0)
    first = report_of(session, "i1")
    [(path, given)] = list(assignments_left(tmp_path / "sessions"))
    again = report_left(path, given, "i2")
    assert again == first.model_copy(update={"incarnation": "i2"})


@pytest.mark.parametrize("keep", [True, False])
def test_nothing_is_sent_again_of_what_was_answered(tmp_path: Path, keep: bool) -> None:
    session = held(tmp_path, make_call("call_1"))
    attempt(session).log.close("completed")
    report_of(session, "i1")
    path = attempt(session).folder.path
    answered(path, keep=keep)
    assert list(assignments_left(tmp_path / "sessions")) == []
    assert path.exists() == keep
    assert (path / REPORT).exists() == keep


def test_what_cannot_be_read_is_left_to_the_server_which_begins_it_again(tmp_path: Path) -> None:
    session = held(tmp_path, make_call("call_1"))
    attempt(session).log.close("completed")
    path = attempt(session).folder.path
    (path / "session.json").write_text("{")
    assert report_left(path, assignment(), "i2") is None
    (path / ASSIGNMENT).write_text("{")
    assert list(assignments_left(tmp_path / "sessions")) == []


def test_an_assignment_that_there_is_no_room_for_leaves_nothing_to_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SessionFolder.create(tmp_path / "sessions", "ses_1")

    def torn(path: Path, text: str) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", torn)
    with pytest.raises(OSError, match="No space left"):
        remember(folder.path, assignment())
    assert list((tmp_path / "sessions").glob("*/" + ASSIGNMENT)) == []
