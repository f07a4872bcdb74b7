"""Replies found again in the histories that come back: branches, retries, edits, side conversations, forgetting."""

import gc
import itertools
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from polar_mitm.chat import (
    Assistant,
    ChatRequest,
    Message,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    User,
)
from polar_mitm.engine.client import Sample
from polar_mitm.proxy.chains import Chains, Reading

RUN = Tool("run", "Runs.", {"type": "object", "properties": {"fast": {"default": True}}})
numbers = itertools.count(1)


def user(text: str) -> User:
    return User((Text(text),))


def sampled(prompt: Sequence[int], response: Sequence[int], **fields: Any) -> Sample:
    return Sample(
        text="", reasoning="", tool_calls=(), prompt_ids=list(prompt), response_ids=list(response), logprobs=[],
        token_bytes=None, finish_reason="stop", stop_reason=None, usage=Usage(0, 0), policy_version=None, forced=[],
        sampling_sent={}, request_messages=[], request_tools=[], not_carried=(), decode_matches_text=None,
        **{"invalid_reason": None, "ended": True, **fields},
    )  # fmt: skip


class Talk:
    """A session whose engine gives every reply ids of its own."""

    def __init__(self, chains: Chains | None = None, *, exact: bool = True) -> None:
        self.chains = chains or Chains()
        self.exact = exact
        self.ids = itertools.count(100)

    def say(
        self, chat: ChatRequest, text: str = "Yes.", *calls: tuple[str, str], **fields: Any
    ) -> tuple[str, Assistant]:
        """Answer the request; the call's id, and what it said."""
        return self.answer(self.chains.read(chat), text, *calls, **fields)

    def answer(self, reading: Reading, text: str, *calls: tuple[str, str], **fields: Any) -> tuple[str, Assistant]:
        call_id = f"call_{next(numbers)}"
        made = tuple(ToolCall(f"{call_id}{n:02d}", name, arguments) for n, (name, arguments) in enumerate(calls))
        said = Assistant(text, fields.pop("reasoning", ""), made)
        continuation = reading.continuation() if self.exact else None
        before = continuation.ids if continuation else []
        repaired = fields.pop("repaired", False)
        sample = sampled([*before, next(self.ids)], [next(self.ids)], built_ids=len(before), **fields)
        self.chains.add(reading, call_id, said, sample, with_ids=self.exact, repaired=repaired)
        return call_id, said


def chat(*messages: Message, **fields: Any) -> ChatRequest:
    return ChatRequest((System("Be brief."), *messages), **{"tools": (RUN,), **fields})


def results(said: Assistant, text: str = "ok") -> list[ToolResult]:
    return [ToolResult(call.id, (Text(text),)) for call in said.tool_calls]


def test_a_first_request_continues_nothing() -> None:
    reading = Chains().read(chat(user("a")))
    assert (reading.reply, reading.parent, reading.continuation(), reading.broken) == (None, None, None, None)


def test_every_turn_continues_the_one_before() -> None:
    talk = Talk()
    messages: list[Message] = [user("a")]
    sequence: list[int] = []
    follows = 0
    for turn in range(4):
        reading = talk.chains.read(chat(*messages))
        continuation = reading.continuation()
        assert (continuation.ids if continuation else []) == sequence
        assert continuation is None or continuation.follows == follows
        call_id, said = talk.answer(reading, "", ("run", f'{{"turn":{turn}}}'))
        sequence = [*sequence, 100 + 2 * turn, 101 + 2 * turn]
        assert reading.broken is None
        follows = 1 + len(messages) + 1  # the system text, the history, the reply
        messages += [said, *results(said)]
        assert talk.chains.read(chat(*messages)).parent == call_id


