import json
import logging
import shutil
import stat
from pathlib import Path

import pytest
from pydantic import ValidationError

from polar_mitm.capture.lock import FolderLock
from polar_mitm.capture.log import CallLog
from polar_mitm.capture.reader import read_calls
from polar_mitm.capture.record import Lost
from polar_mitm.capture.session import (
    SessionEngine,
    SessionFileError,
    SessionFolder,
    SessionLog,
    SessionRecord,
    new_call_id,
    new_session_id,
)
from tests.capture.samples import make_call


@pytest.fixture
def folder(tmp_path: Path) -> SessionFolder:
    return SessionFolder.create(tmp_path / "runs" / "today", "ses_1")


def opened() -> SessionRecord:
    return SessionRecord(session_id="ses_1", task_id="hello", sample=0, started_at=100.0)


def test_a_new_folder_is_its_owners_alone_and_is_never_shared(folder: SessionFolder) -> None:
    assert folder.path.name == "ses_1"
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    with pytest.raises(FileExistsError):
        SessionFolder.create(folder.path.parent, "ses_1")


def test_a_record_is_read_back_as_it_was_written(folder: SessionFolder) -> None:
    record = opened()
    record.engine = SessionEngine(url="http://127.0.0.1:8000", model="tiny", engine_version="0.11.0")
    record.reward, record.rewards = 0.5, {"tests": 1.0, "style": 0.0}
    folder.write(record)
    assert folder.load() == record
    assert json.loads(folder.record.read_text())["schema"] == 1
    assert stat.S_IMODE(folder.record.stat().st_mode) == 0o600


def test_a_record_is_replaced_in_one_step_and_leaves_nothing_behind(
    folder: SessionFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write(opened())
    before = folder.record.read_bytes()

    def refuse(_: int) -> None:
        assert folder.record.read_bytes() == before
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        folder.write(opened().model_copy(update={"status": "failed"}))
    assert folder.record.read_bytes() == before
    assert [path.name for path in folder.path.iterdir()] == ["session.json"]


def test_a_reward_that_is_no_number_is_refused_where_it_is_set() -> None:
    record = opened()
    with pytest.raises(ValidationError, match="finite number"):
        record.reward = float("nan")
    with pytest.raises(ValidationError, match="finite number"):
        record.rewards = {"tests": float("inf")}


@pytest.mark.parametrize(
    ("text", "what", "mend"),
    [
        ('{"schema":1,"session_id":"s"}', "started_at: Field required", "put the original back"),
        ("{", "not JSON", "put the original back"),
        ('{"schema":2,"new":1}', "it has schema version 2, and this polar reads up to 1", "install a newer polar-mitm"),
    ],
)
def test_a_bad_record_is_refused_with_the_mend(folder: SessionFolder, text: str, what: str, mend: str) -> None:
    folder.record.write_text(text)
    with pytest.raises(SessionFileError, match=what) as caught:
        folder.load()
    assert (caught.value.path, caught.value.mend) == (folder.record, mend)


def test_a_log_writes_calls_counts_them_and_closes_the_record(folder: SessionFolder) -> None:
    log = SessionLog(folder, opened())
    assert folder.load().status == "open"
    first = log.record(make_call("a", prompt_ids=[1, 2], response_ids=[3]))
    second = log.record(make_call("b", prompt_ids=[1, 2, 3, 4], response_ids=[5]))
    assert first
    assert second
    assert (first.line.identity.call_id, first.number) == ("a", 1)
    assert (second.line.identity.call_id, second.number) == ("b", 2)
    record = log.close("timeout", reason="no end after 60 s", exit_code=-9)
    assert record == folder.load()
    assert (record.status, record.status_reason, record.exit_code) == ("timeout", "no end after 60 s", -9)
    assert (record.calls, record.prompt_tokens, record.response_tokens) == (2, 6, 2)
    assert record.finished_at
    assert record.poisoned is None


def test_what_the_model_was_not_given_is_counted_by_field_once_a_call(folder: SessionFolder) -> None:
    log = SessionLog(folder, opened())
    for name, fields in {"one": ["seed", "tools.x", "seed"], "two": ["seed"], "three": []}.items():
        call = make_call(name)
        call.request.not_carried = [Lost(field=field, why="because") for field in fields]
        log.record(call)
    log.close("completed")
    assert folder.load().not_carried == {"seed": 2, "tools.x": 1}
    assert SessionLog(folder, opened()).session.not_carried == {"seed": 2, "tools.x": 1}


def test_the_first_close_counts(folder: SessionFolder) -> None:
    log = SessionLog(folder, opened())
    log.close("timeout", reason="first")
    log.close("completed", reason="second")
    assert (folder.load().status, folder.load().status_reason) == ("timeout", "first")


def test_a_call_that_ends_after_the_close_is_still_written(folder: SessionFolder) -> None:
    log = SessionLog(folder, opened())
    log.record(make_call("a"))
    log.close("timeout")
    log.session.reward = 0.0
    assert log.record(make_call("late"))
    assert [call.identity.call_id for call in read_calls(folder.calls)] == ["a", "late"]
    record = folder.load()
    assert (record.calls, record.status, record.reward, record.poisoned) == (2, "timeout", 0.0, None)
    FolderLock(folder.path).release()


def test_a_log_on_a_folder_with_calls_goes_on_counting(folder: SessionFolder) -> None:
    with CallLog(folder.calls) as calls:
        calls.append(make_call("a"))
    log = SessionLog(folder, opened())
    log.record(make_call("b"))
    assert log.close("completed").calls == 2


def test_an_unwritable_folder_poisons_the_session_and_fails_nothing(
    folder: SessionFolder, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(folder.path)
    folder.path.write_text("a file where the folder was")
    log = SessionLog(folder, opened())
    assert log.record(make_call("a")) is None
    assert log.session.poisoned
    first = log.session.poisoned
    assert any(entry.levelno == logging.ERROR and "ses_1 is poisoned" in entry.message for entry in caplog.records)

    folder.path.unlink()
    folder.path.mkdir()
    assert log.record(make_call("b"))
    assert folder.load().poisoned == first
    assert log.close("completed").poisoned == first
    assert [call.identity.call_id for call in read_calls(folder.calls)] == ["b"]


def test_a_call_that_cannot_be_written_keeps_the_first_reason(folder: SessionFolder) -> None:
    log = SessionLog(folder, opened())
    for name in ("a", "b"):
        assert log.record(make_call(name, [{"role": "user", "content": object()}])) is None
    assert log.record(make_call("c"))
    assert folder.load().poisoned
    record = log.close("completed")
    assert record.poisoned
    assert record.poisoned.startswith("call a was not recorded: call a is not JSON")
    assert record.calls == 1


def test_ids_sort_by_time_and_never_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_000_000_000)
    early = {new_session_id() for _ in range(1000)}
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_001_000_000)
    late = new_session_id()
    assert len(early) == 1000
    assert max(early) < late
    assert late.startswith("ses_018bcfe56801")
    assert len(late) == len("ses_") + 26
    assert set(late.removeprefix("ses_")) | set(new_call_id().removeprefix("call_")) <= set("0123456789abcdef")
