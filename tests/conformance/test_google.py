"""The official `google-genai` SDK through the whole proxy: JSON, stream and raw array, text and calls, two turns."""

import json
from typing import Any

import orjson
import pytest
from google import genai
from google.genai import errors, types

from polar_mitm.proxy.sessions import Step
from tests.conformance.conftest import Front
from tests.conformance.sampled import CALLING, HELLO, MAX_TOKENS, PROMPT, SCHEMA, WARNINGS, Sampled, known, last
from tests.conftest import Staged
from tests.fakes.vllm import Reply
from tests.proxy.asks import GOOGLE_ARRAY, TOOL
from tests.proxy.stage import Stage

# The one warning let through is about how the SDK itself uses aiohttp.
pytestmark = pytest.mark.filterwarnings(*WARNINGS, "ignore:Inheritance class AiohttpClientSession:DeprecationWarning")

MODEL = "gemini-9"
TEXT = types.GenerateContentConfig(max_output_tokens=MAX_TOKENS)
FUNCTION = types.FunctionDeclaration(name=TOOL, description="Runs a command.", parameters_json_schema=SCHEMA)
OFFERED = types.GenerateContentConfig(
    max_output_tokens=MAX_TOKENS, tools=[types.Tool(function_declarations=[FUNCTION])]
)
FORCED = OFFERED.model_copy(
    update={
        "tool_config": types.ToolConfig(
            function_calling_config=types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode.ANY)
        )
    }
)


def sdk(on: Stage, key: str | None = None) -> genai.client.AsyncClient:
    return genai.Client(api_key=key or on.session.token, http_options=types.HttpOptions(base_url=on.base_url())).aio


def check(response: types.GenerateContentResponse, sampled: Sampled) -> None:
    assert (response.model_version, response.response_id) == (MODEL, sampled.id)
    assert response.candidates
    (candidate,) = response.candidates
    assert (candidate.index, candidate.finish_reason) == (0, types.FinishReason.STOP)
    assert candidate.content and candidate.content.role == "model"
    calls = [part.function_call for part in candidate.content.parts or [] if part.function_call]
    assert [(call.id, call.name, call.args) for call in calls] == [
        (call_id, name, json.loads(arguments)) for call_id, name, arguments in sampled.calls
    ]
    texts = [part.text for part in candidate.content.parts or [] if part.text is not None]
    assert "".join(texts) == sampled.text
    usage = response.usage_metadata
    assert usage and (usage.prompt_token_count, usage.candidates_token_count) == (
        sampled.prompt_tokens,
        sampled.completion_tokens,
    )
    assert usage.total_token_count == sampled.prompt_tokens + sampled.completion_tokens


def joined(chunks: list[types.GenerateContentResponse]) -> types.GenerateContentResponse:
    """The chunks of a stream as one response: the last one, with the parts of all."""
    parts: list[types.Part] = []
    for chunk in chunks:
        assert chunk.candidates and chunk.candidates[0].content
        parts += chunk.candidates[0].content.parts or []
    whole = chunks[-1].model_copy(deep=True)
    assert whole.candidates and whole.candidates[0].content
    whole.candidates[0].content.parts = parts
    return whole


async def streamed(
    client: genai.client.AsyncClient, contents: Any, config: types.GenerateContentConfig
) -> list[types.GenerateContentResponse]:
    stream = await client.models.generate_content_stream(model=MODEL, contents=contents, config=config)
    return [chunk async for chunk in stream]


async def test_a_text_answer_as_json_and_as_a_stream(front: Front) -> None:
    async with front(HELLO) as on, sdk(on) as client:
        check(await client.models.generate_content(model=MODEL, contents=PROMPT, config=TEXT), last(on))
        chunks = await streamed(client, PROMPT, TEXT)
        sampled = last(on)
        check(joined(chunks), sampled)
        assert all(chunk.candidates and chunk.candidates[0].finish_reason is None for chunk in chunks[:-1])
        if not front.real:
            known(sampled, HELLO)
            assert [chunk.text for chunk in chunks] == ["Hello there.", ""]