def test_two_requests_that_continue_one_reply_are_a_fork_and_do_not_mix() -> None:
    talk = Talk()
    root, said = talk.say(chat(user("a")), "", ("run", "{}"))
    history = [user("a"), said, *results(said)]
    both = talk.chains.read(chat(*history, user("left"))), talk.chains.read(chat(*history, user("right")))
    assert [reading.parent for reading in both] == [root, root]
    left, right = (talk.answer(reading, name) for reading, name in zip(both, ("l", "r"), strict=True))
    again = talk.chains.read(chat(*history, user("left"), left[1], user("more")))
    other = talk.chains.read(chat(*history, user("right"), right[1], user("more")))
    assert (again.parent, other.parent) == (left[0], right[0])
    first, second = again.continuation(), other.continuation()
    assert first
    assert second
    assert first.ids[:2] == second.ids[:2]
    assert not set(first.ids[2:]) & set(second.ids[2:])


def test_side_conversations_in_between_change_nothing() -> None:
    talk = Talk()
    root, said = talk.say(chat(user("a")), "Yes.")
    talk.say(ChatRequest((System("Make a title."), user("a"))), "Yes.")
    sub, _ = talk.say(chat(user("sub-agent's task")), "Yes.")
    assert talk.chains.read(chat(user("a"), said, user("b"))).parent == root
    assert talk.chains.read(chat(user("sub-agent's task"), said, user("b"))).parent == sub


def test_of_a_retried_request_the_answer_in_the_history_is_continued() -> None:
    talk = Talk()
    first, one = talk.say(chat(user("a")), "", ("run", "{}"))
    second, other = talk.say(chat(user("a")), "", ("run", "{}"))
    for call_id, said in ((first, one), (second, other)):
        assert talk.chains.read(chat(user("a"), said, *results(said))).parent == call_id


def test_of_answers_that_say_the_same_the_latest_is_continued() -> None:
    talk = Talk()
    talk.say(chat(user("a")))
    latest, said = talk.say(chat(user("a")))
    assert talk.chains.read(chat(user("a"), said, user("b"))).parent == latest


def test_a_history_that_goes_back_continues_the_earlier_reply() -> None:
    talk = Talk()
    root, said = talk.say(chat(user("a")), "one")
    talk.say(chat(user("a"), said, user("b")), "two")
    reading = talk.chains.read(chat(user("a"), said, user("c")))
    assert (reading.parent, reading.broken) == (root, None)


def edited(messages: Sequence[Message], **changes: Any) -> list[Message]:
    """The same, with its last reply changed."""
    place = max(n for n, message in enumerate(messages) if isinstance(message, Assistant))
    return [*messages[:place], replace(messages[place], **changes), *messages[place + 1 :]]


def test_a_reply_changed_in_one_character_is_not_continued_but_the_one_before_it_is() -> None:
    talk = Talk()
    root, first = talk.say(chat(user("a")), "", ("run", '{"x":1}'))
    history: list[Message] = [user("a"), first, *results(first)]
    second_id, second = talk.say(chat(*history), "", ("run", '{"x":2}'))
    history += [second, *results(second)]
    changed = replace(second.tool_calls[0], arguments='{"x":3}')
    for messages in (edited(history, tool_calls=(changed,)), edited(history, text="!")):
        reading = talk.chains.read(chat(*messages))
        assert reading.reply
        assert (reading.reply.call_id, reading.follows, reading.parent) == (root, 3, None)
        assert (reading.broken, reading.why) == ("reply_edited", f"the reply of call {second_id} came back changed")


