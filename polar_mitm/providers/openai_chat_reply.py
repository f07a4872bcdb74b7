"""The Chat Completions API: the form of its replies and errors, as JSON and as server-sent events."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from polar_mitm.chat import CallError, ChatReply, Json, ToolCall
from polar_mitm.providers import sse
from polar_mitm.providers.base import Ask, Begun, Request
from polar_mitm.providers.common import sent_arguments
from polar_mitm.providers.openai_chat_tools import Declared
from polar_mitm.providers.openai_common import api_error, argument_repair, unserved
from polar_mitm.providers.openai_freeform import raw_text


@dataclass(slots=True, frozen=True)
class ChatAsk(Ask):
    include_usage: bool = False
    """Whether a stream ends with a chunk of token counts. Clients that did not ask fail on its empty `choices`."""
    declared: Mapping[str, Declared] = field(default_factory=dict)
    """How the client declared each tool, by the name that the model calls it."""


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


def stream(ask: ChatAsk, reply: ChatReply, *, opened: int = 0) -> Iterator[bytes]:
    begun = Begun(reply.id, reply.created)
    for delta, finish in _deltas(ask, reply, opened):
        yield _chunk(ask, begun, delta, finish)
    if ask.include_usage:
        yield sse.event({**_head(ask, begun), "choices": [], "usage": _usage(reply)})
    yield b"data: [DONE]\n\n"


def _head(ask: ChatAsk, begun: Begun) -> Json:
    return {
        "id": f"chatcmpl-{begun.id}",
        "object": "chat.completion.chunk",
        "created": begun.created,
        "model": ask.model,
    }


def _chunk(ask: ChatAsk, begun: Begun, delta: Json, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    tail: Json = {"usage": None} if ask.include_usage else {}
    return sse.event({**_head(ask, begun), "choices": [choice], **tail})


def _deltas(ask: ChatAsk, reply: ChatReply, opened: int) -> Iterator[tuple[Json, str | None]]:
    text = _shown_text(reply)
    first: Json = {"content": None if text is None else "", "refusal": None}
    # Said twice, the SDK makes `assistantassistant` of it.
    yield first if opened else {"role": "assistant", **first}, None
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
    tool = ask.declared.get(call.name, Declared("function", call.name))
    if tool.kind == "custom":
        text, _ = raw_text(call.arguments, tool.grammar)
        return {"id": call.id, "type": "custom", "custom": {"name": tool.name, "input": text}}
    arguments = sent_arguments(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": tool.name, "arguments": arguments}}


def repairs(ask: ChatAsk, reply: ChatReply) -> tuple[str, ...]:
    found = []
    for call in reply.tool_calls:
        tool = ask.declared.get(call.name, Declared("function", call.name))
        if tool.kind == "custom":
            _, mended = raw_text(call.arguments, tool.grammar)
        else:
            mended = argument_repair(call)
        if mended:
            found.append(f"{tool.name}: {mended}")
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


def keepalive(ask: ChatAsk, begun: Begun, nth: int) -> bytes:
    """The chunk that begins every answer, then chunks that add nothing.

    Qwen Code gives up after 240 s of comments, and opencode on an event that is no chunk; `choices` is never empty, for
    clients look at its first without asking.
    """
    return _chunk(ask, begun, {} if nth else {"role": "assistant", "content": None, "refusal": None})


def error(error: CallError, request_id: str = "") -> tuple[int, Json]:
    return api_error(error)


def stream_error(ask: ChatAsk, error: CallError, begun: Begun, opened: int) -> bytes:
    """The error object alone; no `[DONE]` follows, which would say that the answer is whole."""
    return sse.event(api_error(error)[1])
