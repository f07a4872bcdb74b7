"""The Anthropic Messages API: the form of its replies and errors, as JSON and as server-sent events."""

from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from polar_mitm.chat import CallError, ChatReply, Json, ToolCall
from polar_mitm.providers import sse
from polar_mitm.providers.anthropic_toolsets import Member
from polar_mitm.providers.base import Ask, Begun
from polar_mitm.providers.common import INVALID_JSON, arguments_text, client_arguments, object_repairs, sent_arguments


@dataclass(slots=True, frozen=True)
class AnthropicAsk(Ask):
    members: Mapping[str, Member] = field(default_factory=dict)
    """The tools of toolsets, by the name that the model calls them."""


@dataclass(slots=True, frozen=True)
class _Block:
    """A content block of the reply: whole, and as a stream opens and fills it."""

    whole: Json
    opening: Json
    deltas: tuple[Json, ...]


def _content(ask: AnthropicAsk, reply: ChatReply) -> Iterator[_Block]:
    if reply.reasoning:
        yield _thinking(reply.reasoning)
    if reply.text:
        yield _text(reply.text)
    for call in reply.tool_calls:
        yield _tool_use(ask, call)


def _text(text: str) -> _Block:
    return _Block(
        {"type": "text", "text": text},
        {"type": "text", "text": ""},
        ({"type": "text_delta", "text": text},),
    )


def _thinking(text: str) -> _Block:
    # Clients send thinking back only if it was signed, and unchanged: the same text always gets the same signature.
    signature = b64encode(sha256(text.encode()).digest()).decode()
    return _Block(
        {"type": "thinking", "thinking": text, "signature": signature},
        {"type": "thinking", "thinking": "", "signature": ""},
        ({"type": "thinking_delta", "thinking": text}, {"type": "signature_delta", "signature": signature}),
    )


def _tool_use(ask: AnthropicAsk, call: ToolCall) -> _Block:
    arguments = client_arguments(call.arguments)
    sent = sent_arguments(call.arguments)
    if arguments == {INVALID_JSON: call.arguments}:
        sent = arguments_text(arguments)
    member = ask.members.get(call.name)
    name: Json = {"name": member.name, "toolset_name": member.toolset} if member else {"name": call.name}
    head = {"type": "tool_use", "id": call.id, **name}
    delta = {"type": "input_json_delta", "partial_json": sent}
    return _Block({**head, "input": arguments}, {**head, "input": {}}, (delta,))


def render(ask: AnthropicAsk, reply: ChatReply) -> Json:
    content = [block.whole for block in _content(ask, reply)]
    return _message(ask, reply, content, _stop(reply, content), _usage(reply))


def repairs(ask: AnthropicAsk, reply: ChatReply) -> tuple[str, ...]:
    return object_repairs(reply.tool_calls)


def stop_reason(body: Json) -> str:
    return str(body["stop_reason"])


def stream(ask: AnthropicAsk, reply: ChatReply, *, opened: int = 0) -> Iterator[bytes]:
    blocks = list(_content(ask, reply))
    # The true prompt count belongs into the first event: clients size their context by it.
    begun = {**_usage(reply), "output_tokens": 1}
    running = {"stop_reason": None, "stop_sequence": None, "stop_details": None}
    yield _event({"type": "message_start", "message": _message(ask, reply, [], running, begun)})
    for index, block in enumerate(blocks):
        yield _event({"type": "content_block_start", "index": index, "content_block": block.opening})
        for delta in block.deltas:
            yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        yield _event({"type": "content_block_stop", "index": index})
    stop = _stop(reply, [block.whole for block in blocks])
    yield _event({"type": "message_delta", "delta": stop, "usage": _usage(reply)})
    yield _event({"type": "message_stop"})


def _message(ask: AnthropicAsk, reply: ChatReply, content: list[Json], stop: Json, usage: Json) -> Json:
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": ask.model,
        "content": content,
        **stop,
        "usage": usage,
    }


def _stop(reply: ChatReply, content: list[Json]) -> Json:
    """Why the reply ended. A reply that was cut off says so even when it holds a call."""
    match reply.finish_reason:
        case "length" | "abort":
            reason = "max_tokens"
        case "content_filter":
            reason = "refusal"
        case _ if any(block["type"] == "tool_use" for block in content):
            reason = "tool_use"
        case _:
            reason = "end_turn" if reply.stop_sequence is None else "stop_sequence"
    matched = reply.stop_sequence if reason == "stop_sequence" else None
    return {"stop_reason": reason, "stop_sequence": matched, "stop_details": None}


def _usage(reply: ChatReply) -> Json:
    # The prompt is counted whole: clients that compact by it add the cache counts, which are no part of it here.
    return {
        "input_tokens": reply.usage.prompt_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": reply.usage.completion_tokens,
    }


def _event(data: Json) -> bytes:
    return sse.event(data, data["type"])


def stream_type(ask: AnthropicAsk) -> str:
    return "text/event-stream"


def keepalive(ask: AnthropicAsk, begun: Begun, nth: int) -> bytes:
    """A ping. Claude Code needs a setting to wait for more than 611 s of them: see its harness module.

    An empty `message_delta` would do without, but to LiteLLM it is the end of the answer.
    """
    return _event({"type": "ping"})


_ERRORS: Mapping[str, tuple[int, str]] = {
    "invalid_request": (400, "invalid_request_error"),
    "unauthorized": (401, "authentication_error"),
    "not_found": (404, "not_found_error"),
    "too_large": (413, "request_too_large"),
    "unsupported_encoding": (415, "invalid_request_error"),
    "context_overflow": (400, "invalid_request_error"),
    "overloaded": (529, "overloaded_error"),
    "engine": (500, "api_error"),
    "timeout": (504, "timeout_error"),
    "no_model": (404, "not_found_error"),
    "internal": (500, "api_error"),
}

# Clients know a full context by these words.
OVERFLOW = "prompt is too long: "


# Anthropic's SDK and pi read this code and send the whole conversation, without `thread`, from then on.
NO_THREADS: Json = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


def error(error: CallError, request_id: str = "") -> tuple[int, Json]:
    status, kind = _ERRORS[error.kind]
    message = error.message
    if error.over:
        # Claude Code reads the two numbers out of these words, to know how much to compact.
        message = "{}{} tokens > {} maximum".format(OVERFLOW, *error.over)
    elif error.kind == "context_overflow" and not message.startswith(OVERFLOW):
        message = OVERFLOW + message
    body: Json = {"type": kind, "message": message}
    if error.param == "thread":
        body["details"] = NO_THREADS
    named = {"request_id": request_id} if request_id else {}
    return status, {"type": "error", "error": body, **named}


def stream_error(ask: AnthropicAsk, error_: CallError, begun: Begun, opened: int) -> bytes:
    return sse.event(error(error_, begun.request_id)[1], "error")
