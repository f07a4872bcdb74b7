import hashlib
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from polar_mitm.capture import seal as seal_module
from polar_mitm.capture.find import find_calls
from polar_mitm.capture.folder import SessionFolder, SessionRecord
from polar_mitm.capture.forms import CallFileError, zstd
from polar_mitm.capture.lock import FolderLock, SessionBusy
from polar_mitm.capture.log import CallLog, CallLogError
from polar_mitm.capture.reader import read_calls
from polar_mitm.capture.seal import COMPRESS_FROM
from polar_mitm.capture.session import SessionLog
from tests.capture.samples import SYSTEM, make_call, user

TEXT, PACKED = "calls.jsonl", "calls.jsonl.zst"


@pytest.fixture
def folder(tmp_path: Path) -> SessionFolder:
    return SessionFolder.create(tmp_path, "ses_1")


def start(folder: SessionFolder, compress_from: int = COMPRESS_FROM) -> SessionLog:
    return SessionLog(folder, SessionRecord(session_id="ses_1", started_at=1.0), compress_from=compress_from)


def closed(folder: SessionFolder, compress_from: int = COMPRESS_FROM, calls: int = 2) -> SessionLog:
    log = start(folder, compress_from)
    for number in range(calls):
        assert log.record(make_call(f"call_{number}", [SYSTEM, user(f"{number}")]))
    log.close("completed")
    return log


def names(folder: SessionFolder) -> list[str]:
    return [call.identity.call_id for call in read_calls(folder.calls)]


def files(folder: SessionFolder) -> set[str]:
    return {path.name for path in folder.path.iterdir()}


def test_a_small_session_stays_text_with_its_digest_on_the_record(folder: SessionFolder) -> None:
    closed(folder)
    text = folder.calls.read_bytes()
    seal = folder.load().seal
    assert seal
    assert (seal.sha256, seal.bytes) == (hashlib.sha256(text).hexdigest(), len(text))
    assert files(folder) == {"session.json", TEXT}
    assert stat.S_IMODE(folder.calls.stat().st_mode) == 0o400


def test_a_large_one_is_compressed_and_reads_the_same(folder: SessionFolder) -> None:
    log = start(folder)
    for number in range(2):
        log.record(make_call(f"call_{number}", [SYSTEM, user(f"{number} " * 300_000)]))
    before, text = list(read_calls(folder.calls)), folder.calls.read_bytes()
    assert len(text) > COMPRESS_FROM
    record = log.close("completed")
    assert files(folder) == {"session.json", PACKED}
    assert folder.calls == folder.path / PACKED
    assert folder.calls.stat().st_size < len(text) / 2
    assert stat.S_IMODE(folder.calls.stat().st_mode) == 0o400
    assert record.seal
    assert record.seal.sha256 == hashlib.sha256(text).hexdigest()
    assert zstd.decompress(folder.calls.read_bytes()) == text
    for path in (folder.path / TEXT, folder.path / PACKED):
        assert list(read_calls(path)) == before
        assert find_calls(path if path.exists() else folder.path) == [folder.calls]


def test_a_session_without_calls_is_sealed_in_either_form(tmp_path: Path) -> None:
    for number, compress_from in enumerate((0, 1)):
        folder = SessionFolder.create(tmp_path, f"ses_{number}")
        assert closed(folder, compress_from, calls=0).session.seal
        assert names(folder) == []


def edited(folder: SessionFolder) -> None:
    folder.calls.chmod(0o600)
    if folder.calls.name == PACKED:
        text = zstd.decompress(folder.calls.read_bytes())
        folder.calls.write_bytes(zstd.compress(text.replace(b"Hello.", b"HELLO.")))
    else:
        folder.calls.write_bytes(folder.calls.read_bytes().replace(b"Hello.", b"HELLO."))


def with_another_line(folder: SessionFolder) -> None:
    folder.calls.chmod(0o600)
    with folder.calls.open("ab") as file:
        line = (folder.path / "line").read_bytes()
        file.write(zstd.compress(line) if folder.calls.name == PACKED else line)


def cut_between_lines(folder: SessionFolder) -> None:
    folder.calls.chmod(0o600)
    packed = folder.calls.name == PACKED
    text = zstd.decompress(folder.calls.read_bytes()) if packed else folder.calls.read_bytes()
    first = text[: text.index(b"\n") + 1]
    folder.calls.write_bytes(zstd.compress(first) if packed else first)


