"""The official `anthropic` SDK through the whole proxy: JSON and stream, text and tool calls, two turns."""

import json
from typing import Any

import httpx2
import pytest
from anthropic import AsyncAnthropic, AuthenticationError, BadRequestError, InternalServerError, NotFoundError
from anthropic.lib.tools import BetaAsyncAbstractMemoryTool
from anthropic.types import Message, beta

from tests.conformance.conftest import Front
from tests.conformance.sampled import CALLING, HELLO, MAX_TOKENS, PROMPT, SCHEMA, WARNINGS, Sampled, known, last
from tests.conftest import Staged
from tests.fakes.vllm import Reply
from tests.proxy.asks import TOOL
from tests.proxy.stage import Stage

pytestmark = pytest.mark.filterwarnings(*WARNINGS)

ASKED: dict[str, Any] = {
    "model": "claude-9",
    "max_tokens": MAX_TOKENS,
    "messages": [{"role": "user", "content": PROMPT}],
}
TOOLS: dict[str, Any] = {
    "tools": [{"name": TOOL, "description": "Runs a command.", "input_schema": SCHEMA, "strict": True}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
}
NO_CALL = {**TOOLS, "tool_choice": {"type": "none"}}


def sdk(on: Stage, key: str | None = None) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=on.base_url(), api_key=key or on.session.token, max_retries=0)


def check_text(message: Message, sampled: Sampled) -> None:
    assert message.model_dump(exclude_none=True) == {
        "id": f"msg_{sampled.id}",
        "type": "message",
        "role": "assistant",
        "model": "claude-9",
        "content": [{"type": "text", "text": sampled.text}] if sampled.text else [],
        "stop_reason": "end_turn",
        "usage": {
            "input_tokens": sampled.prompt_tokens,
            "output_tokens": sampled.completion_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
    }


def check_call(message: Message, sampled: Sampled) -> None:
    assert [block.model_dump(exclude_none=True) for block in message.content] == [
        {"type": "tool_use", "id": call_id, "name": name, "input": json.loads(arguments)}
        for call_id, name, arguments in sampled.calls
    ]
    assert len(sampled.calls) >= 1
    assert message.stop_reason == "tool_use"


async def test_a_text_answer_as_json_and_as_a_stream(front: Front) -> None:
    async with front(HELLO) as on, sdk(on) as client:
        check_text(await client.messages.create(**ASKED), last(on))
        async with client.messages.stream(**ASKED) as stream:
            kinds = [event.type async for event in stream]
            message = await stream.get_final_message()
        sampled = last(on)
        check_text(message, sampled)
        if not front.real:
            known(sampled, HELLO)
            assert kinds == [
                "message_start",
                "content_block_start",
                "content_block_delta",
                "text",
                "content_block_stop",
                "message_delta",
                "message_stop",
            ]


async def test_keep_alives_before_the_first_event_are_no_events(front: Front) -> None:
    slow = Reply("Hello there.", delay_s=0.2)
    async with front(slow, grace_s=0, keepalive_s=0.05) as on, sdk(on) as client:
        async with client.messages.stream(**ASKED) as stream:
            kinds = [event.type async for event in stream]
            message = await stream.get_final_message()
        check_text(message, last(on))
        assert kinds[0] == "message_start"
        if not front.real:  # which may be faster than the first keep-alive
            async with client.messages.with_streaming_response.create(**ASKED, stream=True) as raw:
                assert (await anext(raw.iter_lines())) == "event: ping"


@pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])
async def test_a_tool_call_and_its_result_in_the_next_turn(streamed: bool, front: Front) -> None:
    async with front(CALLING, HELLO) as on, sdk(on) as client:
        if streamed:
            async with client.messages.stream(**ASKED, **TOOLS) as stream:
                first = await stream.get_final_message()
        else:
            first = await client.messages.create(**ASKED, **TOOLS)
        sampled = last(on)
        check_call(first, sampled)
        if not front.real:
            known(sampled, CALLING)

        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "a.txt"}
            for block in first.content
            if block.type == "tool_use"
        ]
        history = [
            *ASKED["messages"],
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": results},
        ]
        check_text(await client.messages.create(**{**ASKED, "messages": history}, **NO_CALL), last(on))
        second = last(on).call
        assert second.parent_call_id == sampled.call.identity.call_id
        asked = second.request.messages
        assert [message["role"] for message in asked] == ["user", "assistant", *["tool"] * len(sampled.calls)]
        assert [(call["id"], call["function"]["name"]) for call in asked[1]["tool_calls"]] == [
            (call_id, name) for call_id, name, _ in sampled.calls
        ]
        for call, (_, _, arguments) in zip(asked[1]["tool_calls"], sampled.calls, strict=True):
            assert json.loads(call["function"]["arguments"]) == json.loads(arguments)
        assert asked[2] == {"role": "tool", "tool_call_id": sampled.calls[0][0], "content": "a.txt"}


