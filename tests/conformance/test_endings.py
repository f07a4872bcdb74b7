"""Each official SDK reads every kind of ending, as JSON and as a stream, to the same: stop strings, limits, calls."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Message
from google import genai
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from tests.conformance import test_anthropic, test_google, test_openai_chat, test_openai_responses
from tests.conformance.conftest import Front
from tests.conformance.sampled import PROMPT, WARNINGS, last
from tests.conftest import Staged
from tests.fakes.vllm import Reply
from tests.proxy.asks import SCHEMA, TOOL
from tests.proxy.stage import Stage

# The warnings let through are about how an SDK itself uses aiohttp, and serialises what it parsed.
pytestmark = pytest.mark.filterwarnings(
    *WARNINGS, "ignore:Inheritance class AiohttpClientSession:DeprecationWarning", "ignore:Pydantic serializer"
)


class Read(NamedTuple):
    """What an SDK's object says of a reply."""

    text: str
    reasoning: str
    calls: list[tuple[str, Any]]
    ending: str
    stop: str | None = None
    """The stop string, where the API names it."""


async def anthropic(on: Stage, as_stream: bool, **asked: Any) -> Read:
    client: AsyncAnthropic = test_anthropic.sdk(on)
    tool = {"name": TOOL, "input_schema": SCHEMA}
    body: dict[str, Any] = {**test_anthropic.ASKED, "tools": [tool], "max_tokens": asked.get("most", 64)}
    if "stop" in asked:
        body["stop_sequences"] = asked["stop"]
    async with client:
        if as_stream:
            async with client.messages.stream(**body) as stream:
                message: Message = await stream.get_final_message()
        else:
            message = await client.messages.create(**body)
    said: dict[str, list[str]] = {"text": [], "thinking": []}
    calls = []
    for block in message.content:
        if block.type == "tool_use":
            calls.append((block.name, block.input))
        elif block.type in ("text", "thinking"):
            said[block.type].append(getattr(block, block.type))
    assert message.stop_reason
    return Read("".join(said["text"]), "".join(said["thinking"]), calls, message.stop_reason, message.stop_sequence)


async def openai_chat(on: Stage, as_stream: bool, **asked: Any) -> Read:
    client: AsyncOpenAI = test_openai_chat.sdk(on)
    body: dict[str, Any] = {
        "model": "gpt-9",
        "messages": [{"role": "user", "content": PROMPT}],
        "tools": [{"type": "function", "function": {"name": TOOL, "parameters": SCHEMA}}],
        "max_completion_tokens": asked.get("most", 64),
    }
    if "stop" in asked:
        body["stop"] = asked["stop"]
    async with client:
        if not as_stream:
            completion: ChatCompletion = await client.chat.completions.create(**body)
            (choice,) = completion.choices
            message = choice.message
            reasoning = getattr(message, "reasoning_content", None) or ""
            calls = [_function(call) for call in message.tool_calls or []]
            return Read(message.content or "", reasoning, calls, choice.finish_reason)
        text = reasoning = ending = ""
        calls = []
        async for chunk in await client.chat.completions.create(**body, stream=True):
            (part,) = chunk.choices
            text += part.delta.content or ""
            reasoning += getattr(part.delta, "reasoning_content", None) or ""
            calls += [_function(call) for call in part.delta.tool_calls or []]
            ending = part.finish_reason or ending
    return Read(text, reasoning, calls, ending)


def _function(call: Any) -> tuple[str, Any]:
    return call.function.name, json.loads(call.function.arguments)


async def openai_responses(on: Stage, as_stream: bool, **asked: Any) -> Read:
    client: AsyncOpenAI = test_openai_responses.sdk(on)
    tool = {"type": "function", "name": TOOL, "parameters": SCHEMA, "strict": False}
    body: dict[str, Any] = {"model": "gpt-9", "input": PROMPT, "tools": [tool]}
    body["max_output_tokens"] = asked.get("most", 64)
    async with client:
        response: Response
        if as_stream:
            events = [event async for event in await client.responses.create(**body, stream=True)]
            response = events[-1].response
        else:
            response = await client.responses.create(**body)
    reasoning = "".join(
        part.text for item in response.output if item.type == "reasoning" for part in item.content or []
    )
    calls = [(item.name, json.loads(item.arguments)) for item in response.output if item.type == "function_call"]
    details = response.incomplete_details
    ending = details.reason if details and details.reason else response.status
    assert ending
    return Read(response.output_text, reasoning, calls, ending)


async def google(on: Stage, as_stream: bool, **asked: Any) -> Read:
    client: genai.client.AsyncClient = test_google.sdk(on)
    config = test_google.OFFERED.model_copy(
        update={"max_output_tokens": asked.get("most", 64), "stop_sequences": asked.get("stop")}
    )
    if as_stream:
        response = test_google.joined(await test_google.streamed(client, PROMPT, config))
    else:
        response = await client.models.generate_content(model=test_google.MODEL, contents=PROMPT, config=config)
    await client.aclose()
    assert response.candidates
    (candidate,) = response.candidates
    assert candidate.content
    assert candidate.finish_reason
    parts = candidate.content.parts or []
    texts = {thought: "".join(p.text or "" for p in parts if bool(p.thought) is thought) for thought in (False, True)}
    calls = [(part.function_call.name or "", part.function_call.args) for part in parts if part.function_call]
    return Read(texts[False], texts[True], calls, candidate.finish_reason.value)