def test_a_text_reply_that_came_back_changed_is_told_from_a_foreign_one() -> None:
    talk = Talk()
    root, _ = talk.say(chat(user("a")), "Yes.")
    reading = talk.chains.read(chat(user("a"), Assistant("Yes!"), user("b")))
    assert (reading.reply, reading.broken) == (None, "reply_edited")
    assert root in reading.why
    reading = talk.chains.read(chat(user("x"), Assistant("Hello."), user("b")))
    assert (reading.broken, reading.why) == ("foreign_reply", "the history holds a reply that polar did not sample")


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        (lambda request: replace(request, tools=()), "tools_changed"),
        (lambda request: replace(request, tools=(RUN, replace(RUN, name="new"))), "tools_changed"),
        (lambda request: replace(request, thinking=Thinking(enabled=True)), "thinking_changed"),
        (lambda request: replace(request, messages=request.messages[1:]), "system_changed"),
        (lambda request: replace(request, messages=(System("Be brief!"), *request.messages[1:])), "system_changed"),
        (
            lambda request: replace(request, messages=(request.messages[0], user("A"), *request.messages[2:])),
            "history_edited",
        ),
        (lambda request: replace(request, messages=(request.messages[0], *request.messages[2:])), "history_edited"),
    ],
)
@pytest.mark.parametrize("calls", [(), (("run", "{}"),)], ids=["text", "call"])
def test_what_changed_before_a_reply_is_named(change: Any, broken: str, calls: Any) -> None:
    talk = Talk()
    call_id, said = talk.say(chat(user("a")), "Yes.", *calls)
    reading = talk.chains.read(change(chat(user("a"), said, *results(said), user("b"))))
    assert (reading.reply, reading.broken) == (None, broken)
    assert call_id in reading.why
    # What was changed goes on to be a conversation of its own.
    after, new = talk.answer(reading, "No.")
    again = talk.chains.read(replace(reading.chat, messages=(*reading.chat.messages, new, user("c"))))
    assert (again.parent, again.broken) == (after, None)


def test_replies_that_polar_did_not_sample_are_context_like_any_other() -> None:
    talk = Talk()
    shots: list[Message] = [user("2+2"), Assistant("4"), user("a")]
    first = talk.chains.read(chat(*shots))
    assert (first.reply, first.broken) == (None, "foreign_reply")
    call_id, said = talk.answer(first, "Yes.")
    assert talk.chains.read(chat(*shots, said, user("b"))).parent == call_id
    later = talk.chains.read(chat(*shots, said, user("b"), Assistant("put in by the harness"), user("c")))
    assert later.reply
    assert (later.reply.call_id, later.parent, later.broken) == (call_id, None, "foreign_reply")


def test_a_call_id_that_comes_twice_is_found_where_it_was_sampled() -> None:
    talk = Talk()
    root, said = talk.say(chat(user("a")), "", ("run", "{}"))
    turn: list[Message] = [said, *results(said)]
    assert talk.chains.read(chat(user("a"), *turn)).parent == root
    reading = talk.chains.read(chat(user("a"), *turn, *turn))
    assert reading.reply
    assert (reading.reply.call_id, reading.follows, reading.broken) == (root, 3, "history_edited")


@pytest.mark.parametrize("exact", [True, False])
def test_arguments_and_text_come_back_as_they_were_sampled(exact: bool) -> None:
    talk = Talk(exact=exact)
    _, said = talk.say(chat(user("a")), " Now.\n", ("run", '{"x":"é","y":1.0}'), ("run", '{"a'))
    broken = replace(said.tool_calls[1], arguments='{"INVALID_JSON": "{\\"a"}')
    given = Assistant(
        "Now.", "", (replace(said.tool_calls[0], arguments='{"fast": true, "y": 1, "x": "\\u00e9"}'), broken)
    )
    reading = talk.chains.read(chat(user("a"), given, *results(said)))
    assert reading.parent
    # What is no JSON the model is shown as its client was: there it can read what was wrong with it.
    assert reading.chat.messages[2] == Assistant(" Now.\n", "", (said.tool_calls[0], broken))
    # And in another conversation as well, by its id; the text, which has none, as it came.
    moved = talk.chains.read(chat(user("moved"), given, *results(said)))
    assert moved.chat.messages[2] == replace(given, tool_calls=(said.tool_calls[0], broken))


def test_thoughts_that_the_client_was_given_as_text_stay_text() -> None:
    talk = Talk()
    call_id, _ = talk.say(chat(user("a")), "", reasoning="Hm.")
    reading = talk.chains.read(chat(user("a"), Assistant("Hm."), user("b")))
    assert reading.parent == call_id
    assert reading.chat.messages[2] == Assistant("Hm.")


