"""Integers of any size pass through all four APIs, from a client's bytes to the engine's and back."""

import json
from typing import Any

import pytest

from polar_mitm.chat import CallError, ChatReply, ChatRequest, Json, ToolCall, Usage, message_wire, tool_wire
from polar_mitm.engine.body import compose
from polar_mitm.json_text import dumps
from polar_mitm.providers import PROVIDERS, Ask, Provider, Request, anthropic, google, openai_chat, openai_responses
from polar_mitm.proxy.body import read_object

BIG, LOW, HUGE = 2**64 + 1, -(2**63) - 1, 10**400 + 1
VALUE = {"id": BIG, "in": [LOW, {"deep": HUGE}], "small": 3, "half": 0.5}
TEXT = json.dumps(VALUE)
SCHEMA = {"type": "object", "properties": {"id": {"type": "integer", "maximum": BIG, "enum": [LOW, HUGE]}}}
CALL_ID = "c1"

PATHS = {
    anthropic: "/v1/messages",
    openai_chat: "/v1/chat/completions",
    openai_responses: "/v1/responses",
    google: "/v1beta/models/m:generateContent",
}
STREAMS = {google: "/v1beta/models/m:streamGenerateContent"}
BODIES: dict[Any, Json] = {
    anthropic: {
        "model": "m",
        "max_tokens": 9,
        "tools": [{"name": "f", "input_schema": SCHEMA, "input_examples": [VALUE]}],
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": CALL_ID, "name": "f", "input": VALUE}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": CALL_ID, "content": "ok"}]},
        ],
    },
    openai_chat: {
        "model": "m",
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "tool_calls": [{"id": CALL_ID, "type": "function", "function": {"name": "f", "arguments": TEXT}}],
            },
            {"role": "tool", "tool_call_id": CALL_ID, "content": "ok"},
        ],
    },
    openai_responses: {
        "model": "m",
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
        "input": [
            {"role": "user", "content": "hi"},
            {"type": "function_call", "call_id": CALL_ID, "name": "f", "arguments": TEXT},
            {"type": "function_call_output", "call_id": CALL_ID, "output": "ok"},
        ],
    },
    google: {
        "tools": [{"functionDeclarations": [{"name": "f", "parameters": SCHEMA}]}],
        "generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA},
        "contents": [
            {"role": "user", "parts": [{"text": "hi"}]},
            {"role": "model", "parts": [{"functionCall": {"id": CALL_ID, "name": "f", "args": VALUE}}]},
            {"role": "user", "parts": [{"functionResponse": {"id": CALL_ID, "name": "f", "response": VALUE}}]},
        ],
    },
}


def parse(provider: Provider, content: bytes, path: str = "") -> Ask:
    request = Request("POST", provider.HOSTS[0], path or PATHS[provider])
    route = provider.recognise(request)
    assert route
    return provider.parse(request, route, read_object(content, "")[1])


def to_engine(chat: ChatRequest) -> Any:
    """What a JSON reader that keeps integers, as vLLM's does, gets of the request."""
    return json.loads(dumps(compose(chat, model="m", overrides={}).body))


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.NAME)
def test_the_digits_of_a_body_reach_the_engine(provider: Provider) -> None:
    body = to_engine(parse(provider, dumps(BODIES[provider])).chat)
    (call,) = body["messages"][1]["tool_calls"]
    assert call["function"]["arguments"] == TEXT
    assert body["tools"][0]["function"]["parameters"] == SCHEMA
    assert body["response_format"]["json_schema"]["schema"] == SCHEMA
    if provider is google:
        assert body["messages"][2]["content"] == TEXT
    if provider is anthropic:
        assert TEXT in body["tools"][0]["function"]["description"]


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.NAME)
def test_the_digits_that_a_model_writes_reach_the_client(provider: Provider) -> None:
    calls = (ToolCall(CALL_ID, "f", TEXT),)
    reply = ChatReply("ab", 1, "", "", calls, "tool_calls", Usage(3, 4))
    ask = parse(provider, dumps({**BODIES[provider], "stream": True}), STREAMS.get(provider, ""))
    assert provider.repairs(ask, reply) == ()
    whole, streamed = dumps(provider.render(ask, reply)), b"".join(provider.stream(ask, reply))
    for number in (BIG, LOW, HUGE):
        assert str(number).encode() in whole and str(number).encode() in streamed
    assert len(whole) < 2 * len(TEXT) + 3000


def test_the_tools_that_a_search_found_are_told_with_all_their_digits() -> None:
    found = {"type": "function", "name": "g", "parameters": SCHEMA}
    search = {"type": "tool_search_call", "call_id": "s", "execution": "client", "arguments": VALUE}
    output = {"type": "tool_search_output", "call_id": "s", "execution": "client", "tools": [found]}
    body = {"model": "m", "input": [{"role": "user", "content": "hi"}, search, output]}
    messages = [message_wire(message) for message in parse(openai_responses, dumps(body)).chat.messages]
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == TEXT
    assert json.loads(messages[2]["content"])["function"]["parameters"] == SCHEMA


@pytest.mark.parametrize("number", ["1e400", "-1e999", "NaN", "Infinity", "1" * 5000])
@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.NAME)
def test_a_number_that_cannot_be_carried_is_refused(provider: Provider, number: str) -> None:
    content = dumps(BODIES[provider]).replace(b'"maximum":%d' % BIG, b'"maximum":' + number.encode())
    with pytest.raises(CallError, match="can't be read as JSON") as caught:
        parse(provider, content)
    assert caught.value.kind == "invalid_request"


def test_a_count_of_googles_that_is_a_string_of_digits_is_a_number_of_any_size_that_is_one() -> None:
    counted = {"type": "ARRAY", "minItems": str(BIG), "maxItems": "9" * 5000, "items": {"type": "STRING"}}
    body = {**BODIES[google], "tools": [{"functionDeclarations": [{"name": "f", "parameters": counted}]}]}
    (tool,) = map(tool_wire, parse(google, dumps(body)).chat.tools)
    parameters = tool["function"]["parameters"]
    assert (parameters["minItems"], parameters["maxItems"]) == (BIG, "9" * 5000)
