"""The official `openai` SDK's responses through the whole proxy: JSON and stream, text and tool calls, two turns."""

import json
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI, AuthenticationError, BadRequestError, InternalServerError, NotFoundError
from openai.types.responses import Response

from tests.conformance.conftest import Front
from tests.conformance.sampled import CALLING, HELLO, MAX_TOKENS, PROMPT, SCHEMA, WARNINGS, Sampled, known, last
from tests.conftest import Staged
from tests.fakes.vllm import Reply
from tests.proxy.asks import TOOL
from tests.proxy.stage import Stage

pytestmark = pytest.mark.filterwarnings(*WARNINGS)

ASKED: dict[str, Any] = {"model": "gpt-9", "max_output_tokens": MAX_TOKENS, "input": PROMPT}
TOOLS: dict[str, Any] = {
    "tools": [{"type": "function", "name": TOOL, "description": "Runs.", "parameters": SCHEMA, "strict": True}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}
NO_CALL = {"tools": TOOLS["tools"], "tool_choice": "none"}


def sdk(on: Stage, key: str | None = None) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=on.base_url() + "/v1", api_key=key or on.session.token, max_retries=0)


def check(response: Response, sampled: Sampled) -> None:
    """Everything that stands in a response and does not only repeat the request."""
    said = json.loads(response.model_dump_json(warnings="error"))
    assert (said["id"], said["object"], said["status"]) == (f"resp_{sampled.id}", "response", "completed")
    assert (said["created_at"], said["model"], said["error"]) == (sampled.created, "gpt-9", None)
    usage = said["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (sampled.prompt_tokens, sampled.completion_tokens)
    assert usage["total_tokens"] == sampled.prompt_tokens + sampled.completion_tokens
    output = said["output"]
    if sampled.text or not sampled.calls:
        message = output.pop(0)
        assert (message["type"], message["role"], message["status"]) == ("message", "assistant", "completed")
        (part,) = message["content"]
        assert (part["type"], part["text"], part["annotations"]) == ("output_text", sampled.text, [])
    assert [(call["type"], call["status"]) for call in output] == [("function_call", "completed")] * len(output)
    assert [(call["call_id"], call["name"], call["arguments"]) for call in output] == sampled.calls
    assert response.output_text == sampled.text


async def streamed(client: AsyncOpenAI, **asked: Any) -> tuple[Response, list[str]]:
    """The response that a stream ends with, and the types of the events; numbered from 0 without a gap."""
    async with client.responses.stream(**asked) as stream:
        events = [event async for event in stream]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        return await stream.get_final_response(), [event.type for event in events]


async def test_a_text_answer_as_json_and_as_a_stream(front: Front) -> None:
    async with front(HELLO) as on, sdk(on) as client:
        check(await client.responses.create(**ASKED), last(on))
        response, kinds = await streamed(client, **ASKED)
        sampled = last(on)
        check(response, sampled)
        if not front.real:
            known(sampled, HELLO)
            assert kinds == [
                "response.created",
                "response.in_progress",
                "response.output_item.added",
                "response.content_part.added",
                "response.output_text.delta",
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.completed",
            ]


async def test_keep_alives_change_nothing(front: Front) -> None:
    slow = Reply("Hello there.", delay_s=0.2)
    async with front(slow, grace_s=0, keepalive_s=0.05) as on, sdk(on) as client:
        response, kinds = await streamed(client, **ASKED)
        check(response, last(on))
        assert kinds[0] == "response.created"
        if not front.real:  # which may be faster than the first keep-alive
            async with client.responses.with_streaming_response.create(**ASKED, stream=True) as raw:
                lines = [line async for line in raw.iter_lines()]
                assert lines.count("event: response.in_progress") > 1


@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
async def test_a_tool_call_and_its_result_in_the_next_turn(as_stream: bool, front: Front) -> None:
    async with front(CALLING, HELLO) as on, sdk(on) as client:
        if as_stream:
            first, _ = await streamed(client, **ASKED, **TOOLS)
        else:
            first = await client.responses.create(**ASKED, **TOOLS)
        sampled = last(on)
        check(first, sampled)
        assert len(sampled.calls) >= 1
        if not front.real:
            known(sampled, CALLING)

        results = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "a.txt"}
            for item in first.output
            if item.type == "function_call"
        ]
        history = [{"role": "user", "content": PROMPT}, *first.output, *results]
        check(await client.responses.create(**{**ASKED, "input": history}, **NO_CALL), last(on))
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
            check(await client.responses.create(**ASKED), last(on))
            response, _ = await streamed(client, **ASKED)
            check(response, last(on))


async def test_errors_are_the_sdks_own_classes(stage: Staged) -> None:
    async with stage(Reply(status=500, error="no luck")) as on, sdk(on) as client:
        with pytest.raises(InternalServerError, match="the engine answered 500"):
            await client.responses.create(**ASKED)
        with pytest.raises(BadRequestError, match="resp_1"):
            await client.responses.create(**ASKED, previous_response_id="resp_1")
        for asked in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
            with pytest.raises(NotFoundError, match="Response with id 'resp_1' not found"):
                await asked("resp_1")
        async with sdk(on, "wrong") as stranger:
            with pytest.raises(AuthenticationError, match="no open session"):
                await stranger.responses.create(**ASKED)


async def test_a_failure_after_early_bytes_is_a_failed_response(stage: Staged) -> None:
    broken = Reply(status=500, error="no luck", delay_s=0.1)
    async with stage(broken, grace_s=0, keepalive_s=0.05) as on, sdk(on) as client:
        events = [event async for event in await client.responses.create(**ASKED, stream=True)]
        first, *running, end = events
        assert first.type == "response.created"
        assert {event.type for event in running} == {"response.in_progress"}
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert end.type == "response.failed"
        error = end.response.error
        assert error and error.code == "server_error" and error.message == "the engine answered 500"
