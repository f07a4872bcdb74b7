import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polar_mitm.capture.log import CallLog
from polar_mitm.capture.reader import CallFileError, CallReader, read_calls
from tests.capture.samples import SYSTEM, assistant, make_call, user

type Line = dict[str, Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two calls, the second one coded against the first."""
    path = tmp_path / "calls.jsonl"
    with CallLog(path) as log:
        log.append(make_call("a", [SYSTEM, user("Hi.")], [1, 2], [3]))
        log.append(make_call("b", [SYSTEM, user("Hi."), assistant("Hello."), user("More.")], [1, 2, 3, 4], [5]))
    return path


def test_a_file_can_be_read_while_it_is_written(path: Path) -> None:
    with CallLog(path) as log:
        calls = read_calls(path)
        assert next(calls).identity.call_id == "a"
        log.append(make_call("c"))
        assert [call.identity.call_id for call in calls] == ["b", "c"]


def test_an_empty_file_has_no_calls(tmp_path: Path) -> None:
    empty = tmp_path / "calls.jsonl"
    empty.touch()
    reader = CallReader(empty)
    assert list(reader) == []
    assert not reader.torn


def test_a_torn_last_line_ends_the_calls_and_the_reader_says_so(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b'{"schema":1')
    reader = CallReader(path)
    assert reader.torn is False
    for _ in range(2):
        assert [call.identity.call_id for call in reader] == ["a", "b"]
        assert reader.torn is True
    assert path.read_bytes().endswith(b'{"schema":1')


def drop_body(lines: list[Line]) -> None:
    lines[0]["request"]["new"].popitem()


def rename_first(lines: list[Line]) -> None:
    lines[0]["identity"]["call_id"] = "x"


def shorten_first(lines: list[Line]) -> None:
    lines[0]["response"]["response_ids"] = []


def forget_prefix(lines: list[Line]) -> None:
    lines[1]["prompt"]["prefix_call_id"] = None


def drop_first(lines: list[Line]) -> None:
    del lines[0]


def misspell(lines: list[Line]) -> None:
    lines[1]["checks"]["valid"] = "maybe"


def add_field(lines: list[Line]) -> None:
    lines[1]["delivery"]["colour"] = "red"


def drop_version(lines: list[Line]) -> None:
    del lines[1]["schema"]


def make_newer(lines: list[Line]) -> None:
    lines[1] = {"schema": 2, "anything": "else"}


@pytest.mark.parametrize(
    ("damage", "line", "what"),
    [
        (drop_body, 1, r"it names content [0-9a-f]{32}, which no line up to here holds"),
        (rename_first, 2, "its prompt continues call a, which no earlier line holds"),
        (shorten_first, 2, "its prompt repeats 3 ids of call a, which has 2"),
        (forget_prefix, 2, "its prompt repeats 3 ids but names no call"),
        (drop_first, 1, "its prompt continues call a, which no earlier line holds"),
        (misspell, 2, "checks.valid: Input should be a valid boolean"),
        (add_field, 2, "delivery.colour: Extra inputs are not permitted"),
        (drop_version, 2, "not a call record: it has no schema version"),
        (make_newer, 2, "it has schema version 2, and this polar reads up to 1"),
    ],
)
def test_a_damaged_line_is_named_with_what_is_wrong(
    path: Path, damage: Callable[[list[Line]], None], line: int, what: str
) -> None:
    lines = [json.loads(text) for text in path.read_bytes().splitlines()]
    damage(lines)
    path.write_text("".join(json.dumps(value) + "\n" for value in lines))
    with pytest.raises(CallFileError, match=what) as caught:
        list(read_calls(path))
    assert (caught.value.path, caught.value.line) == (path, line)
    assert caught.value.mend in str(caught.value)


def test_a_newer_file_asks_for_a_newer_polar(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b'{"schema":2}\n')
    with pytest.raises(CallFileError) as caught:
        list(read_calls(path))
    assert (caught.value.line, caught.value.mend) == (3, "install a newer polar-mitm")
    with pytest.raises(CallFileError, match="schema version 2"):
        CallLog(path)


def test_a_line_of_plain_null_is_damage_and_no_torn_tail(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"null\n")
    with pytest.raises(CallFileError, match="line 3: not a call record"):
        list(read_calls(path))
