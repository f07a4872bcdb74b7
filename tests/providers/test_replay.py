"""A reply that a client sends back in its next request is, in Chat form, what was sampled: prompts continue samples."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from polar_mitm.chat import Assistant, ChatReply, Message, Text, ToolCall, ToolResult, User
from polar_mitm.json_text import dumps, loads
from polar_mitm.providers import anthropic, google, openai_chat, openai_responses
from polar_mitm.providers.base import Provider, Request, Route
from polar_mitm.providers.common import INVALID_JSON, arguments_object
from tests.providers.invariants import replies

HI = User((Text("hi"),))
NEXT = User((Text("next"),))


def parsed(provider: Provider, body: Any) -> tuple[Message, ...]:
    messages = provider.parse(Request("POST", "h", "/"), Route("generate", model="m"), body).chat.messages
    assert isinstance(messages, tuple)
    return messages


def rendered(provider: Provider, body: Any, reply: ChatReply) -> Any:
    """The reply's JSON, as a client reads it."""
    ask = provider.parse(Request("POST", "h", "/"), Route("generate", model="m"), body)
    return loads(dumps(provider.render(ask, reply)))


def check(messages: Sequence[Message], sampled: Assistant) -> None:
    """The conversation is `hi`, the sampled answer with a result for each call, and `next`."""
    if sampled == Assistant():
        assert messages in ((HI, NEXT), (User((*HI.parts, *NEXT.parts)),))
        return
    results = [ToolResult(call.id, (Text(f"r{call.id}"),)) for call in sampled.tool_calls]
    assert messages == (HI, sampled, *results, NEXT)


def as_object(call: ToolCall) -> ToolCall:
    """The call as it comes back where a client holds its arguments as an object."""
    value = arguments_object(call.arguments)
    return ToolCall(call.id, call.name, repr({INVALID_JSON: call.arguments} if value is None else value))


def with_objects(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages with arguments in a form that equal objects share."""
    return tuple(
        replace(
            message,
            tool_calls=tuple(replace(call, arguments=repr(loads(call.arguments))) for call in message.tool_calls),
        )
        if isinstance(message, Assistant)
        else message
        for message in messages
    )


@given(replies())
@settings(deadline=None, max_examples=150)
def test_anthropics_content_comes_back_as_sampled(reply: ChatReply) -> None:
    asked: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    answer = {"role": "assistant", "content": rendered(anthropic, asked, reply)["content"]}
    results = [{"type": "tool_result", "tool_use_id": c.id, "content": f"r{c.id}"} for c in reply.tool_calls]
    user = {"role": "user", "content": [*results, {"type": "text", "text": "next"}]}
    messages = parsed(anthropic, {**asked, "messages": [*asked["messages"], answer, user]})
    check(
        with_objects(messages),
        Assistant(reply.text, reply.reasoning, tuple(map(as_object, reply.tool_calls))),
    )


@given(replies())
@settings(deadline=None, max_examples=150)
def test_googles_content_comes_back_as_sampled(reply: ChatReply) -> None:
    asked: Any = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    answer = rendered(google, asked, reply)["candidates"][0]["content"]
    results: list[Any] = [
        {"functionResponse": {"id": c.id, "name": c.name, "response": {"output": f"r{c.id}"}}} for c in reply.tool_calls
    ]
    user = {"role": "user", "parts": [*results, {"text": "next"}]}
    messages = parsed(google, {"contents": [*asked["contents"], answer, user]})
    text, reasoning = reply.text, reply.reasoning
    if not reply.tool_calls and not text.strip():  # an answer of thoughts alone is shown as text (P101)
        text, reasoning = reasoning + text, ""
    check(
        with_objects(messages),
        Assistant(text, reasoning, tuple(map(as_object, reply.tool_calls))),
    )


def spelled_out(reply: ChatReply) -> Assistant:
    """Argument strings come back as they were sampled, but that none is `{}`."""
    calls = (
        ToolCall(call.id, call.name, call.arguments if call.arguments.strip() not in ("", "null") else "{}")
        for call in reply.tool_calls
    )
    return Assistant(reply.text, reply.reasoning, tuple(calls))


@given(replies())
@settings(deadline=None, max_examples=150)
def test_a_chat_message_comes_back_as_sampled(reply: ChatReply) -> None:
    asked: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    answer = rendered(openai_chat, asked, reply)["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": c.id, "content": f"r{c.id}"} for c in reply.tool_calls]
    history = [*asked["messages"], answer, *results, {"role": "user", "content": "next"}]
    check(parsed(openai_chat, {**asked, "messages": history}), spelled_out(reply))


@given(replies(), st.booleans())
@settings(deadline=None, max_examples=150)
def test_output_items_come_back_as_sampled(reply: ChatReply, sealed: bool) -> None:
    asked: Any = {"model": "m", "input": [{"role": "user", "content": "hi"}]}
    answer = rendered(openai_responses, asked, reply)["output"]
    if sealed:  # as clients that ask for encrypted content keep it
        answer = [{**item, "content": None} if item["type"] == "reasoning" else item for item in answer]
    results = [{"type": "function_call_output", "call_id": c.id, "output": f"r{c.id}"} for c in reply.tool_calls]
    history = [*asked["input"], *answer, *results, {"role": "user", "content": "next"}]
    check(parsed(openai_responses, {**asked, "input": history}), spelled_out(reply))
