from pathlib import Path

import pytest

from polar_mitm.capture.folder import SessionFileError, SessionFolder, SessionRecord
from polar_mitm.capture.forms import CallFileError, NewerCalls
from polar_mitm.capture.log import CallLog
from polar_mitm.capture.reader import read_calls
from polar_mitm.capture.recover import SessionBusy, recover, recover_below
from polar_mitm.capture.session import SessionLog
from tests.capture.samples import make_call


@pytest.fixture
def folder(tmp_path: Path) -> SessionFolder:
    return SessionFolder.create(tmp_path, "ses_1")


def opened() -> SessionRecord:
    return SessionRecord(session_id="ses_1", task_id="hello", sample=0, started_at=100.0)


def test_a_session_whose_process_is_gone_is_closed_as_failed_and_its_torn_call_cut(folder: SessionFolder) -> None:
    folder.write(opened())
    with CallLog(folder.calls) as log:
        log.append(make_call("a", prompt_ids=[1, 2], response_ids=[3]))
    whole = folder.calls.read_bytes()
    folder.calls.write_bytes(whole + b'{"schema":1,"iden')
    (folder.path / ".session-x.tmp").touch()

    record = recover(folder.path)
    assert record.status == "failed"
    assert record.status_reason == (
        "incomplete: the process that ran it ended before the session did; its last call was cut off"
    )
    assert (record.calls, record.prompt_tokens, record.response_tokens, record.task_id) == (1, 2, 1, "hello")
    assert record == folder.load() == recover(folder.path)
    assert folder.calls.read_bytes() == whole
    assert not (folder.path / ".session-x.tmp").exists()


def test_a_session_that_made_no_call_is_recovered_too(folder: SessionFolder) -> None:
    folder.write(opened())
    record = recover(folder.path)
    assert (record.status, record.calls, record.finished_at) == ("failed", 0, 100.0)


def test_a_session_killed_before_its_record_was_written_gets_one(folder: SessionFolder) -> None:
    with CallLog(folder.calls) as log:
        log.append(make_call("a"))
    record = recover(folder.path)
    assert (record.session_id, record.status, record.calls) == ("ses_1", "failed", 1)


def test_a_running_session_is_not_recovered(folder: SessionFolder) -> None:
    log = SessionLog(folder, opened())
    with pytest.raises(SessionBusy, match="is being written by another process"):
        recover(folder.path)
    assert folder.load().status == "open"
    log.close("completed")


def test_a_closed_session_is_left_as_it_is(folder: SessionFolder) -> None:
    SessionLog(folder, opened()).close("completed", exit_code=0)
    before = folder.record.read_bytes()
    assert recover(folder.path).status == "completed"
    assert folder.record.read_bytes() == before


def test_a_folder_that_is_no_sessions_is_refused_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(SessionFileError, match=r"neither session\.json nor calls\.jsonl"):
        recover(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_recovered_session_is_sealed(folder: SessionFolder) -> None:
    folder.write(opened())
    with CallLog(folder.calls) as log:
        log.append(make_call("a"))
    assert recover(folder.path, compress_from=0).seal
    assert folder.calls.name == "calls.jsonl.zst"
    assert [call.identity.call_id for call in read_calls(folder.calls)] == ["a"]


def test_a_session_closed_by_a_process_that_died_before_the_seal_is_sealed_and_counted(folder: SessionFolder) -> None:
    folder.write(opened().model_copy(update={"status": "timeout"}))
    with CallLog(folder.calls) as log:
        log.append(make_call("a"))
    with folder.calls.open("ab") as file:
        file.write(b"torn")
    record = recover(folder.path)
    assert record.seal
    assert (record.status, record.calls) == ("timeout", 1)
    assert record.poisoned
    assert record.poisoned.endswith("its last call was cut off")


def test_calls_that_cannot_be_read_are_kept_as_they_are_and_the_session_is_poisoned(folder: SessionFolder) -> None:
    folder.write(opened())
    folder.calls.write_bytes(b"edited\n" * 2)
    record = recover(folder.path)
    assert record.status == "failed"
    assert record.poisoned
    assert "calls.jsonl, line 1: not JSON" in record.poisoned
    assert folder.calls.read_bytes() == b"edited\n" * 2
    with pytest.raises(CallFileError, match="line 1: not JSON"):
        list(read_calls(folder.calls))


def test_compressed_calls_that_are_damaged_are_kept_as_they_are_and_the_session_is_poisoned(
    folder: SessionFolder,
) -> None:
    folder.write(opened())
    packed = folder.path / "calls.jsonl.zst"
    packed.write_bytes(b"(\xb5/\xfd cut")
    for _ in range(2):
        record = recover(folder.path)
        assert (record.status, record.seal) == ("failed", None)
        assert record.poisoned
        assert record.poisoned.startswith(f"{packed}: the compressed file is damaged: ")
        assert packed.read_bytes() == b"(\xb5/\xfd cut"
        assert {path.name for path in folder.path.iterdir()} == {"session.json", packed.name}
    late = SessionLog(folder, folder.load())
    assert late.record(make_call("late")) is None


def test_calls_of_a_newer_version_are_left_to_it(folder: SessionFolder) -> None:
    folder.write(opened())
    folder.calls.write_bytes(b'{"schema":99}\n')
    with pytest.raises(NewerCalls, match="install a newer polar-mitm"):
        recover(folder.path)
    assert folder.load().status == "open"


def test_below_a_folder_only_sessions_without_a_process_are_closed(tmp_path: Path) -> None:
    for status in ("open", "completed"):
        SessionFolder.create(tmp_path, f"ses_{status}").write(opened().model_copy(update={"status": status}))
    named_so = opened().model_copy(update={"status": "failed", "task_id": "open"})
    SessionFolder.create(tmp_path, "ses_named_so").write(named_so)
    SessionFolder.create(tmp_path, "ses_bare").calls.touch()
    SessionFolder.create(tmp_path, "ses_damaged").record.write_text('{"status": "open"}')
    running = SessionLog(SessionFolder.create(tmp_path, "ses_running"), opened())
    damaged, dead = recover_below(tmp_path)
    assert damaged.closed is None
    assert "ses_damaged/session.json: session_id: Field required" in damaged.trouble
    assert dead.folder.path.name == "ses_open"
    assert dead.closed == dead.folder.load()
    assert dead.closed.status == "failed"
    assert {path.name for path in (tmp_path / "ses_bare").iterdir()} == {"calls.jsonl"}
    assert running.folder.load().status == "open"
    assert [met.folder.path.name for met in recover_below(tmp_path)] == ["ses_damaged"]
    running.close("completed")
