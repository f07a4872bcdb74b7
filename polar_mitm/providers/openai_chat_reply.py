"""The Chat Completions API: the form of its replies and errors, as JSON and as server-sent events."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from polar_mitm.chat import CallError, ChatReply, Json, ToolCall
from polar_mitm.providers import sse
from polar_mitm.providers.base import Ask, Request
from polar_mitm.providers.common import sent_arguments
from polar_mitm.providers.openai_common import api_error, argument_repair, unserved
from polar_mitm.providers.openai_freeform import raw_text


@dataclass(slots=True, frozen=True)
class ChatAsk(Ask):
    include_usage: bool = False
    """Whether a stream ends with a chunk of token counts. Clients that did not ask fail on its empty `choices`."""
    freeform: Mapping[str, str] = field(default_factory=dict)
    """The grammar of each custom tool by its name, empty where it takes any text."""


def render(ask: ChatAsk, reply: ChatReply) -> Json:
    message: Json = {"role": "assistant", "content": _shown_text(reply), "refusal": None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [_call(ask, call) for call in reply.tool_calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(reply)}
    return {
        "id": f"chatcmpl-{reply.id}",
        "object": "chat.completion",
        "created": reply.created,
        "model": ask.model,
        "choices": [choice],
        "usage": _usage(reply),
    }


def stream(ask: ChatAsk, reply: ChatReply) -> Iterator[bytes]:
    head: Json = {
        "id": f"chatcmpl-{reply.id}",
        "object": "chat.completion.chunk",
        "created": reply.created,
        "model": ask.model,
    }
    tail: Json = {"usage": None} if ask.include_usage else {}
    for delta, finish in _deltas(ask, reply):
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        yield sse.event({**head, "choices": [choice], **tail})
    if ask.include_usage:
        yield sse.event({**head, "choices": [], "usage": _usage(reply)})
    yield b"data: [DONE]\n\n"


def _deltas(ask: ChatAsk, reply: ChatReply) -> Iterator[tuple[Json, str | None]]:
    text = _shown_text(reply)
    yield {"role": "assistant", "content": None if text is None else "", "refusal": None}, None
    if reply.reasoning:
        yield {"reasoning_content": reply.reasoning}, None
    if text:
        yield {"content": text}, None
    # A whole call a chunk: some clients mix up the arguments of calls that come in pieces.
    for index, call in enumerate(reply.tool_calls):
        yield {"tool_calls": [{"index": index, **_call(ask, call)}]}, None
    yield {}, finish_reason(reply)


def stop_reason(body: Json) -> str:
    return str(body["choices"][0]["finish_reason"])


def finish_reason(reply: ChatReply) -> str:
    """The reason in this API's words. A cut-off answer says `length` though it holds calls: the last may be cut too."""
    match reply.finish_reason:
        case "length" | "content_filter":
            return reply.finish_reason
        case _:
            return "tool_calls" if reply.tool_calls else "stop"


def _shown_text(reply: ChatReply) -> str | None:
    return reply.text or (None if reply.tool_calls else "")


def _call(ask: ChatAsk, call: ToolCall) -> Json:
    """A call in the form that its tool was declared in."""
    if call.name in ask.freeform:
        text, _ = raw_text(call.arguments, ask.freeform[call.name])
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": text}}
    arguments = sent_arguments(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def repairs(ask: ChatAsk, reply: ChatReply) -> tuple[str, ...]:
    found = []
    for call in reply.tool_calls:
        if call.name in ask.freeform:
            _, mended = raw_text(call.arguments, ask.freeform[call.name])
        else:
            mended = argument_repair(call)
        if mended:
            found.append(f"{call.name}: {mended}")
    return tuple(found)


def count(ask: ChatAsk, tokens: int) -> Json:
    raise unserved("token count")


def fixed(request: Request) -> Json:
    raise unserved("fixed answers")


def _usage(reply: ChatReply) -> Json:
    usage = reply.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def stream_type(ask: ChatAsk) -> str:
    return "text/event-stream"


def keepalive(ask: ChatAsk) -> bytes:
    """A comment, never an event: opencode ends the run on an event that is no chunk."""
    return b": keep-alive\n\n"


def error(error: CallError) -> tuple[int, Json]:
    return api_error(error)


def stream_error(ask: ChatAsk, error: CallError) -> bytes:
    """The error object alone; no `[DONE]` follows, which would say that the answer is whole."""
    return sse.event(api_error(error)[1])
