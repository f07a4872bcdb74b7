"""Random replies through the official SDK's own accumulators, cut at any byte, and random conversations into Chat."""

from itertools import pairwise
from typing import Any

import httpx2
import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import OpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState

import polar_mitm.providers.openai_chat as openai_chat
import polar_mitm.providers.openai_responses as openai_responses
from polar_mitm.chat import (
    Assistant,
    CallError,
    ChatReply,
    Json,
    Message,
    System,
    ToolCall,
    ToolResult,
    Usage,
    User,
    text_of,
)
from polar_mitm.providers.base import Request, Route
from polar_mitm.providers.openai_transcript import UNANSWERED
from tests.providers.early import early

SCHEMA: Json = {"type": "object", "properties": {"cmd": {"type": "string"}}}
GRAMMAR: Json = {"syntax": "lark", "definition": 'start: "*** Begin Patch" "*** End Patch"'}
CHAT_TOOLS: Any = [
    {"type": "function", "function": {"name": "run", "parameters": SCHEMA}},
    {"type": "custom", "custom": {"name": "patch", "format": {"type": "grammar", "grammar": GRAMMAR}}},
]
RESPONSES_TOOLS: Any = [
    {"type": "function", "name": "run", "parameters": SCHEMA, "strict": False},
    {"type": "custom", "name": "patch", "format": {"type": "grammar", **GRAMMAR}},
    {"type": "local_shell"},
    {"type": "shell", "environment": {"type": "local"}},
    {"type": "apply_patch"},
    {"type": "namespace", "name": "mail", "description": "Mail.", "tools": [{"type": "function", "name": "send"}]},
]
NAMES = ["run", "patch", "local_shell", "shell", "apply_patch", "mail__send", "invented"]

some_arguments = st.sampled_from(
    [
        "",
        "{}",
        "null",
        '{"cmd":  "echo \\u003e é"}',
        '{"input": "*** Begin Patch\\n*** End Patch"}',
        '{"command": ["ls"], "timeout_ms": 1}',
        '{"commands": ["ls"]}',
        '{"type": "delete_file", "path": "a"}',
        '{"cmd": "cut o',
        "no json",
    ]
) | st.text(max_size=20)
some_calls = st.lists(st.tuples(st.sampled_from(NAMES), some_arguments), max_size=4).map(
    lambda calls: tuple(ToolCall(f"call_{number}", *call) for number, call in enumerate(calls))
)
replies = st.builds(
    ChatReply,
    id=st.just("0a1b"),
    created=st.just(1764460800),
    text=st.text(max_size=40),
    reasoning=st.text(max_size=20),
    tool_calls=some_calls,
    finish_reason=st.sampled_from(["stop", "length", "tool_calls", "content_filter"]),
    usage=st.builds(Usage, *[st.integers(0, 2**40)] * 4),
)
cuts = st.sets(st.integers(0, 4000), max_size=40)


def pieces(sent: bytes, cuts: set[int]) -> list[bytes]:
    """The bytes, cut at these places."""
    places = [0, *sorted(cut for cut in cuts if 0 < cut < len(sent)), len(sent)]
    return [sent[start:end] for start, end in pairwise(places)]


def without_nulls(value: Any) -> Any:
    """A JSON value without its null fields: the SDK fills in what a stream did not say."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


class Wire(httpx2.BaseTransport):
    """Answers every request with one stream, in the pieces it was cut into."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=iter(self.sent))


WIRE = Wire()
CLIENT = OpenAI(base_url="http://h/v1", api_key="key", max_retries=0, http_client=httpx2.Client(transport=WIRE))


@settings(deadline=None, max_examples=60)
@given(replies, cuts, st.integers(0, 3))
def test_the_chat_sdk_adds_up_any_stream_cut_anywhere_to_the_plain_reply(
    answer: ChatReply, cuts: set[int], keepalives: int
) -> None:
    request = Request("POST", "h", "/v1/chat/completions")
    body = {"model": "m1", "messages": [{"role": "user", "content": "go"}], "tools": CHAT_TOOLS}
    body["stream_options"] = {"include_usage": True}
    ask = openai_chat.parse(request, Route("generate"), body)
    sent = early(openai_chat, ask, answer, keepalives)
    state = ChatCompletionStreamState()
    WIRE.sent = pieces(sent, cuts)
    for chunk in CLIENT.chat.completions.create(model="m1", messages=[], stream=True):
        state.handle_chunk(chunk)
    streamed: Any = state.current_completion_snapshot.to_dict(warnings=False)
    plain = openai_chat.render(ask, answer)
    [choice], [expected] = streamed["choices"], plain["choices"]
    message = without_nulls(choice["message"])
    for call in message.get("tool_calls", ()):
        call.pop("index", None)  # what the SDK leaves behind of a stream's chunks
    assert message == without_nulls(expected["message"])
    assert (choice["finish_reason"], streamed["usage"]) == (expected["finish_reason"], plain["usage"])
    assert (streamed["id"], streamed["model"], streamed["created"]) == ("chatcmpl-0a1b", "m1", 1764460800)


