"""Sessions as they must not be: nothing is guessed, nothing lost, and what cannot be used says why."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polar_mitm.capture.folder import SessionFileError
from polar_mitm.capture.reader import CallFileError
from polar_mitm.trajectory.builders import build
from polar_mitm.trajectory.ledger import LedgerError, balance
from polar_mitm.trajectory.seen import TrajectoryError, read_session
from polar_mitm.trajectory.trace import Trajectory
from tests.capture.samples import make_call
from tests.trajectory.sessions import World


def edit(folder: Path, change: Callable[[list[dict[str, Any]]], None]) -> Path:
    """Change the lines of calls.jsonl behind polar's back."""
    path = folder / "calls.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def three(out: Path, **record: Any) -> Path:
    world, talk = World(**record), World().talk()
    for text in ("One.", "Two.", "Three."):
        world.answer(talk, text)
        talk.user("More.")
    return world.write(out)


def test_a_session_without_calls(tmp_path: Path) -> None:
    trajectory = build(World().write(tmp_path))
    assert trajectory.traces == [] and trajectory.ledger.sampled == 0 and trajectory.masked is None


def test_a_session_without_a_file_of_calls(tmp_path: Path) -> None:
    folder = World().write(tmp_path)
    (folder / "calls.jsonl").unlink()
    assert build(folder).traces == []


def test_a_session_that_lost_its_file_of_calls(tmp_path: Path) -> None:
    folder = three(tmp_path)
    (folder / "calls.jsonl").unlink()
    with pytest.raises(LedgerError, match="counts 9 sampled tokens, and the calls have 0"):
        build(folder)


def test_a_folder_that_is_no_session(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"session\.json"):
        build(tmp_path)
    (tmp_path / "session.json").write_text("{}")
    with pytest.raises(SessionFileError, match="session_id"):
        build(tmp_path)


