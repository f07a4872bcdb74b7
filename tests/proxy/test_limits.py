"""What a session may ask of the model, and how the agent's turn ends when it has asked for all of that."""

import asyncio
import time

import pytest

from polar_mitm.chat import Assistant, ChatRequest, Message, Text, ToolCall, ToolResult, User
from polar_mitm.proxy.limits import CallLimits, Meter, same_turns
from tests.conftest import Staged
from tests.fakes.vllm import Reply
from tests.proxy.asks import ANTHROPIC, CHAT, JSON_ASKS, STREAM_ASKS, Ask
from tests.proxy.stage import until


@pytest.mark.parametrize("ask", [*JSON_ASKS, *STREAM_ASKS], ids=repr)
async def test_the_call_past_the_limit_gets_last_words_in_its_providers_own_form(ask: Ask, stage: Staged) -> None:
    async with stage(Reply("One."), Reply("Two.")) as on:
        session = on.open_session(meter=Meter(CallLimits(calls=1)))
        first = await on.post(ask, session=session)
        second = await on.post(ask.saying("Go on."), session=session)
        assert (first.status, second.status) == (200, 200)
        assert b"One." in first.body
        assert b"The work ends here: the session's limit of 1 calls is reached." in second.body
        assert len(on.fake.requests) == 1
        sampled, refused = on.calls(session)
    assert sampled.checks.valid
    assert refused.response is None
    assert refused.error
    assert (refused.error.kind, refused.error.status) == ("limit", 200)
    assert not refused.checks.valid
    assert session.log.session.limited == ["the session's limit of 1 calls is reached"]


async def test_sampled_tokens_are_counted_over_all_calls(stage: Staged) -> None:
    async with stage(*[Reply("One two three four.")] * 9) as on:
        session = on.open_session(meter=Meter(CallLimits(response_tokens=10)))
        for turn in range(9):
            await on.post(CHAT.saying(f"Turn {turn}."), session=session)
        calls = on.calls(session)
    sampled = [len(call.response.response_ids) for call in calls if call.response]
    assert sum(sampled[:-1]) < 10 <= sum(sampled)
    assert session.log.session.limited == ["the session's limit of 10 sampled tokens is reached"]


async def test_time_runs_from_the_sessions_start(stage: Staged) -> None:
    async with stage(Reply(), Reply()) as on:
        session = on.open_session(meter=Meter(CallLimits(seconds=0.2)))
        await asyncio.sleep(0.25)
        got = await on.post(ANTHROPIC, session=session)
        assert on.fake.requests == []
    assert b"limit of 0.2 seconds is reached" in got.body


def test_time_in_which_calls_were_held_is_given_back() -> None:
    given_back = 0.0
    meter = Meter(CallLimits(seconds=10), began=time.monotonic() - 15, given_back_s=lambda: given_back)
    chat = ChatRequest(())
    assert "limit of 10 seconds is reached" in (meter.begin(chat) or "")
    given_back = 10.0
    assert meter.begin(chat) is None


async def test_calls_at_once_wait_for_a_place_and_all_are_answered(stage: Staged) -> None:
    hold = asyncio.Event()
    async with stage(*[Reply("Yes.", hold=hold) for _ in range(4)]) as on:
        session = on.open_session(meter=Meter(CallLimits(concurrent=2)))
        asks = [asyncio.create_task(on.post(CHAT.saying(f"Ask {n}."), session=session)) for n in range(4)]
        await until(lambda: on.fake.running == 2)
        await asyncio.sleep(0.2)
        assert len(on.fake.requests) == 2
        hold.set()
        answers = await asyncio.gather(*asks)
    assert all(b"Yes." in answer.body for answer in answers)


async def test_the_same_request_again_and_again_is_a_loop(stage: Staged) -> None:
    async with stage(*[Reply("Hm.")] * 3) as on:
        session = on.open_session(meter=Meter(CallLimits(repeats=2)))
        bodies = [(await on.post(CHAT, session=session)).body for _ in range(3)]
        assert len(on.fake.requests) == 2
        other = await on.post(CHAT.saying("Something else."), session=session)
    assert b"the same request came more than 2 times" in bodies[2]
    assert b"Hm." in other.body


def turn(command: str, result: str, number: int) -> list[Message]:
    call = ToolCall(f"call_{number}", "run", command)
    return [Assistant("", "", (call,)), ToolResult(call.id, (Text(result),))]


def history(*turns: tuple[str, str]) -> ChatRequest:
    messages: list[Message] = [User((Text("Do it."),))]
    for number, (command, result) in enumerate(turns):
        messages += turn(command, result, number)
    return ChatRequest(messages=tuple(messages))


@pytest.mark.parametrize(
    ("turns", "same"),
    [
        ([], 0),
        ([("ls", "a")], 1),
        ([("ls", "a"), ("ls", "a"), ("ls", "a")], 3),
        ([("cat", "x"), ("ls", "a"), ("ls", "a")], 2),
        ([("ls", "a"), ("ls", "b")], 1),
        ([("ls", "a"), ("pwd", "a")], 1),
    ],
)
def test_turns_are_the_same_by_their_calls_and_their_results(turns: list[tuple[str, str]], same: int) -> None:
    assert same_turns(history(*turns)) == same


def test_turns_that_come_to_the_same_are_a_loop() -> None:
    meter = Meter(CallLimits(repeats=2))
    turns: list[tuple[str, str]] = []
    said = []
    for _ in range(4):
        said.append(meter.begin(history(*turns)))
        turns.append(("ls", "a"))
    assert said == [None, None, None, "more than 2 turns in a row made the same calls with the same results"]