async def test_through_the_proxy_port_with_an_unchanged_base_url(front: Front) -> None:
    async with front(HELLO, grace_s=0, keepalive_s=0.05) as on:
        http = httpx2.AsyncClient(proxy=on.proxy_url(), verify=on.trust)
        async with AsyncAnthropic(api_key="sk-ant-any", http_client=http, max_retries=0) as client:
            assert str(client.base_url) == "https://api.anthropic.com"
            check_text(await client.messages.create(**ASKED), last(on))
            async with client.messages.stream(**ASKED) as stream:
                check_text(await stream.get_final_message(), last(on))


class Memory(BetaAsyncAbstractMemoryTool):
    """Runs the memory tool: `view` lists what `insert` was given."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[str] = []

    async def view(self, command: beta.BetaMemoryTool20250818ViewCommand) -> str:
        return f"{command.path}: {self.kept}"

    async def insert(self, command: beta.BetaMemoryTool20250818InsertCommand) -> str:
        self.kept.append(command.insert_text)
        return "done"

    async def refuse(self, command: object) -> str:
        raise AssertionError(command)

    create = str_replace = delete = rename = refuse


@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
async def test_the_tool_runner_runs_a_client_tool_without_a_schema_to_the_end(as_stream: bool, stage: Staged) -> None:
    kept = '{"command": "insert", "path": "/memories/a", "insert_line": 0, "insert_text": "Grüße"}'
    viewed = '{"command": "view", "path": "/memories"}'
    calling = Reply("", tool_calls=[("memory", kept), ("memory", viewed)])
    memory = Memory()
    async with stage(calling, HELLO) as on, sdk(on) as client:
        runner: Any = client.beta.messages.tool_runner(**ASKED, tools=[memory], stream=as_stream)
        message = await runner.until_done()
        assert [block.text for block in message.content] == [HELLO.text]
        assert memory.kept == ["Grüße"]
        asked = last(on).call.request.messages
        # The runner asks for a thread at first, is refused, and sends the whole conversation from then on.
        assert [said["role"] for said in asked] == ["user", "assistant", "tool", "tool"]
        assert [said["content"] for said in asked[2:]] == ["done", "/memories: ['Grüße']"]
        assert [call["function"]["name"] for call in asked[1]["tool_calls"]] == ["memory", "memory"]
        assert len(on.calls()) == 2


async def test_a_thread_is_refused_by_the_code_that_the_sdk_knows(stage: Staged) -> None:
    async with stage(HELLO) as on, sdk(on) as client:
        asked: Any = {**ASKED, "thread": {"type": "create"}}
        with pytest.raises(BadRequestError, match="thread: Extra inputs are not permitted") as refused:
            await client.beta.messages.create(**asked)
        assert refused.value.body["error"]["details"]["error_code"] == "thread_unsupported_request"  # type: ignore[index]


async def test_errors_are_the_sdks_own_classes(stage: Any) -> None:
    async with stage(Reply(status=500, error="no luck")) as on, sdk(on) as client:
        with pytest.raises(InternalServerError, match="the engine answered 500"):
            await client.messages.create(**ASKED)
        with pytest.raises(BadRequestError, match="max_tokens"):
            await client.messages.create(**{**ASKED, "max_tokens": -1})
        with pytest.raises(NotFoundError, match="polar serves no POST /v1/messages/batches"):
            await client.messages.batches.create(requests=[])
        async with sdk(on, "wrong") as stranger:
            with pytest.raises(AuthenticationError, match="no open session"):
                await stranger.messages.create(**ASKED)