type Sdk = Callable[..., Awaitable[Read]]
SDKS: tuple[Sdk, ...] = (anthropic, openai_chat, openai_responses, google)
LIST, READ = '{"cmd": "ls"}', '{"cmd":"cat a"}'
REPLIES: Mapping[str, tuple[Reply, Read]] = {
    "length": (Reply("Hello th", finish_reason="length"), Read("Hello th", "", [], "length")),
    "thoughts": (Reply("Hello.", reasoning="Hm, so"), Read("Hello.", "Hm, so", [], "stop")),
    "calls": (
        Reply("So:", reasoning="Two.", tool_calls=[(TOOL, LIST), (TOOL, READ)]),
        Read("So:", "Two.", [(TOOL, {"cmd": "ls"}), (TOOL, {"cmd": "cat a"})], "tool_calls"),
    ),
    "empty": (Reply(""), Read("", "", [], "stop")),
    "filtered": (Reply("No", finish_reason="content_filter"), Read("No", "", [], "content_filter")),
}
ENDINGS: Mapping[str, Mapping[Sdk, str]] = {
    "length": {
        anthropic: "max_tokens",
        openai_chat: "length",
        openai_responses: "max_output_tokens",
        google: "MAX_TOKENS",
    },
    "stop": {anthropic: "end_turn", openai_chat: "stop", openai_responses: "completed", google: "STOP"},
    "tool_calls": {anthropic: "tool_use", openai_chat: "tool_calls", openai_responses: "completed", google: "STOP"},
    "content_filter": {
        anthropic: "refusal",
        openai_chat: "content_filter",
        openai_responses: "content_filter",
        google: "SAFETY",
    },
}
STOPS = ["one", "two", "three", "four", "five"]


@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("sdk", SDKS, ids=lambda sdk: sdk.__name__)
@pytest.mark.parametrize(("reply", "read"), REPLIES.values(), ids=REPLIES)
async def test_a_reply_reads_as_it_was_sampled(
    reply: Reply, read: Read, sdk: Sdk, as_stream: bool, stage: Staged
) -> None:
    async with stage(reply) as on:
        assert await sdk(on, as_stream) == read._replace(ending=ENDINGS[read.ending][sdk])


@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("sdk", [anthropic, openai_chat, google], ids=lambda sdk: sdk.__name__)
async def test_the_stop_string_that_was_met_is_told_and_left_out(sdk: Sdk, as_stream: bool, stage: Staged) -> None:
    async with stage(Reply("Count: ", stop_reason="two")) as on:
        read = await sdk(on, as_stream, stop=STOPS[:4])
        ending = "stop_sequence" if sdk is anthropic else ENDINGS["stop"][sdk]
        assert read == Read("Count: ", "", [], ending, "two" if sdk is anthropic else None)
        assert on.fake.requests[-1]["stop"] == STOPS[:4]


@pytest.mark.parametrize("sdk", [anthropic, google], ids=lambda sdk: sdk.__name__)
async def test_more_stop_strings_than_a_chat_request_to_vllm_takes(sdk: Sdk, front: Front) -> None:
    """Anthropic takes any number and Google five; a token prompt is sampled with all, a chat request with four."""
    async with front(Reply("Hello.")) as on:
        await sdk(on, False, stop=STOPS)
        call = last(on).call
        lost = [note for note in call.request.not_carried if note.field == "stop"]
        if on.tokens == "exact":
            assert (call.request.sampling_sent["stop"], lost) == (STOPS, [])
        else:
            assert call.request.sampling_sent["stop"] == STOPS[:4]
            assert [note.why for note in lost] == [
                "the engine takes 4 (VLLM_MAX_STOP_STRINGS): the last 1 were not sent"
            ]


@pytest.mark.live
async def test_a_fifth_stop_string_ends_the_answer_of_a_real_engine(stage: Staged, engine_url: str) -> None:
    """`tiny` writes words of all kinds: unless it ends at once, a vowel comes soon."""
    stops = ["\x00", "\x01", "\x02", "\x03", "a", "e", "i", "o"]
    async with stage(engine_url=engine_url) as on:
        reads = [await anthropic(on, False, stop=stops) for _ in range(10 if on.tokens == "exact" else 1)]
    stopped = [read for read in reads if read.ending == "stop_sequence"]
    assert bool(stopped) is (on.tokens == "exact")
    assert all(read.stop in stops[4:] and read.stop not in read.text for read in stopped)


@pytest.mark.parametrize("sdk", [anthropic, openai_chat, openai_responses, google], ids=lambda sdk: sdk.__name__)
async def test_the_limit_that_was_asked_for_is_what_is_sampled(sdk: Sdk, front: Front) -> None:
    async with front(Reply("Hello th", finish_reason="length")) as on:
        read = await sdk(on, False, most=3)
        sampled = last(on)
        assert sampled.call.request.sampling_sent["max_tokens"] == 3
        assert sampled.call.response
        if front.real and sampled.call.response.finish_reason == "stop":
            return  # it ended by itself
        assert read.ending == ENDINGS["length"][sdk]
