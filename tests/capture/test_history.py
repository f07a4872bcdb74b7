"""What a line says of earlier calls: shared bodies, shared prompt ids, the parent and how the prompt stands to it."""

import json
import random
from pathlib import Path
from typing import Any

import orjson
import pytest

from polar_mitm.capture.history import BRANCHES
from polar_mitm.capture.log import CallLog
from polar_mitm.capture.reader import read_calls
from tests.capture.samples import READ_FILE, SYSTEM, assistant, make_call, user


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ses_1" / "calls.jsonl"


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


TURN_1 = [SYSTEM, user("Hi.")]
TURN_2 = [*TURN_1, assistant("Hello."), user("More.")]
TURN_3 = [*TURN_2, assistant("Here."), user("Thanks.")]


def test_a_body_stands_only_where_it_first_appears(path: Path) -> None:
    with CallLog(path) as log:
        log.append(make_call("a", TURN_1))
    with CallLog(path) as log:
        log.append(make_call("b", TURN_2))
    first, second = (line["request"] for line in written(path))
    assert list(first["new"].values()) == [SYSTEM, user("Hi."), READ_FILE]
    assert list(second["new"].values()) == [assistant("Hello."), user("More.")]
    assert second["messages"][:2] == first["messages"]
    assert second["tools"] == first["tools"]


def test_prompt_ids_are_stored_from_where_they_leave_the_call_that_shares_most(path: Path) -> None:
    with CallLog(path) as log:
        log.append(make_call("title", [user("Title?")], [1, 2], [9]))
        log.append(make_call("main", TURN_1, [1, 2, 3], [4, 5]))
        line = log.append(make_call("next", TURN_2, [1, 2, 3, 4, 5, 6, 7], [8]))
    assert line.prompt.model_dump() == {"prefix_call_id": "main", "prefix_len": 5, "suffix_ids": [6, 7]}
    assert written(path)[0]["prompt"] == {"prefix_call_id": None, "prefix_len": 0, "suffix_ids": [1, 2]}


def test_the_parent_is_compared_even_when_many_branches_came_after_it(path: Path) -> None:
    prompt = list(range(100, 150))
    with CallLog(path, durability="none") as log:
        log.append(make_call("old", TURN_1, prompt, [1, 2]))
        for number in range(BRANCHES + 4):
            log.append(make_call(f"other_{number}", [user(str(number))], [1000 + number], [5]))
        line = log.append(make_call("next", TURN_2, [*prompt, 1, 2, 3], [4]))
    assert (line.prompt.prefix_call_id, line.prompt.prefix_len) == ("old", 52)
    assert list(read_calls(path))[-1].prompt_ids == [*prompt, 1, 2, 3]


def test_a_repeated_call_id_never_mixes_up_prompts(path: Path) -> None:
    prompts = [[1, 2, 3], [7, 8, 9], [1, 2, 3, 4, 5, 6], [7, 8, 9, 4, 5, 6]]
    with CallLog(path) as log:
        for prompt in prompts:
            log.append(make_call("same", TURN_1, prompt))
    assert [call.prompt_ids for call in read_calls(path)] == prompts


def test_a_repeated_call_id_means_the_later_call(path: Path) -> None:
    with CallLog(path) as log:
        log.append(make_call("same", TURN_1, [1, 2, 3], [4]))
        log.append(make_call("same", TURN_1, [], []))
        line = log.append(make_call("next", TURN_2, [1, 2, 3, 4, 5]))
        assert (line.prompt.prefix_call_id, line.parent_call_id, line.checks.prefix) == (None, "same", None)
        log.append(make_call("same", TURN_1, [1, 2], []))
        assert log.append(make_call("more", TURN_2, [1, 2, 3])).checks.prefix is None
    assert [call.prompt_ids for call in read_calls(path)] == [[1, 2, 3], [], [1, 2, 3, 4, 5], [1, 2], [1, 2, 3]]