@pytest.mark.parametrize("compress_from", [0, COMPRESS_FROM])
@pytest.mark.parametrize("change", [edited, with_another_line, cut_between_lines])
def test_a_sealed_file_that_was_changed_is_refused_before_a_line_of_it_is_read(
    folder: SessionFolder, compress_from: int, change: Callable[[SessionFolder], None]
) -> None:
    log = start(folder, compress_from)
    log.record(make_call("a"))
    (folder.path / "line").write_bytes(folder.calls.read_bytes())
    log.record(make_call("b"))
    log.close("completed")
    change(folder)
    calls = read_calls(folder.calls)
    with pytest.raises(CallFileError, match="it was changed after its session was closed") as caught:
        next(calls)
    assert caught.value.path == folder.calls
    assert "put the original back; to use it as it is now, set `seal` in session.json to null" in str(caught.value)

    assert log.record(make_call("late")) is None  # what was changed is not made good by sealing it again
    assert log.session.poisoned
    with pytest.raises(CallFileError, match="it was changed"):
        names(folder)
    folder.write(folder.load().model_copy(update={"seal": None}))
    assert names(folder)[0] == "a"


@pytest.mark.parametrize("damage", [lambda raw: raw[:-3], lambda raw: raw[:20], lambda raw: raw + b"tail"])
def test_a_damaged_compressed_file_is_refused(folder: SessionFolder, damage: Callable[[bytes], bytes]) -> None:
    closed(folder, 0, calls=4)
    folder.calls.chmod(0o600)
    folder.calls.write_bytes(damage(folder.calls.read_bytes()))
    with pytest.raises(CallFileError, match=r"the compressed file is damaged: .* \(put the original back\)"):
        names(folder)
    folder.record.unlink()
    with pytest.raises(CallFileError, match=r"line \d: the compressed file is damaged from here on"):
        names(folder)


def test_without_its_record_a_file_is_read_unchecked(folder: SessionFolder) -> None:
    closed(folder, 0)
    folder.record.unlink()
    assert names(folder) == ["call_0", "call_1"]
    folder.record.write_text("{")
    with pytest.raises(CallFileError, match=r"session\.json: not JSON.*move it away to read the calls without it"):
        names(folder)
    folder.record.write_text('{"schema": 2}')
    with pytest.raises(CallFileError, match=r"schema version 2.*install a newer polar-mitm"):
        names(folder)


@pytest.mark.parametrize("compress_from", [0, COMPRESS_FROM])
def test_a_late_call_is_added_and_sealed_again(folder: SessionFolder, compress_from: int) -> None:
    log = closed(folder, compress_from)
    before, form = folder.load().seal, folder.calls
    assert log.record(make_call("late_1"))
    assert log.record(make_call("late_2"))
    assert names(folder) == ["call_0", "call_1", "late_1", "late_2"]
    record = folder.load()
    assert record.seal
    assert record.seal != before
    assert record.calls == 4
    assert files(folder) == {"session.json", form.name}
    assert stat.S_IMODE(form.stat().st_mode) == 0o400


def test_a_late_call_waits_for_whoever_works_on_the_session(folder: SessionFolder) -> None:
    log = closed(folder)
    held = FolderLock(folder.path)
    threading.Timer(0.2, held.release).start()
    assert log.record(make_call("late"))
    assert log.session.poisoned is None


@pytest.mark.parametrize("compress_from", [0, COMPRESS_FROM])
def test_nothing_else_writes_to_a_sealed_file(folder: SessionFolder, compress_from: int) -> None:
    closed(folder, compress_from)
    with pytest.raises(CallLogError, match="is sealed: its session was closed"):
        CallLog(folder.path / TEXT)
    assert files(folder) == {"session.json", folder.calls.name}


def test_a_second_log_leaves_a_running_session_alone(folder: SessionFolder) -> None:
    first = start(folder)
    before = folder.record.read_bytes()
    second = SessionLog(folder, SessionRecord(session_id="ses_1", started_at=2.0))
    assert second.record(make_call("b")) is None
    second.close("completed")
    assert second.session.poisoned == f"{folder.path} is being written by another process"
    assert folder.record.read_bytes() == before
    with pytest.raises(SessionBusy):
        FolderLock(folder.path)
    first.record(make_call("a"))
    assert first.close("completed").poisoned is None
    assert names(folder) == ["a"]


def test_what_can_not_be_compressed_stays_text(
    folder: SessionFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(seal_module, "pack", refuse)
    log = closed(folder, 0)
    assert "calls.jsonl stays uncompressed: [Errno 28] No space left on device" in caplog.text
    assert log.session.seal == folder.load().seal is not None
    assert files(folder) == {"session.json", TEXT}
    assert names(folder) == ["call_0", "call_1"]


def test_a_compressed_file_that_does_not_give_back_the_text_never_takes_its_place(
    folder: SessionFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seal_module, "pack", lambda source, target: target.write(zstd.compress(b"something else")))
    closed(folder, 0)
    assert files(folder) == {"session.json", TEXT}
    assert names(folder) == ["call_0", "call_1"]


def test_readers_beside_late_calls_see_no_changed_file(folder: SessionFolder) -> None:
    log = closed(folder, 0)
    added = 30
    writer = threading.Thread(target=lambda: [log.record(make_call(f"late_{number}")) for number in range(added)])
    writer.start()
    seen = [2]
    while writer.is_alive():
        seen.append(len(names(folder)))
    writer.join()
    assert seen == sorted(seen)
    assert len(names(folder)) == 2 + added
