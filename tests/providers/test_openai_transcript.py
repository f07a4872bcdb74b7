"""Whatever items come in whatever order, the messages keep the transcript's three rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar_mitm.chat import Assistant, Message, Text, ToolCall, ToolResult, User
from polar_mitm.providers.common import Notes
from polar_mitm.providers.openai_transcript import EMPTY_WHY, LATE_WHY, UNANSWERED, UNANSWERED_WHY, Transcript


def say(*steps: object) -> tuple[tuple[Message, ...], list[str]]:
    """The messages that these steps make, and what was noted. A str is a user's, a result is written `=id`."""
    notes = Notes()
    transcript = Transcript(notes, "input")
    for step in steps:
        match step:
            case str() if step.startswith("="):
                transcript.result(ToolResult(step[1:], (Text(step),)))
            case str():
                transcript.user((Text(step),))
            case Assistant():
                transcript.continue_assistant(step)
    return transcript.messages(), [note.why for note in notes.all()]


def calls(*ids: str) -> Assistant:
    return Assistant(tool_calls=tuple(ToolCall(id_, "f", "{}") for id_ in ids))


def result(id_: str) -> ToolResult:
    return ToolResult(id_, (Text(f"={id_}"),))


def test_results_stand_in_the_order_of_their_calls() -> None:
    assert say("hi", calls("a", "b"), "=b", "=a", "go")[0][2:4] == (result("a"), result("b"))


def test_a_call_without_a_result_is_told_that_there_is_none() -> None:
    messages, notes = say("hi", calls("a", "b"), "=b", "go")
    assert messages[2:4] == (ToolResult("a", (UNANSWERED,)), result("b"))
    assert notes == [UNANSWERED_WHY]


@pytest.mark.parametrize("steps", [("hi", "=x"), ("hi", calls("a"), "=a", "=a"), ("hi", calls("a"), "=a", "go", "=a")])
def test_a_result_that_no_call_waits_for_is_a_users_text(steps: tuple[object, ...]) -> None:
    messages, notes = say(*steps)
    last = messages[-1]
    assert isinstance(last, User)
    assert last.parts[0] == Text(f"<tool_result>\n{str(steps[-1])[1:]}\n</tool_result>")
    assert notes == [LATE_WHY]


def test_equal_ids_in_one_message_are_answered_one_by_one() -> None:
    assert say("hi", calls("a", "a"), "=a", "=a")[0][2:] == (result("a"), result("a"))


def test_a_message_that_says_nothing_is_left_out() -> None:
    assert say("hi", Assistant(), "", "go") == ((User((Text("hi"),)), User((Text("go"),))), [EMPTY_WHY])


ids = st.sampled_from(["a", "b", "c"])
steps = st.lists(
    st.sampled_from(["hi", "", Assistant("text"), Assistant(), Assistant(reasoning="hm")])
    | st.lists(ids, min_size=1, max_size=3).map(lambda chosen: calls(*chosen))
    | ids.map(lambda id_: f"={id_}"),
    max_size=12,
)


@given(steps)
def test_every_call_is_answered_once_in_order_and_no_message_is_empty(given_steps: list[object]) -> None:
    messages, _ = say(*given_steps)
    waiting: list[str] = []
    for message in messages:
        match message:
            case ToolResult(call_id, parts):
                assert waiting
                assert call_id == waiting.pop(0)
                assert parts
            case Assistant() | User():
                assert waiting == []
                assert message not in (Assistant(), User(()), User((Text(""),)))
                waiting = [call.id for call in message.tool_calls] if isinstance(message, Assistant) else []
    assert waiting == []


@given(steps, steps)
def test_no_result_is_lost(before: list[object], after: list[object]) -> None:
    given_steps = [*before, *after]
    messages, _ = say(*given_steps)
    shown = str(messages)
    assert all(shown.count(f"text='{step}'") == given_steps.count(step) for step in ("=a", "=b", "=c"))


@given(steps, steps)
def test_what_comes_after_a_settled_turn_never_changes_it(before: list[object], after: list[object]) -> None:
    settled = [*before, "user"]
    shorter, _ = say(*settled)
    assert say(*settled, *after)[0][: len(shorter)] == shorter
