"""Taking up the run folder of a run that was killed."""

from pathlib import Path

import psutil
import pytest

from polar_mitm.capture.folder import SessionFolder, SessionRecord, Status
from polar_mitm.capture.session import SessionLog, new_session_id
from polar_mitm.rollout.resume import Cell, RunBusy, held, take_up
from polar_mitm.sandboxes.host import MARKER
from tests.capture.samples import make_call

CELL = Cell("t", "pi", "host", "proxy")


def session(out: Path, sample: int, status: Status, *, attempt: int = 1, reward: float | None = None) -> Path:
    folder = SessionFolder.create(out, new_session_id())
    record = SessionRecord(
        session_id=folder.path.name,
        task_id="t",
        sample=sample,
        attempt=attempt,
        harness="pi",
        sandbox="host",
        intercept="proxy",
        started_at=1.0,
    )
    log = SessionLog(folder, record)
    log.record(make_call("call_1", prompt_ids=[1], response_ids=[2]))
    record.reward = reward
    if status != "open":
        log.close(status)
    else:
        log._release()  # what the kernel does for a process that is killed
    return folder.path


def test_what_ran_to_its_end_is_done_and_the_rest_is_begun(tmp_path: Path) -> None:
    for sample, status in enumerate(("completed", "failed", "timeout", "error", "cancelled", "open")):
        session(tmp_path, sample, status)  # type: ignore[arg-type]  # each is a Status
    kept = take_up(tmp_path)
    assert {sample for _, _, sample in kept.done} == {0, 1, 2}
    assert kept.attempts == {(CELL, "t", sample): 1 for sample in range(6)}


def test_a_session_that_was_left_open_is_closed_as_incomplete_and_stays_so(tmp_path: Path) -> None:
    path = session(tmp_path, 0, "open")
    for _ in range(2):
        assert take_up(tmp_path).done == {}
        record = SessionFolder(path).load()
        assert record.incomplete
        assert record.calls == 1


def test_the_first_of_two_that_are_done_counts_and_the_highest_attempt(tmp_path: Path) -> None:
    first = session(tmp_path, 0, "completed", reward=1.0)
    session(tmp_path, 0, "completed", attempt=3, reward=0.0)
    kept = take_up(tmp_path)
    assert kept.done[CELL, "t", 0].folder == first
    assert kept.attempts[CELL, "t", 0] == 3


def test_what_a_killed_run_left_running_and_lying_about_goes(tmp_path: Path) -> None:
    path = session(tmp_path, 0, "open")
    scratch = Path("/tmp") / f"polar-{path.name}-left"
    scratch.mkdir()
    orphan = psutil.Popen(["sleep", "100"], env={MARKER: path.name})
    take_up(tmp_path)
    assert orphan.wait(timeout=10) == -9
    assert not scratch.exists()


def test_a_folder_that_a_run_writes_to_is_not_taken_up(tmp_path: Path) -> None:
    with held(tmp_path, alone=False):
        with held(tmp_path, alone=False):
            pass
        with pytest.raises(RunBusy, match="another run writes to"), held(tmp_path, alone=True):
            pass
    with held(tmp_path, alone=True):
        pass
