import json
import math
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from polar_mitm.capture.log import CallLog, CallLogError
from polar_mitm.capture.reader import CallFileError, read_calls
from tests.capture.samples import SYSTEM, assistant, make_call, user


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ses_1" / "calls.jsonl"


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


TURN_1 = [SYSTEM, user("Hi.")]
TURN_2 = [*TURN_1, assistant("Hello."), user("More.")]


def test_a_call_is_one_line_in_a_file_that_only_its_owner_reads(path: Path) -> None:
    with CallLog(path) as log:
        log.append(make_call("a"))
        log.append(make_call("b"))
        assert (log.calls, log.prompt_tokens, log.response_tokens) == (2, 6, 4)
        assert log.not_carried == {"thinking": 2}
    assert [line["identity"]["call_id"] for line in written(path)] == ["a", "b"]
    assert path.read_bytes().endswith(b"}\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_returned_line_is_the_written_one(path: Path) -> None:
    with CallLog(path) as log:
        line = log.append(make_call("a"))
    assert json.loads(line.model_dump_json(by_alias=True)) == written(path)[0]


def test_an_invalid_call_is_stored_and_marked_whatever_its_caller_said(path: Path) -> None:
    call = make_call("a", response_ids=[4, 5], logprobs=[-0.5])
    call.checks.valid, call.checks.invalid_reason = True, None
    with CallLog(path) as log:
        log.append(call)
    (read,) = read_calls(path)
    assert (read.checks.valid, read.checks.invalid_reason) == (False, "1 logprobs for 2 response ids")
    assert read.response == call.response


def test_a_reason_that_the_caller_gave_is_kept(path: Path) -> None:
    call = make_call("a")
    call.checks.valid, call.checks.invalid_reason = False, "decoded text differs"
    with CallLog(path) as log:
        assert log.append(call).checks.invalid_reason == "decoded text differs"


def test_logprobs_that_are_not_finite_are_spelled_out_and_read_back(path: Path) -> None:
    with CallLog(path) as log:
        log.append(make_call("a", response_ids=[1, 2, 3, 4], logprobs=[math.nan, -math.inf, math.inf, -0.5]))
    assert written(path)[0]["response"]["logprobs"] == ["NaN", "-Infinity", "Infinity", -0.5]
    (read,) = read_calls(path)
    assert read.response
    assert math.isnan(read.response.logprobs[0])
    assert read.response.logprobs[1:] == [-math.inf, math.inf, -0.5]


def test_lone_surrogates_in_a_message_are_kept(path: Path) -> None:
    with CallLog(path) as log:
        log.append(make_call("a", [user("cut emoji: \ud83d")]))
    with CallLog(path) as log:
        log.append(make_call("b", [user("cut emoji: \ud83d")]))
    assert [call.request.messages for call in read_calls(path)] == [[user("cut emoji: \ud83d")]] * 2
    assert written(path)[1]["request"]["new"] == {}


def test_a_call_that_is_not_json_is_refused_and_the_log_goes_on(path: Path) -> None:
    nested: dict[str, Any] = {}
    nested["itself"] = nested
    with CallLog(path) as log:
        for body in ({"role": "user", "content": object()}, {"role": "user", "content": nested}):
            with pytest.raises(CallLogError, match="call a is not JSON"):
                log.append(make_call("a", [body]))
        log.append(make_call("b"))
    assert [call.identity.call_id for call in read_calls(path)] == ["b"]


@pytest.mark.parametrize("tail", [b'{"schema":1,"identity":{"sess', b"not json\n", b"\0\0\0\0", b'"cut\xff\n'])
def test_a_torn_last_line_is_set_aside_and_the_file_goes_on(path: Path, tail: bytes) -> None:
    with CallLog(path) as log:
        log.append(make_call("a"))
    whole = path.read_bytes()
    for number in (1, 2):
        path.write_bytes(whole + tail)
        with CallLog(path) as log:
            assert log.torn
            assert path.read_bytes() == whole
        aside = path.with_name(f"calls.jsonl.torn-{number}")
        assert aside.read_bytes() == tail
        assert stat.S_IMODE(aside.stat().st_mode) == 0o600
    with CallLog(path) as log:
        assert not log.torn
        log.append(make_call("b"))
    assert [call.identity.call_id for call in read_calls(path)] == ["a", "b"]


def test_a_file_damaged_in_the_middle_is_not_continued(path: Path) -> None:
    with CallLog(path) as log:
        log.append(make_call("a"))
    damaged = b"not json\n" + path.read_bytes()
    path.write_bytes(damaged)
    with pytest.raises(CallFileError, match="line 1: not JSON"):
        CallLog(path)
    assert path.read_bytes() == damaged


def test_a_file_has_one_log_at_a_time(path: Path) -> None:
    with CallLog(path), pytest.raises(CallLogError, match="is being written by another log"):
        CallLog(path)
    CallLog(path).close()


def test_a_closed_log_takes_no_calls(path: Path) -> None:
    log = CallLog(path)
    log.close()
    log.close()
    with pytest.raises(CallLogError, match="the log is closed"):
        log.append(make_call("a"))


def test_writing_to_a_deleted_file_is_an_error(path: Path) -> None:
    with CallLog(path) as log:
        path.unlink()
        with pytest.raises(CallLogError, match="the file was deleted"):
            log.append(make_call("a"))


def test_a_line_is_one_write_and_is_on_the_disk_before_append_returns(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    write, sync = os.write, os.fdatasync

    def noted_write(file: int, text: bytes) -> int:
        done.append("write")
        return write(file, text)

    def noted_sync(file: int) -> None:
        done.append("sync")
        sync(file)

    monkeypatch.setattr(os, "write", noted_write)
    monkeypatch.setattr(os, "fdatasync", noted_sync)
    with CallLog(path) as log:
        log.append(make_call("a", [user("long " * 200_000)]))
    assert done == ["write", "sync"]


def test_a_line_that_the_disk_refuses_at_the_last_moment_is_taken_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: int) -> None:
        raise OSError(28, "No space left on device")

    with CallLog(path) as log:
        log.append(make_call("a"))
        whole = path.read_bytes()
        with monkeypatch.context() as broken, pytest.raises(CallLogError, match="No space left"):
            broken.setattr(os, "fdatasync", refuse)
            log.append(make_call("b"))
        assert path.read_bytes() == whole
        assert log.append(make_call("c", TURN_2)).parent_call_id == "a"
    assert [call.identity.call_id for call in read_calls(path)] == ["a", "c"]


def test_what_could_not_be_taken_back_is_cut_before_the_next_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with CallLog(path) as log:
        log.append(make_call("a"))
        with monkeypatch.context() as broken, pytest.raises(CallLogError, match="Input/output error"):
            broken.setattr(os, "fdatasync", fail)
            broken.setattr(os, "ftruncate", fail)
            log.append(make_call("b"))
        log.append(make_call("c"))
    assert [call.identity.call_id for call in read_calls(path)] == ["a", "c"]


def test_threads_may_append_at_once(path: Path) -> None:
    names = [f"call_{number}" for number in range(120)]
    with CallLog(path, durability="none") as log, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: log.append(make_call(name, [user(name)], [1, 2, hash(name) % 1000])), names))
    calls = list(read_calls(path))
    assert sorted(call.identity.call_id for call in calls) == sorted(names)
    assert all(call.prompt_ids == [1, 2, hash(call.identity.call_id) % 1000] for call in calls)