def test_a_mended_reply_is_known_again() -> None:
    talk = Talk()
    call_id, said = talk.say(chat(user("a")), "", ("run", "rm"), repaired=True)
    given = replace(said, tool_calls=(replace(said.tool_calls[0], arguments='{"input": "rm"}'),))
    assert talk.chains.read(chat(user("a"), given, *results(said))).parent == call_id


def test_a_reply_without_whole_token_data_is_known_but_has_no_ids_to_continue() -> None:
    talk = Talk()
    call_id, said = talk.say(chat(user("a")), "Yes.", invalid_reason="the engine gave no log-probabilities")
    reading = talk.chains.read(chat(user("a"), said, user("b")))
    assert (reading.parent, reading.continuation()) == (call_id, None)


def test_a_prompt_that_was_rendered_anew_begins_a_conversation_of_its_own() -> None:
    talk = Talk()
    _, said = talk.say(chat(user("a")), "Yes.")
    reading = talk.chains.read(chat(user("a"), said, user("b")))
    talk.chains.add(reading, "anew", Assistant("No."), sampled([7, 8], [9]), with_ids=True, repaired=False)
    continuation = talk.chains.read(chat(user("a"), said, user("b"), Assistant("No."), user("c"))).continuation()
    assert continuation
    assert (continuation.ids, continuation.prompt_len) == ([7, 8, 9], 2)


def test_conversations_that_were_longest_quiet_are_forgotten_whole_and_said_to_be() -> None:
    talk = Talk(Chains(most_bytes=12_000))
    kept, said = talk.say(chat(user("kept")))
    lost, gone = talk.say(chat(user("lost")), "", ("run", "{}"))
    kept_messages: list[Message] = [user("kept"), said]
    for turn in range(4):
        kept_messages.append(user(f"{turn}"))
        kept, said = talk.say(chat(*kept_messages))
        kept_messages.append(said)
    for number in range(6):
        talk.say(chat(user(f"side {number}")))
        assert talk.chains.read(chat(*kept_messages, user("on"))).parent == kept
    reading = talk.chains.read(chat(user("lost"), gone, *results(gone)))
    assert (reading.reply, reading.broken) == (None, "forgotten")
    assert lost not in reading.why


def test_a_conversation_that_is_forgotten_while_its_next_turn_is_sampled_begins_anew() -> None:
    talk = Talk(Chains(most_bytes=3000))
    _, said = talk.say(chat(user("a")))
    reading = talk.chains.read(chat(user("a"), said, user("b")))
    for number in range(4):
        talk.say(chat(user(f"side {number}")))
    _, after = talk.answer(reading, "Yes.")
    continuation = talk.chains.read(chat(user("a"), said, user("b"), after, user("c"))).continuation()
    assert continuation
    assert len(continuation.ids) == 4


def test_memory_is_bounded_whatever_a_session_does() -> None:
    chains = Chains(most_bytes=200_000)
    tracemalloc.start()
    try:
        for number in range(60):
            reading = chains.read(chat(user(f"{number}")))
            prompt = range(number, number + 25_000)  # 100 kB
            chains.add(reading, f"c{number}", Assistant("Yes."), sampled(prompt, [1]), with_ids=True, repaired=False)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 400_000
    finally:
        tracemalloc.stop()


def test_a_long_conversation_takes_the_size_of_its_last_prompt() -> None:
    talk = Talk()
    messages: list[Message] = [user("a")]
    tracemalloc.start()
    try:
        before: list[int] = []
        for turn in range(50):
            reading = talk.chains.read(chat(*messages))
            grown = sampled([*before, *range(1000)], [1], built_ids=len(before))
            said = Assistant(f"turn {turn}")
            talk.chains.add(reading, f"call_{turn}", said, grown, with_ids=True, repaired=False)
            before = grown.prompt_ids + grown.response_ids
            messages += [said, user(f"on {turn}")]
        continuation = talk.chains.read(chat(*messages)).continuation()
        assert continuation
        assert continuation.ids == before
        del before, grown, continuation, reading
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 400_000
    finally:
        tracemalloc.stop()