def test_a_session_of_which_every_call_is_invalid(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    for _ in range(3):
        world.answer(talk, "One.", logprobs=[])
        talk.user("More.")
    trajectory = build(world.write(tmp_path))
    assert trajectory.ledger.bins == {"invalid": 9}
    [trace] = trajectory.traces
    assert (trace.trained, trace.weight, len(trace.turns)) == (0, 0.0, 3)


def test_calls_without_prompt_ids_or_response_ids(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "One.", prompt_ids=[])
    world.answer(talk.user("More."), "Two.", response_ids=[], logprobs=[])
    world.answer(talk.user("More."), "Three.")
    trajectory = build(world.write(tmp_path))
    assert trajectory.ledger.bins == {"invalid": 3, "trained": 3}
    assert [entry.reason for entry in trajectory.ledger.entries[:2]] == ["no prompt ids", "no response ids"]
    [trace] = trajectory.traces
    assert trace.prompt_ids == world.calls[2].prompt_ids


def test_a_logprob_above_zero_that_a_record_calls_valid_is_not_believed(tmp_path: Path) -> None:
    world = World()
    world.answer(world.talk(), "One.")
    folder = world.write(tmp_path)
    calls = folder / "calls.jsonl"
    line = json.loads(calls.read_text())
    line["response"]["logprobs"][0] = 0.5
    calls.write_text(json.dumps(line) + "\n")
    record = json.loads((folder / "session.json").read_text())
    (folder / "session.json").write_text(json.dumps(record | {"seal": None}))
    trajectory = build(folder)
    assert trajectory.ledger.bins == {"invalid": 3}
    assert trajectory.ledger.entries[0].reason == "a logprob is above 0"


@pytest.mark.parametrize("record", [{"poisoned": "disk full"}, {"status": "open"}, {"status": "cancelled"}])
def test_a_poisoned_or_unfinished_session_trains_nothing(tmp_path: Path, record: dict[str, Any]) -> None:
    trajectory = build(three(tmp_path, **record))
    assert trajectory.ledger.bins == {"masked": 9} and trajectory.masked
    assert {turn.reason for turn in trajectory.traces[0].turns} == {trajectory.masked}


def test_a_torn_last_call_makes_the_session_incomplete(tmp_path: Path) -> None:
    folder = three(tmp_path)
    edit(folder, lambda lines: lines.pop())
    with (folder / "calls.jsonl").open("a") as file:
        file.write('{"schema": 1, "ident')
    record = json.loads((folder / "session.json").read_text())
    (folder / "session.json").write_text(json.dumps(record | {"response_tokens": 6}))
    trajectory = build(folder)
    assert trajectory.masked == "incomplete: its last call was cut off"
    assert trajectory.ledger.bins == {"masked": 6}


def test_calls_of_two_sessions_in_one_file_are_refused(tmp_path: Path) -> None:
    folder = three(tmp_path)
    edit(folder, lambda lines: lines[1]["identity"].update(session_id="ses_2"))
    with pytest.raises(TrajectoryError, match=r"line 2: call call_\w+ is of ses_2, not of ses_1"):
        build(folder)


def test_two_records_of_one_call_id_are_quarantined(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "One.", call_id="call_same")
    world.answer(talk.user("More."), "Two.", call_id="call_same")
    world.answer(talk.user("More."), "Three.")
    trajectory = build(world.write(tmp_path))
    assert trajectory.ledger.bins == {"quarantined": 6, "trained": 3}
    assert [turn.call_id for trace in trajectory.traces for turn in trace.turns if trace.trained] == [
        world.calls[2].identity.call_id
    ]


def test_a_line_that_stands_twice_is_quarantined(tmp_path: Path) -> None:
    folder = edit(three(tmp_path), lambda lines: lines.append(lines[2]))
    assert build(folder).ledger.bins == {"trained": 6, "quarantined": 6}


@pytest.mark.parametrize("parents", [(0, 0, 0), (1, 2, 0), (2, 2, 2), (None, None, None)])
def test_what_records_say_of_parents_makes_no_cycle(tmp_path: Path, parents: tuple[int | None, ...]) -> None:
    def point(lines: list[dict[str, Any]]) -> None:
        names = [line["identity"]["call_id"] for line in lines]
        for line, parent in zip(lines, parents, strict=True):
            line["parent_call_id"] = None if parent is None else names[parent]

    trajectory = build(edit(three(tmp_path), point))
    assert trajectory.relations == {"root": 1, "extends": 2}


def test_a_call_that_names_itself_as_its_caller(tmp_path: Path) -> None:
    world = World()
    sub = world.talk(agent="a", kind="subagent")
    world.answer(sub, "", tool="task", arguments='{"prompt":"Look into it."}', ids={"x-parent-session-id": "a"})
    trajectory = build(world.write(tmp_path))
    [trace] = trajectory.traces
    assert (trace.lineage.kind, trace.lineage.of_trace, trace.lineage.of_call) == ("subagent", None, None)


def test_tool_calls_that_name_a_later_call(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "", tool="read")
    talk.tool("text").messages[-2]["tool_calls"][0]["id"] = f"call_{2:026x}00"
    world.answer(talk, "Two.")
    world.answer(talk.user("More."), "Three.")
    assert build(world.write(tmp_path)).relations == {"root": 1, "extends": 2}


def test_calls_that_start_at_one_moment(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    for _ in range(3):
        world.answer(talk, "One.", seconds=5.0)
        talk.user("More.")
    for call in world.calls:
        call.identity.started_at = 100.0
    assert build(world.write(tmp_path)).ledger.bins == {"trained": 9}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"logprobs": [-1.0, -1.0]}, "2 logprobs for 3 response ids"),
        ({"logprobs": [-1.0, "NaN", -1.0]}, "a logprob is not finite"),
        ({"response_ids": [5, -1, 7]}, "an id is outside 0..2147483647"),
        ({"response_ids": [5, 2**40, 7]}, "an id is outside 0..2147483647"),
        ({"forced": [[0, 9]]}, "a forced span is outside the 3 response ids"),
    ],
)
def test_a_record_that_says_valid_and_is_not(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    folder = edit(three(tmp_path), lambda lines: lines[2]["response"].update(change))
    trajectory = build(folder)
    assert trajectory.ledger.bins == {"trained": 6, "invalid": 3}
    assert trajectory.ledger.entries[2].reason == reason


def test_a_prompt_that_repeats_ids_no_call_has(tmp_path: Path) -> None:
    folder = edit(three(tmp_path), lambda lines: lines[1]["prompt"].update(prefix_len=10_000))
    with pytest.raises(CallFileError, match=r"line 2: its prompt repeats 10000 ids of call"):
        build(folder)


def test_a_message_that_no_line_holds(tmp_path: Path) -> None:
    folder = edit(three(tmp_path), lambda lines: lines[0]["request"]["new"].popitem())
    with pytest.raises(CallFileError, match="line 1: it names content"):
        build(folder)


def test_messages_of_odd_forms(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "One.")
    odd: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [{"function": None}, {"id": 7}, {}]},
        {"content": ["x", {"type": "text"}]},
        {"role": 5},
    ]
    for number, message in enumerate(odd):
        call = world.answer(talk, "Two.", prompt_ids=[1, 2, 3, number], append=False)
        call.request.messages = [*talk.messages, message, {"role": "user", "content": "More."}]
        call.request.tools = [{}, {"function": None}]
    trajectory = build(world.write(tmp_path))
    assert trajectory.ledger.sampled == world.sampled


