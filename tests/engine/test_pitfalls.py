"""Known faults of gateways before vLLM, by number; docs/pitfalls.md says which are shown elsewhere."""

import json
from typing import Any

import pytest

from polar_mitm.chat import (
    Assistant,
    ChatRequest,
    Image,
    Message,
    Sampling,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    User,
)
from polar_mitm.engine.body import IMAGE_PLACEHOLDER, Outgoing, compose
from polar_mitm.engine.client import Engine
from polar_mitm.engine.sample import Sample, read_completion, read_sample
from tests.engine.answers import completion, entry, hello

HELLO = User((Text("Hello"),))
PICTURE = User((Text("look"), Image("data:image/png;base64,iVBORw0KGgo=")))
RUN = Tool("run")


def composed(*messages: Message, **options: Any) -> Outgoing:
    request = ChatRequest(messages, tools=(RUN,), **options)
    return compose(request, model="tiny", overrides={}, text_only=True)


def read(answer: dict[str, Any], **options: Any) -> Sample:
    return read_sample(read_completion(json.dumps(answer).encode(), "url"), composed(HELLO, **options), 1000)


def called(arguments: str) -> tuple[Message, ...]:
    return HELLO, Assistant(tool_calls=(ToolCall("c1", "run", arguments),)), ToolResult("c1", (Text("done"),))


def test_P109_no_request_streams_and_a_call_that_the_tokens_do_not_hold_is_told() -> None:
    assert composed(HELLO).body["stream"] is False
    whole = '<tool_call>\n{"name": "run", "arguments": {"x": 1}}\n</tool_call>'
    calls = [("run", '{"x": 1}')]
    for sampled, matches in ((whole, True), (whole.replace("1", "2"), False), ("<tool_call>", False)):
        sample = read(completion(entry(5, sampled), tool_calls=calls, finish_reason="tool_calls"))
        assert sample.decode_matches_text is matches, sampled


@pytest.mark.parametrize("prompt", [[1, 2], None])
@pytest.mark.parametrize("response", [[5, 6, 2], None])
def test_P110_P111_an_answer_with_half_of_its_ids_is_invalid(
    prompt: list[int] | None, response: list[int] | None
) -> None:
    answer = hello()
    answer["prompt_token_ids"], answer["choices"][0]["token_ids"] = prompt, response
    sample = read(answer)
    assert (sample.invalid_reason is None) == (prompt is not None and response is not None)
    assert sample.text == "Hello"


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ('{"x": "a"}', '{"x": "a"}'),
        ('{"x":1,"a":[ ]}', '{"x":1,"a":[ ]}'),
        ("", "{}"),
        ("null", "{}"),
        ("  \n", "{}"),
        ('{"x": NaN}', '{"x": NaN}'),
        ('{"x": "\\ud83d\\ude00"}', '{"x": "\\ud83d\\ude00"}'),
    ],
)
def test_P113_arguments_of_the_history_go_out_as_text_byte_for_byte_and_none_as_an_empty_object(
    said: str, sent: str
) -> None:
    outgoing = composed(*called(said))
    assert outgoing.body["messages"][1]["tool_calls"][0]["function"]["arguments"] == sent
    assert outgoing.not_carried == ()


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ('{"x": ', "{}"),
        ("[1]", "{}"),
        ('"text"', "{}"),
        ("ls -l", "{}"),
        ("{}{}", "{}"),
        ("[" * 100_000, "{}"),
        ('{"x": "\\ud83d"}', '{"x": "?"}'),
    ],
    ids=["cut", "list", "string", "words", "two", "deep", "half a character"],
)
def test_P113_P032_a_call_that_no_template_can_show_is_mended_and_said_to_be(said: str, sent: str) -> None:
    outgoing = composed(*called(said), *called(said))
    assert [
        message["tool_calls"][0]["function"]["arguments"]
        for message in outgoing.body["messages"]
        if "tool_calls" in message
    ] == [sent, sent]
    assert [note.field for note in outgoing.not_carried] == ["messages.*.tool_calls.*.function.arguments"]


def test_P114_what_is_asked_beyond_the_window_is_clamped_and_the_wish_is_kept() -> None:
    outgoing = composed(HELLO, sampling=Sampling(max_tokens=32_000)).within(32_768 - 1_000)
    assert (outgoing.max_tokens, outgoing.asked_max_tokens) == (31_768, 32_000)
    sample = read(hello(), sampling=Sampling(max_tokens=32_000))
    (note,) = sample.not_carried
    assert note.why == "clamped from 32000 to 984: the window is 1000 tokens and the prompt takes 16"


def test_P119_a_stop_string_inside_the_thinking_is_said() -> None:
    thinking = entry(5, "<think>Hm")
    stopped = read(completion(thinking, reasoning="Hm", stop_reason="END"))
    assert [note.field for note in stopped.not_carried] == ["stop"]
    answered = read(completion(thinking, reasoning="Hm", content="Yes", stop_reason="END"))
    by_token = read(completion(thinking, reasoning="Hm"))
    assert answered.not_carried == by_token.not_carried == ()


def test_P123_the_placeholder_of_an_image_is_the_same_in_every_later_prompt() -> None:
    first = composed(PICTURE).body["messages"]
    second = composed(PICTURE, Assistant("I see."), PICTURE).body["messages"]
    assert second[: len(first)] == first
    assert first[0]["content"] == f"look\n{IMAGE_PLACEHOLDER}"


# On a real engine


@pytest.mark.live
@pytest.mark.parametrize(
    "said", ['{"x": "a"}', "", "null", '{"x": ', "[1]", "ls -l", '{"x": NaN}', '{"x": "\\ud83d"}', "{}{}"]
)
async def test_P113_a_real_engine_takes_every_call_of_a_history(said: str, engine_url: str) -> None:
    request = ChatRequest(called(said), tools=(RUN,), sampling=Sampling(max_tokens=1))
    async with Engine(engine_url) as engine:
        assert (await engine.chat(request)).invalid_reason is None


@pytest.mark.live
async def test_P115_the_thinking_of_earlier_turns_reaches_the_prompt(engine_url: str) -> None:
    """vLLM's chat route reads `reasoning_content` too, its /tokenize does not (0.32): both read `reasoning`."""
    last = User((Text("And now?"),))
    async with Engine(engine_url) as engine:

        async def prompt(assistant: Assistant) -> list[int]:
            request = ChatRequest((HELLO, assistant, last), sampling=Sampling(max_tokens=1))
            ids = (await engine.chat(request)).prompt_ids
            assert await engine.count(request) == len(ids)
            return ids

        without, short = await prompt(Assistant("Hi.")), await prompt(Assistant("Hi.", reasoning="thought"))
        longer = await prompt(Assistant("Hi.", reasoning="thought " * 50))
    assert len(without) < len(short) < len(longer) - 40


@pytest.mark.live
async def test_P123_a_later_prompt_with_an_image_begins_like_the_first_on_a_real_engine(engine_url: str) -> None:
    async with Engine(engine_url) as engine:
        limit = Sampling(max_tokens=1)
        first = await engine.chat(ChatRequest((PICTURE,), sampling=limit))
        second = await engine.chat(ChatRequest((PICTURE, Assistant("I see."), PICTURE), sampling=limit))
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
