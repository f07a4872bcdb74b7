"""Anthropic Messages on random data: the stream is the whole reply, and a conversation keeps its promises."""

from typing import Any

import anthropic as sdk
from hypothesis import given, settings
from hypothesis import strategies as st

from polar_mitm.chat import CallError, ChatReply, ChatRequest, Message, Text, ToolResult
from polar_mitm.providers import anthropic
from polar_mitm.providers.anthropic_reply import AnthropicAsk
from polar_mitm.providers.base import Request, Route
from tests.providers.early import early
from tests.providers.invariants import Split, arguments, check, check_prefixes, cuts, replies

ASK = AnthropicAsk(ChatRequest(()), "claude-opus-5-5", stream=True)
SPLIT = Split("text/event-stream")
CLIENT = sdk.Anthropic(api_key="x", max_retries=0, http_client=sdk.DefaultHttpxClient(transport=SPLIT.transport()))
ASKED: Any = {"model": "claude-opus-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


@given(replies(), cuts, st.integers(0, 2))
@settings(deadline=None, max_examples=200)
def test_the_sdk_accumulates_a_stream_cut_anywhere_to_the_reply_that_is_not_streamed(
    reply: ChatReply, places: list[int], keepalives: int
) -> None:
    SPLIT.whole = early(anthropic, ASK, reply, keepalives)
    SPLIT.cuts = places
    with CLIENT.messages.stream(**ASKED) as stream:
        message = stream.get_final_message()
    assert message.to_dict() == anthropic.render(ASK, reply)


@given(replies())
@settings(deadline=None, max_examples=200)
def test_the_joined_argument_deltas_are_the_arguments_as_the_engine_wrote_them(reply: ChatReply) -> None:
    SPLIT.whole, SPLIT.cuts = b"".join(anthropic.stream(ASK, reply)), ()
    joined: dict[int, str] = {}
    for event in CLIENT.messages.create(**ASKED, stream=True):
        if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
            joined[event.index] = joined.get(event.index, "") + event.delta.partial_json
    sent = [call.arguments for call in reply.tool_calls]
    marked = anthropic.repairs(ASK, reply)
    assert len(joined) == len(sent)
    assert sum(streamed != written for streamed, written in zip(joined.values(), sent, strict=True)) == len(marked)


REDACTED = {"type": "redacted_thinking", "data": "x"}
words = st.sampled_from(["a", "b\n", "é"])
TEXT = words.map(lambda text: {"type": "text", "text": text})
PIXEL = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
FETCHED = {"type": "image", "source": {"type": "url", "url": "https://e.org/a.png"}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}}
UPLOAD = {"type": "container_upload", "file_id": "f"}
SEARCHED = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
THOUGHT = words.map(lambda text: {"type": "thinking", "thinking": text, "signature": "c2ln"})
blocks = TEXT | st.sampled_from([PIXEL, FETCHED, PDF, UPLOAD])
SYSTEM = words.map(lambda text: {"role": "system", "content": text})


@st.composite
def conversations(draw: st.DrawFn) -> list[Any]:
    """A conversation that Anthropic would take, in all the ways that clients spread it over messages."""
    turns: list[Any] = [{"role": "user", "content": draw(words)}]
    made = 0
    for _ in range(draw(st.integers(0, 4))):
        calls = list(range(made, made := made + draw(st.integers(0, 3))))
        said = draw(st.lists(TEXT | THOUGHT | st.just(SEARCHED) | st.just(REDACTED), max_size=3))
        uses = [{"type": "tool_use", "id": f"t{n}", "name": "Read", "input": draw(arguments)} for n in calls]
        turns.append({"role": "assistant", "content": [*said, *uses]})
        results = [
            {"type": "tool_result", "tool_use_id": f"t{n}", "content": draw(st.sampled_from([f"r{n}", [PIXEL], []]))}
            for n in calls
        ]
        shown = draw(st.permutations([*results, *draw(st.lists(blocks, min_size=1, max_size=2))]))
        cut = draw(st.integers(1, len(shown)))
        for content in filter(None, (shown[:cut], shown[cut:])):
            turns.append({"role": "user", "content": content})
            turns.extend(draw(st.lists(SYSTEM, max_size=1)))
    return turns


def parse(turns: list[Any]) -> tuple[Message, ...] | None:
    try:
        body = {"model": "m", "max_tokens": 9, "messages": turns}
        return anthropic.parse(Request("POST", "h", "/v1/messages"), Route("generate"), body).chat.messages
    except CallError:
        return None


@given(conversations())
@settings(deadline=None, max_examples=150)
def test_every_call_of_a_conversation_is_answered_once_in_order_and_no_turn_is_empty(turns: list[Any]) -> None:
    messages = parse(turns)
    assert messages is not None
    check(messages)
    for message in messages:
        if isinstance(message, ToolResult) and message.parts and isinstance(part := message.parts[0], Text):
            assert part.text == f"r{message.call_id[1:]}"


@given(conversations())
@settings(deadline=None, max_examples=150)
def test_a_message_that_is_appended_never_changes_what_came_before(turns: list[Any]) -> None:
    check_prefixes(turns, lambda turn: turn["role"] == "assistant", parse)


@given(st.lists(st.sampled_from(["user", "assistant", "system", "t1", "t2", "use"]), max_size=6))
@settings(deadline=None, max_examples=150)
def test_a_conversation_in_any_order_keeps_the_promises_or_is_refused(kinds: list[str]) -> None:
    turn: dict[str, Any] = {
        **{role: {"role": role, "content": "x"} for role in ("user", "assistant", "system")},
        **{f"t{n}": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"t{n}"}]} for n in (1, 2)},
        "use": {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": f"t{n}", "name": "Read", "input": {}} for n in (1, 2)],
        },
    }
    if (messages := parse([turn[kind] for kind in kinds])) is not None:
        check(messages)
