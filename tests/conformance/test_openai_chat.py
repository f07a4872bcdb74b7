"""The official `openai` SDK's chat completions through the whole proxy: JSON and stream, text and calls, two turns."""

import json
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI, AuthenticationError, BadRequestError, InternalServerError, NotFoundError
from openai.types.chat import ChatCompletion

from tests.conformance.conftest import Front
from tests.conformance.sampled import CALLING, HELLO, MAX_TOKENS, PROMPT, SCHEMA, WARNINGS, Sampled, known, last
from tests.conftest import Staged
from tests.fakes.vllm import Reply
from tests.proxy.asks import TOOL
from tests.proxy.stage import Stage

pytestmark = pytest.mark.filterwarnings(*WARNINGS)

ASKED: dict[str, Any] = {
    "model": "gpt-9",
    "max_completion_tokens": MAX_TOKENS,
    "messages": [{"role": "user", "content": PROMPT}],
}
FUNCTION = {"name": TOOL, "description": "Runs a command.", "parameters": SCHEMA, "strict": True}
TOOLS: dict[str, Any] = {
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}
NO_CALL = {"tools": TOOLS["tools"], "tool_choice": "none"}


def sdk(on: Stage, key: str | None = None) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=on.base_url() + "/v1", api_key=key or on.session.token, max_retries=0)


def check_text(completion: ChatCompletion, sampled: Sampled) -> None:
    check(completion, sampled, {"role": "assistant", "content": sampled.text}, "stop")


def check_call(completion: ChatCompletion, sampled: Sampled) -> None:
    assert len(sampled.calls) >= 1
    calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in sampled.calls
    ]
    message: dict[str, Any] = {"role": "assistant", "tool_calls": calls}
    check(completion, sampled, {**message, "content": sampled.text} if sampled.text else message, "tool_calls")


def check(completion: ChatCompletion, sampled: Sampled, message: dict[str, Any], finish_reason: str) -> None:
    said = json.loads(completion.model_dump_json(exclude_none=True, warnings="error"))
    for call in said["choices"][0]["message"].get("tool_calls", []):
        call.pop("index", None)  # a stream's own
        call["function"].pop("parsed_arguments", None)  # the SDK's own
    assert said == {
        "id": f"chatcmpl-{sampled.id}",
        "object": "chat.completion",
        "created": sampled.created,
        "model": "gpt-9",
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": {
            "prompt_tokens": sampled.prompt_tokens,
            "completion_tokens": sampled.completion_tokens,
            "total_tokens": sampled.prompt_tokens + sampled.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": said["usage"]["prompt_tokens_details"]["cached_tokens"]},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


async def streamed(client: AsyncOpenAI, **asked: Any) -> tuple[ChatCompletion, list[str]]:
    """The completion that the SDK puts together from a stream, and the types of the events on the way."""
    async with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        events: list[str] = [event.type async for event in stream]
        return await stream.get_final_completion(), events


async def test_a_text_answer_as_json_and_as_a_stream(front: Front) -> None:
    async with front(HELLO) as on, sdk(on) as client:
        check_text(await client.chat.completions.create(**ASKED), last(on))
        completion, events = await streamed(client, **ASKED)
        sampled = last(on)
        check_text(completion, sampled)
        if not front.real:
            known(sampled, HELLO)
            assert [event for event in events if event != "chunk"] == ["content.delta", "content.delta", "content.done"]


async def test_keep_alives_change_nothing(front: Front) -> None:
    slow = Reply("Hello there.", delay_s=0.2)
    async with front(slow, grace_s=0, keepalive_s=0.05) as on, sdk(on) as client:
        chunks = [chunk async for chunk in await client.chat.completions.create(**ASKED, stream=True)]
        sampled = last(on)
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == sampled.text
        assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
        if not front.real:  # which may be faster than the first keep-alive
            async with client.chat.completions.with_streaming_response.create(**ASKED, stream=True) as raw:
                first = await anext(raw.iter_lines())
                assert '"delta":{"role":"assistant","content":null,"refusal":null}' in first


@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
async def test_a_tool_call_and_its_result_in_the_next_turn(as_stream: bool, front: Front) -> None:
    async with front(CALLING, HELLO) as on, sdk(on) as client:
        if as_stream:
            first, _ = await streamed(client, **ASKED, **TOOLS)
        else:
            first = await client.chat.completions.create(**ASKED, **TOOLS)
        sampled = last(on)
        check_call(first, sampled)
        if not front.real:
            known(sampled, CALLING)

        message = first.choices[0].message
        results = [{"role": "tool", "tool_call_id": call.id, "content": "a.txt"} for call in message.tool_calls or []]
        history = [*ASKED["messages"], message, *results]
        check_text(await client.chat.completions.create(**{**ASKED, "messages": history}, **NO_CALL), last(on))
        second = last(on).call
        assert second.parent_call_id == sampled.call.identity.call_id
        asked = second.request.messages
        assert [said["role"] for said in asked] == ["user", "assistant", *["tool"] * len(sampled.calls)]
        # Byte for byte as it was sampled.
        assert [
            (call["id"], call["function"]["name"], call["function"]["arguments"]) for call in asked[1]["tool_calls"]
        ] == sampled.calls
        assert asked[2] == {"role": "tool", "tool_call_id": sampled.calls[0][0], "content": "a.txt"}


async def test_through_the_proxy_port_with_an_unchanged_base_url(front: Front) -> None:
    async with front(HELLO, grace_s=0, keepalive_s=0.05) as on:
        http = httpx2.AsyncClient(proxy=on.proxy_url(), verify=on.trust)
        async with AsyncOpenAI(api_key="sk-any", http_client=http, max_retries=0) as client:
            assert client.base_url == "https://api.openai.com/v1/"
            check_text(await client.chat.completions.create(**ASKED), last(on))
            completion, _ = await streamed(client, **ASKED)
            check_text(completion, last(on))


async def test_errors_are_the_sdks_own_classes(stage: Staged) -> None:
    async with stage(Reply(status=500, error="no luck")) as on, sdk(on) as client:
        with pytest.raises(InternalServerError, match="the engine answered 500"):
            await client.chat.completions.create(**ASKED)
        with pytest.raises(BadRequestError, match="temperature") as bad:
            await client.chat.completions.create(**ASKED, temperature=-1)
        assert bad.value.param == "temperature"
        with pytest.raises(NotFoundError, match="polar serves no POST /v1/embeddings"):
            await client.embeddings.create(model="x", input="y")
        async with sdk(on, "wrong") as stranger:
            with pytest.raises(AuthenticationError, match="no open session") as unknown:
                await stranger.chat.completions.create(**ASKED)
        assert unknown.value.code == "invalid_api_key"