@settings(deadline=None, max_examples=60)
@given(replies, cuts, st.integers(0, 3))
def test_the_responses_sdk_adds_up_any_stream_cut_anywhere_to_the_plain_reply(
    answer: ChatReply, cuts: set[int], keepalives: int
) -> None:
    request = Request("POST", "h", "/v1/responses")
    body = {"model": "m1", "input": "go", "tools": RESPONSES_TOOLS}
    ask = openai_responses.parse(request, Route("generate"), body)
    sent = early(openai_responses, ask, answer, keepalives)
    done = []
    WIRE.sent = pieces(sent, cuts)
    with CLIENT.responses.stream(model="m1", input="go") as stream:
        for event in stream:
            if event.type == "response.output_item.done":
                done.append(event.item.to_dict(warnings=False))
    plain = openai_responses.render(ask, answer)
    assert done == plain["output"]
    assert event.type in ("response.completed", "response.incomplete")
    last: Any = event.response.to_dict(warnings=False)
    for item in last["output"]:
        item.pop("parsed_arguments", None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    assert last == plain


ids = st.sampled_from(["a", "b", "c"])
texts = st.sampled_from(["", "hi", "é\n"])
chat_messages = st.lists(
    st.one_of(
        st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "system"]), texts),
        st.builds(lambda id_, text: {"role": "tool", "tool_call_id": id_, "content": text}, ids, texts),
        st.builds(
            lambda text, calls: {
                "role": "assistant",
                "content": text,
                "tool_calls": [
                    {"id": id_, "type": "function", "function": {"name": "run", "arguments": "{}"}} for id_ in calls
                ],
            },
            texts,
            st.lists(ids, max_size=3),
        ),
    ),
    max_size=10,
)
response_items = st.lists(
    st.one_of(
        st.builds(
            lambda role, text: {"role": role, "content": text},
            st.sampled_from(["user", "developer", "assistant"]),
            texts,
        ),
        st.builds(lambda id_, text: {"type": "function_call_output", "call_id": id_, "output": text}, ids, texts),
        st.builds(
            lambda id_: {"type": "function_call", "call_id": id_, "name": "run", "arguments": "{}"},
            ids,
        ),
        st.builds(lambda text: {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}, texts),
    ),
    max_size=10,
)


def chat_of(messages: list[Json]) -> tuple[Message, ...]:
    request = Request("POST", "h", "/v1/chat/completions")
    return openai_chat.parse(request, Route("generate"), {"model": "m1", "messages": messages}).chat.messages


def responses_of(items: list[Json]) -> tuple[Message, ...]:
    request = Request("POST", "h", "/v1/responses")
    return openai_responses.parse(request, Route("generate"), {"model": "m1", "input": items}).chat.messages


def check(messages: tuple[Message, ...]) -> None:
    """Every call answered once and in order, no turn empty, a system text only at the beginning."""
    waiting: list[str] = []
    for number, message in enumerate(messages):
        match message:
            case ToolResult(call_id):
                assert waiting and waiting.pop(0) == call_id
            case System(text):
                assert number == 0 and text
            case User(parts):
                assert not waiting and text_of(parts)
            case Assistant(text, reasoning, tool_calls):
                assert not waiting and (text or reasoning or tool_calls)
                waiting = [call.id for call in tool_calls]
    assert not waiting


@given(chat_messages)
def test_any_chat_conversation_is_refused_or_keeps_the_rules(messages: list[Json]) -> None:
    try:
        check(chat_of(messages))
    except CallError as error:
        assert error.param == "messages"
        assert not any(
            message["content"] or message.get("tool_calls") for message in messages if message["role"] != "tool"
        )


@given(response_items)
def test_any_responses_conversation_is_refused_or_keeps_the_rules(items: list[Json]) -> None:
    try:
        check(responses_of(items))
    except CallError as error:
        assert error.param == "input"


GO: Json = {"role": "user", "content": "go"}


@given(chat_messages, chat_messages)
def test_appending_to_a_chat_conversation_changes_nothing_before(before: list[Json], after: list[Json]) -> None:
    shorter = chat_of([GO, *before, GO])
    assert chat_of([GO, *before, GO, *after])[: len(shorter)] == shorter


@given(response_items, response_items)
def test_appending_to_a_responses_conversation_changes_nothing_before(before: list[Json], after: list[Json]) -> None:
    shorter = responses_of([GO, *before, GO])
    assert responses_of([GO, *before, GO, *after])[: len(shorter)] == shorter


@given(some_calls, st.randoms())
def test_results_in_any_order_end_the_history_as_the_calls_stood(calls: tuple[ToolCall, ...], random: Any) -> None:
    items: list[Json] = [
        {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments} for call in calls
    ]
    results = [{"type": "function_call_output", "call_id": call.id, "output": call.id} for call in calls]
    random.shuffle(results)
    messages = responses_of([GO, *items, *results])
    assert [message.call_id for message in messages if isinstance(message, ToolResult)] == [call.id for call in calls]
    assert all(UNANSWERED not in message.parts for message in messages if isinstance(message, ToolResult))
    said = [message for message in messages if isinstance(message, Assistant)]
    assert [call for message in said for call in message.tool_calls] == list(calls)
    assert orjson.dumps(items)