async def test_keep_alives_before_the_first_event_are_no_events(front: Front) -> None:
    slow = Reply("Hello there.", delay_s=0.2)
    async with front(slow, grace_s=0, keepalive_s=0.05) as on, sdk(on) as client:
        check(joined(await streamed(client, PROMPT, TEXT)), last(on))


@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
async def test_a_tool_call_and_its_result_in_the_next_turn(as_stream: bool, front: Front) -> None:
    async with front(CALLING, HELLO) as on, sdk(on) as client:
        if front.real:  # this API can force a call, but not one call, nor that it keeps to the schema
            on.session.script = (Step(TOOL, {"cmd": "ls"}),)
        if as_stream:
            first = joined(await streamed(client, PROMPT, FORCED))
        else:
            first = await client.models.generate_content(model=MODEL, contents=PROMPT, config=FORCED)
        sampled = last(on)
        check(first, sampled)
        assert len(sampled.calls) >= 1
        if not front.real:
            known(sampled, CALLING)

        assert first.candidates and first.candidates[0].content
        results = [
            types.FunctionResponse(id=call.id, name=call.name, response={"output": "a.txt"})
            for call in first.function_calls or []
        ]
        answers = [types.Part(function_response=result) for result in results]
        asked_first = types.Content(role="user", parts=[types.Part(text=PROMPT)])
        history = [asked_first, first.candidates[0].content, types.Content(role="user", parts=answers)]
        check(await client.models.generate_content(model=MODEL, contents=history, config=OFFERED), last(on))
        second = last(on).call
        assert second.parent_call_id == sampled.call.identity.call_id
        asked = second.request.messages
        assert [said["role"] for said in asked] == ["user", "assistant", *["tool"] * len(sampled.calls)]
        assert [
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in asked[1]["tool_calls"]
        ] == [(call_id, name, json.loads(arguments)) for call_id, name, arguments in sampled.calls]
        assert asked[2] == {"role": "tool", "tool_call_id": sampled.calls[0][0], "content": "a.txt"}


async def test_through_the_proxy_port_with_an_unchanged_base_url(front: Front) -> None:
    async with front(HELLO, grace_s=0, keepalive_s=0.05) as on:
        options = types.HttpOptions(async_client_args={"proxy": on.proxy_url(), "ssl": on.trust})
        async with genai.Client(api_key="AIza-any", http_options=options).aio as client:
            check(await client.models.generate_content(model=MODEL, contents=PROMPT, config=TEXT), last(on))
            check(joined(await streamed(client, PROMPT, TEXT)), last(on))
        assert {flow.request.host for flow in on.flows()} == {"generativelanguage.googleapis.com"}


@pytest.mark.parametrize("grace_s", [10, 0], ids=["at-once", "kept-alive"])
async def test_the_json_array_form_reads_as_one_json_document(grace_s: float, front: Front) -> None:
    async with front(Reply("Hello there.", delay_s=0.1), grace_s=grace_s, keepalive_s=0.05) as on:
        got = await on.post(GOOGLE_ARRAY)
        assert (got.status, got.headers["content-type"]) == (200, "application/json")
        if not front.real:
            assert got.body.startswith(b"\n" if grace_s == 0 else b"[")
        chunks = [types.GenerateContentResponse.model_validate(chunk) for chunk in orjson.loads(got.body)]
        check(joined(chunks), last(on))


async def test_errors_are_the_sdks_own_classes(stage: Staged) -> None:
    async with stage(Reply(status=500, error="no luck")) as on, sdk(on) as client:
        with pytest.raises(errors.ServerError, match="the engine answered 500") as failed:
            await client.models.generate_content(model=MODEL, contents=PROMPT)
        assert (failed.value.code, failed.value.status) == (500, "INTERNAL")
        bad = types.GenerateContentConfig(temperature=-1)
        with pytest.raises(errors.ClientError, match="temperature"):
            await client.models.generate_content(model=MODEL, contents=PROMPT, config=bad)
        async with sdk(on, "wrong") as stranger:
            with pytest.raises(errors.ClientError, match="no open session") as unknown:
                await stranger.models.generate_content(model=MODEL, contents=PROMPT)
        assert (unknown.value.code, unknown.value.status) == (401, "UNAUTHENTICATED")