def test_every_finding_of_an_unbalanced_ledger_is_an_error(tmp_path: Path) -> None:
    folder = three(tmp_path)
    session, good = read_session(folder), build(folder)

    def spoiled(**changes: Any) -> Trajectory:
        copy = good.model_copy(deep=True)
        for name, value in changes.items():
            setattr(copy.traces[0], name, value)
        return copy

    trace = good.traces[0]
    for change, what in (
        ({"loss_mask": trace.loss_mask[:-1]}, "lengths"),
        ({"loss_mask": [1] * len(trace.loss_mask)}, "trains what was not sampled"),
        ({"loss_mask": [0] * len(trace.loss_mask)}, "has 3 trained tokens, its trace trains 0"),
        ({"response_ids": [0] * len(trace.response_ids)}, "are not its own"),
        ({"logprobs": [-9.0] * len(trace.logprobs)}, "logprobs of call"),
        ({"turns": [*trace.turns, trace.turns[0]]}, "stands in two places"),
        ({"turns": trace.turns[:-1]}, "trains what was not sampled"),
    ):
        with pytest.raises(LedgerError, match=what):
            balance(session, spoiled(**change).traces, good.ledger)
    for change, what in (({"sampled": 8}, "it says 8"), ({"bins": {"trained": 8}}, "bins sum to 8")):
        with pytest.raises(LedgerError, match=what):
            balance(session, good.traces, good.ledger.model_copy(update=change))
    moved = [
        entry.model_copy(update={"tokens": tokens})
        for entry, tokens in zip(good.ledger.entries, (2, 4, 3), strict=True)
    ]
    with pytest.raises(LedgerError, match="sampled 3 tokens, and its entries hold 2"):
        balance(session, good.traces, good.ledger.model_copy(update={"entries": moved}))


def many(folder: Path, shape: str, count: int) -> None:
    """Put `count` calls into calls.jsonl: as lines, since whole calls of this number would not fit into memory."""
    first = json.loads((folder / "calls.jsonl").read_text().splitlines()[0])
    names = [f"call_{number:026x}" for number in range(count)]
    length = len(first["prompt"]["suffix_ids"])
    with (folder / "calls.jsonl").open("w") as file:
        for number, name in enumerate(names):
            before = names[number - 1] if number else None
            told = name if shape != "retries" else names[0]
            prompt = {"prefix_call_id": before, "prefix_len": 0, "suffix_ids": [number + 100]}
            if shape == "chain" and number:
                prompt = {"prefix_call_id": before, "prefix_len": length + 3, "suffix_ids": [7]}
                length += 4
            elif shape == "re-rendered" and number:
                prompt = {"prefix_call_id": before, "prefix_len": length, "suffix_ids": [8, 9]}
                length += 2
            elif shape == "retries" or not number:
                prompt = {"prefix_call_id": None, "prefix_len": 0, "suffix_ids": first["prompt"]["suffix_ids"]}
            kind = {"sub-agents": "subagent", "compactions": "turn" if number % 2 else "compaction"}.get(shape, "turn")
            new = {told: {"role": "user", "content": told}} if told == name else {}
            made = [{"id": f"{name}00", "function": {"name": "task", "arguments": "{}"}}]
            line = first | {
                "identity": first["identity"] | {"call_id": name, "started_at": 100.0 + number},
                "parent_call_id": None,
                "origin": first["origin"] | {"kind": kind},
                "request": first["request"] | {"messages": [told], "tools": [], "new": new},
                "prompt": prompt,
                "response": first["response"] | {"tool_calls": made if shape == "sub-agents" else []},
            }
            file.write(json.dumps(line) + "\n")


@pytest.mark.parametrize(
    ("shape", "count", "relation"),
    [
        ("chain", 10_000, "extends"),
        ("re-rendered", 1_000, "rewritten"),
        ("retries", 3_000, "retried"),
        ("roots", 3_000, "root"),
        ("sub-agents", 3_000, "subagent"),
        ("compactions", 3_000, "compacted"),
    ],
)
def test_thousands_of_calls(tmp_path: Path, shape: str, count: int, relation: str) -> None:
    """Each shape is one that a comparison of every call with every other would not get through."""
    folder = three(tmp_path)
    many(folder, shape, count)
    trajectory = build(folder)
    assert sum(trajectory.ledger.bins.values()) == 3 * count
    assert max(trajectory.relations, key=lambda name: trajectory.relations[name] * (name != "side_request")) == relation


@pytest.mark.parametrize(
    ("prompt", "sampled"), [([1, 2, -1], [4]), ([1, 2], [3, -1]), ([], [1, 2]), ([1, 2, 2**40], [4]), ([-1], [2])]
)
@pytest.mark.parametrize("later", [[1, 2, 3], [1, 2], [1, 2, 3, -1, 9]])
def test_a_valid_call_coded_against_an_invalid_one_is_trained_in_its_own_trace(
    prompt: list[int], sampled: list[int], later: list[int], tmp_path: Path
) -> None:
    world = World()
    world.calls = [make_call("a", prompt_ids=prompt, response_ids=sampled)]
    world.calls.append(make_call("b", prompt_ids=later, response_ids=[5]))
    for number, call in enumerate(world.calls):
        call.identity.session_id = world.session_id
        call.identity.started_at, call.identity.finished_at = 100.0 + number, 101.0 + number
    trajectory = build(world.write(tmp_path))
    valid = min(later) >= 0
    assert trajectory.ledger.bins.get("trained", 0) == int(valid)
    assert sum(trace.trained for trace in trajectory.traces) == int(valid)
