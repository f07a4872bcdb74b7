import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from polar_mitm.capture.log import CallLog
from polar_mitm.capture.reader import CallReader, read_calls
from polar_mitm.capture.record import Call, CallLine
from tests.capture.samples import sessions


def expected(call: Call, line: CallLine) -> Call:
    """The call as it is read back: as it was, with what the log fills in."""
    return call.model_copy(update={"parent_call_id": line.parent_call_id, "checks": line.checks})


@settings(max_examples=75, deadline=None)
@given(st.data())
def test_every_call_is_read_back_whole_also_across_reopening(data: st.DataObject) -> None:
    calls = data.draw(sessions())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calls.jsonl"
        lines = []
        log = CallLog(path, durability="none")
        for call in calls:
            if data.draw(st.booleans()):
                log.close()
                log = CallLog(path, durability="none")
            lines.append(log.append(call))
        log.close()
        assert list(read_calls(path)) == [expected(call, line) for call, line in zip(calls, lines, strict=True)]
        assert [line.checks.valid for line in lines] == [call.checks.valid for call in calls]


@settings(max_examples=40, deadline=None)
@given(sessions())
def test_reopening_changes_nothing_of_what_is_written(calls: list[Call]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        once, often = Path(folder) / "once.jsonl", Path(folder) / "often.jsonl"
        with CallLog(once, durability="none") as log:
            for call in calls:
                log.append(call)
        for call in calls:
            with CallLog(often, durability="none") as log:
                log.append(call)
        assert often.read_bytes() == once.read_bytes()


@settings(max_examples=40, deadline=None)
@given(sessions(max_calls=5), st.floats(0, 1))
def test_a_file_cut_at_any_byte_keeps_every_whole_line_and_goes_on(calls: list[Call], where: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calls.jsonl"
        with CallLog(path, durability="none") as log:
            lines = [log.append(call) for call in calls]
        whole = path.read_bytes()
        cut = whole[: int(len(whole) * where)]
        path.write_bytes(cut)
        kept = cut.count(b"\n")
        torn = not cut.endswith(b"\n") and cut != b""
        wanted = [expected(call, line) for call, line in zip(calls, lines, strict=True)]

        reader = CallReader(path)
        assert list(reader) == wanted[:kept]
        assert reader.torn == torn
        with CallLog(path, durability="none") as log:
            assert (log.torn, log.calls) == (torn, kept)
            for call in calls[kept:]:
                log.append(call)
        assert path.read_bytes() == whole
        assert (path.with_name("calls.jsonl.torn-1").exists()) == torn


@settings(max_examples=75, deadline=None)
@given(sessions())
def test_parent_and_prefix_are_the_ones_the_rule_names(calls: list[Call]) -> None:
    with tempfile.TemporaryDirectory() as folder, CallLog(Path(folder) / "calls.jsonl", durability="none") as log:
        for number, call in enumerate(calls):
            line, parent = log.append(call), parent_by_the_rule(calls[:number], call)
            assert line.parent_call_id == (parent.identity.call_id if parent else None)
            relation = relation_by_the_rule(parent, call)
            assert (line.checks.prefix, line.checks.common_prefix_len) == relation


def parent_by_the_rule(earlier: list[Call], call: Call) -> Call | None:
    messages = call.request.messages
    candidates = [
        (len(other.request.messages), shared_ids(codable(ids(other)), codable(call.prompt_ids)), place)
        for place, other in enumerate(earlier)
        if other.response
        and len(other.request.messages) < len(messages)
        and same(messages[: len(other.request.messages)], other.request.messages)
        and messages[len(other.request.messages)]["role"] == "assistant"
    ]
    return earlier[max(candidates)[2]] if candidates else None


def relation_by_the_rule(parent: Call | None, call: Call) -> tuple[str | None, int | None]:
    if parent is None:
        return "root", None
    if not (parent.prompt_ids and parent.response and parent.response.response_ids and call.prompt_ids):
        return None, None
    if max(ids(parent) + call.prompt_ids) >= 2**31:
        return None, None
    shared = shared_ids(ids(parent), call.prompt_ids)
    return ("extends" if shared == len(ids(parent)) else "diverges"), shared


def same(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> bool:
    """As JSON: Python holds 1, 1.0 and True for equal."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def ids(call: Call) -> list[int]:
    return call.prompt_ids + (call.response.response_ids if call.response else [])


def codable(values: list[int]) -> list[int]:
    return values if max(values, default=0) < 2**31 else []


def shared_ids(left: list[int], right: list[int]) -> int:
    for place, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return place
    return min(len(left), len(right))
