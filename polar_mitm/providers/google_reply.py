"""The Google generateContent API: the form of its replies and errors, as JSON, server-sent events or a JSON array."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from polar_mitm.chat import CallError, ChatReply, Json, ToolCall
from polar_mitm.json_text import dumps
from polar_mitm.providers import sse
from polar_mitm.providers.base import Ask, Begun
from polar_mitm.providers.common import client_arguments, object_repairs


@dataclass(slots=True, frozen=True)
class GoogleAsk(Ask):
    framing: Literal["sse", "json-array"] = "sse"
    wrapped: bool = False
    """Whether the request came as `v1internal`, whose replies stand in a `response` field."""


def render(ask: GoogleAsk, reply: ChatReply) -> Json:
    return _response(ask, reply, _parts(reply), last=True)


def stream(ask: GoogleAsk, reply: ChatReply, *, opened: int = 0) -> Iterator[bytes]:
    """The text, then the calls with the finish reason: all calls in one chunk, for chunks have no index to join by."""
    parts = _parts(reply)
    first_call = next((index for index, part in enumerate(parts) if "functionCall" in part), len(parts))
    chunks = [_response(ask, reply, [part], last=False) for part in parts[:first_call]]
    chunks.append(_response(ask, reply, parts[first_call:] or [{"text": ""}], last=True))
    if ask.framing == "sse":
        yield from (sse.event(chunk) for chunk in chunks)
        return
    for index, chunk in enumerate(chunks):
        yield (b"," if index else b"[") + dumps(chunk) + b"\n"
    yield b"]"


def repairs(ask: GoogleAsk, reply: ChatReply) -> tuple[str, ...]:
    return object_repairs(reply.tool_calls)


def stop_reason(body: Json) -> str:
    return str(body.get("response", body)["candidates"][0]["finishReason"])


def _parts(reply: ChatReply) -> list[Json]:
    if not reply.tool_calls and not reply.text.strip():
        # Clients take an answer of thoughts alone for a broken stream, and ask again. Blanks are no answer to them.
        return [{"text": reply.reasoning + reply.text}]
    parts: list[Json] = [{"text": reply.text}] if reply.text else []
    parts += [_function_call(call) for call in reply.tool_calls]
    return [{"text": reply.reasoning, "thought": True}, *parts] if reply.reasoning else parts


def _function_call(call: ToolCall) -> Json:
    return {"functionCall": {"id": call.id, "name": call.name, "args": client_arguments(call.arguments)}}


FINISH_REASONS: Mapping[str, str] = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "length": "MAX_TOKENS",
    "content_filter": "SAFETY",
    "abort": "OTHER",
}


def _response(ask: GoogleAsk, reply: ChatReply, parts: list[Json], *, last: bool) -> Json:
    candidate: Json = {"content": {"parts": parts, "role": "model"}, "index": 0}
    response: Json = {"candidates": [candidate], "modelVersion": ask.model, "responseId": reply.id}
    if last:
        candidate["finishReason"] = FINISH_REASONS[reply.finish_reason]
        response["usageMetadata"] = _usage(reply)
    return {"response": response, "traceId": reply.id} if ask.wrapped else response


def _usage(reply: ChatReply) -> Json:
    usage: Json = {
        "promptTokenCount": reply.usage.prompt_tokens,
        # Google counts thoughts beside the candidates, not among them.
        "candidatesTokenCount": reply.usage.completion_tokens - reply.usage.reasoning_tokens,
        "totalTokenCount": reply.usage.prompt_tokens + reply.usage.completion_tokens,
    }
    if reply.usage.reasoning_tokens:
        usage["thoughtsTokenCount"] = reply.usage.reasoning_tokens
    return usage


def stream_type(ask: GoogleAsk) -> str:
    return "text/event-stream" if ask.framing == "sse" else "application/json"


def keepalive(ask: GoogleAsk, begun: Begun, nth: int) -> bytes:
    # Gemini CLI takes a comment or an `event:` line for a broken answer; an empty line passes, and JSON ignores it too.
    return b"\n"


_ERRORS: Mapping[str, tuple[int, str]] = {
    "invalid_request": (400, "INVALID_ARGUMENT"),
    "unauthorized": (401, "UNAUTHENTICATED"),
    "not_found": (404, "NOT_FOUND"),
    "too_large": (413, "INVALID_ARGUMENT"),
    "unsupported_encoding": (415, "INVALID_ARGUMENT"),
    "context_overflow": (400, "INVALID_ARGUMENT"),
    "overloaded": (503, "UNAVAILABLE"),
    "engine": (500, "INTERNAL"),
    "timeout": (504, "DEADLINE_EXCEEDED"),
    "no_model": (404, "NOT_FOUND"),
    "internal": (500, "INTERNAL"),
}

# Clients know a full context by these words.
OVERFLOW = "The input token count exceeds the maximum number of tokens allowed: "


def error(error: CallError, request_id: str = "") -> tuple[int, Json]:
    status, word = _ERRORS[error.kind]
    message = OVERFLOW + error.message if error.kind == "context_overflow" else error.message
    return status, {"error": {"code": status, "message": message, "status": word}}


def stream_error(ask: GoogleAsk, error_: CallError, begun: Begun, opened: int) -> bytes:
    """In place of the stream: an array that holds the error alone, or its one event."""
    body = error(error_)[1]
    body = {"response": body} if ask.wrapped else body
    return sse.event(body) if ask.framing == "sse" else b"[" + dumps(body) + b"]"