class TestParent:
    def test_it_is_the_call_with_the_longest_history_that_an_assistant_message_follows(self, path: Path) -> None:
        with CallLog(path) as log:
            log.append(make_call("one", TURN_1))
            assert log.append(make_call("two", TURN_2)).parent_call_id == "one"
            assert log.append(make_call("three", TURN_3)).parent_call_id == "two"

    def test_a_first_call_has_none_and_is_a_root(self, path: Path) -> None:
        with CallLog(path) as log:
            line = log.append(make_call("one", TURN_1))
        assert (line.parent_call_id, line.checks.prefix, line.checks.common_prefix_len) == (None, "root", None)

    def test_a_call_with_equal_messages_is_a_sibling(self, path: Path) -> None:
        with CallLog(path) as log:
            log.append(make_call("one", TURN_1))
            log.append(make_call("two", TURN_2))
            assert log.append(make_call("retry", TURN_2)).parent_call_id == "one"

    def test_a_call_that_was_never_answered_is_nobodys_parent(self, path: Path) -> None:
        with CallLog(path) as log:
            log.append(make_call("one", TURN_1, response_ids=None))
            assert log.append(make_call("two", TURN_2)).parent_call_id is None

    def test_more_user_messages_without_an_answer_between_continue_nothing(self, path: Path) -> None:
        with CallLog(path) as log:
            log.append(make_call("one", TURN_1))
            assert log.append(make_call("two", [*TURN_1, user("Hello?")])).parent_call_id is None

    def test_of_two_retries_the_one_whose_tokens_come_back_is_it(self, path: Path) -> None:
        with CallLog(path) as log:
            log.append(make_call("kept", TURN_1, [1, 2], [3, 4]))
            log.append(make_call("lost", TURN_1, [1, 2], [3, 5]))
            assert log.append(make_call("next", TURN_2, [1, 2, 3, 4, 6])).parent_call_id == "kept"

    def test_of_two_retries_with_the_same_tokens_the_later_is_it(self, path: Path) -> None:
        with CallLog(path) as log:
            log.append(make_call("first", TURN_1, [1, 2], [3, 4]))
            log.append(make_call("second", TURN_1, [1, 2], [3, 4]))
            assert log.append(make_call("next", TURN_2, [1, 2, 3, 4, 6])).parent_call_id == "second"

    def test_the_one_that_the_caller_named_stays(self, path: Path) -> None:
        with CallLog(path) as log:
            log.append(make_call("one", TURN_1, [1], [2]))
            log.append(make_call("two", TURN_2, [1, 2, 3], [4]))
            line = log.append(make_call("three", TURN_3, [1, 2, 9], [4], parent="one"))
        assert (line.parent_call_id, line.checks.prefix, line.checks.common_prefix_len) == ("one", "extends", 2)

    def test_one_that_is_in_no_line_leaves_the_prefix_unsaid(self, path: Path) -> None:
        with CallLog(path) as log:
            line = log.append(make_call("a", parent="call_elsewhere"))
        assert (line.parent_call_id, line.checks.prefix) == ("call_elsewhere", None)


@pytest.mark.parametrize(
    ("prompt_ids", "relation"),
    [
        ([1, 2, 3, 4, 5, 6], ("extends", 5)),
        ([1, 2, 3, 4, 5], ("extends", 5)),
        ([1, 2, 3, 4, 7, 6], ("diverges", 4)),
        ([1, 2, 3, 4], ("diverges", 4)),
        ([8], ("diverges", 0)),
        ([], (None, None)),
    ],
)
def test_a_prompt_extends_its_parent_only_when_it_begins_with_all_its_ids(
    path: Path, prompt_ids: list[int], relation: tuple[str | None, int | None]
) -> None:
    with CallLog(path) as log:
        log.append(make_call("one", TURN_1, [1, 2, 3], [4, 5]))
        checks = log.append(make_call("two", TURN_2, prompt_ids)).checks
    assert (checks.prefix, checks.common_prefix_len) == relation


def test_nothing_is_said_of_a_prompt_whose_parent_has_no_sampled_ids(path: Path) -> None:
    with CallLog(path) as log:
        log.append(make_call("one", TURN_1, [1, 2, 3], []))
        checks = log.append(make_call("two", TURN_2, [1, 2, 3, 4])).checks
    assert (checks.prefix, checks.common_prefix_len) == (None, None)


def test_forty_calls_of_one_conversation_take_less_than_an_eighth_of_the_same_calls_written_whole(path: Path) -> None:
    rng, messages, whole = random.Random(1), [SYSTEM, user("Fix it. " * 2000)], 0
    prompt = [rng.randrange(150_000) for _ in range(4000)]
    with CallLog(path, durability="none") as log:
        for number in range(40):
            response = [rng.randrange(150_000) for _ in range(60)]
            logprobs = [-rng.expovariate(2.0) for _ in response]
            call = make_call(f"call_{number}", messages, prompt, response, logprobs=logprobs)
            whole += len(orjson.dumps(call.model_dump()))
            line = log.append(call)
            assert line.checks.prefix == ("extends" if number else "root")
            observed = [rng.randrange(150_000) for _ in range(140)]
            prompt = prompt + response + observed
            messages = [*messages, assistant(f"step {number}"), user("output " * 80)]
    assert [len(call.prompt_ids) for call in read_calls(path)] == [4000 + 200 * number for number in range(40)]
    assert path.stat().st_size * 8 < whole
