"""Replies of the Responses API: the response object, its events, and errors. What a request means is in
`openai_responses`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from polar_mitm.chat import CallError, ChatReply, Json
from polar_mitm.providers import sse
from polar_mitm.providers.base import Ask, Begun
from polar_mitm.providers.openai_common import api_error, error_words
from polar_mitm.providers.openai_responses_compaction import CUT_SHORT, compacted, compaction_item
from polar_mitm.providers.openai_responses_seal import seal
from polar_mitm.providers.openai_responses_tools import Declared, call_item, call_repair


@dataclass(slots=True, frozen=True)
class ResponsesAsk(Ask):
    declared: Mapping[str, Declared] = field(default_factory=dict)
    """How the client declared each tool, by the name the model calls it."""
    echo: Json = field(default_factory=dict)
    """Fields of the request that the response object repeats."""
    compacting: bool = False
    """Whether the answer is a summary in the one form that stands for the whole conversation."""
    kept: list[Json] | None = None
    """The user messages that a compacted conversation begins with; None where the answer is a response object."""


def render(ask: ResponsesAsk, reply: ChatReply) -> Json:
    usage = {
        "input_tokens": reply.usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": reply.usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reply.usage.reasoning_tokens},
        "total_tokens": reply.usage.prompt_tokens + reply.usage.completion_tokens,
    }
    if ask.kept is not None:
        return compacted(ask.kept, reply, usage)
    reason = _incomplete_reason(ask, reply)
    return {
        **_response(ask, f"resp_{reply.id}", reply.created, "incomplete" if reason else "completed"),
        "incomplete_details": {"reason": reason} if reason else None,
        "output": _output(ask, reply),
        "usage": usage,
    }


def _response(ask: ResponsesAsk, response_id: str, created: int, status: str) -> Json:
    """The response object before there is any output."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": ask.model,
        "output": [],
        "previous_response_id": None,
        "store": False,
        "usage": None,
        "user": None,
        **ask.echo,
    }


def stop_reason(body: Json) -> str:
    """`completed`, or why it is not."""
    if body["object"] == "response.compaction":
        return "completed"
    details = body["incomplete_details"]
    return str(details["reason"] if details else body["status"])


def repairs(ask: ResponsesAsk, reply: ChatReply) -> tuple[str, ...]:
    if ask.compacting:
        return (CUT_SHORT,) if reply.finish_reason == "length" else ()
    mended = ((call.name, call_repair(call, ask.declared)) for call in reply.tool_calls)
    return tuple(f"{name}: {what}" for name, what in mended if what)


def count(ask: ResponsesAsk, tokens: int) -> Json:
    return {"object": "response.input_tokens", "input_tokens": tokens}


def _incomplete_reason(ask: ResponsesAsk, reply: ChatReply) -> str | None:
    match reply.finish_reason:
        case _ if ask.compacting:  # Codex ends the run where its summary is not whole
            return None
        case "length":
            return "max_output_tokens"
        case "content_filter":
            return "content_filter"
        case _:
            return None


def _output(ask: ResponsesAsk, reply: ChatReply) -> list[Json]:
    if ask.compacting:
        return [compaction_item(reply)]
    items: list[Json] = []
    if reply.reasoning:
        items.append(
            {
                "id": f"rs_{reply.id}",
                "type": "reasoning",
                "status": "completed",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": reply.reasoning}],
                "encrypted_content": seal(reply.reasoning),
            }
        )
    if reply.text or not reply.tool_calls:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        message = {"id": f"msg_{reply.id}", "type": "message", "status": "completed", "role": "assistant"}
        items.append({**message, "content": [part]})
    whole = _incomplete_reason(ask, reply) is None
    if not whole and not reply.tool_calls:
        items[-1]["status"] = "incomplete"
    for number, call in enumerate(reply.tool_calls, start=1):
        # What a limit cuts off is the last call.
        is_whole = whole or number < len(reply.tool_calls)
        items.append(call_item(call, ask.declared, f"{reply.id}{number - 1}", is_whole))
    return items


def stream(ask: ResponsesAsk, reply: ChatReply, *, opened: int = 0) -> Iterator[bytes]:
    opening = [] if opened else _opening(ask, Begun(reply.id, reply.created))
    return _numbered([*opening, *_events(ask, reply)], _first_number(opened))


def _numbered(events: Iterable[tuple[str, Json]], first: int = 0) -> Iterator[bytes]:
    for number, (name, data) in enumerate(events, first):
        name = f"response.{name}"
        yield sse.event({"type": name, "sequence_number": number, **data}, name)


def _first_number(opened: int) -> int:
    """The number of the first event after so many keep-alives, of which the first is two events."""
    return opened + 1 if opened else 0


def _opening(ask: ResponsesAsk, begun: Begun) -> list[tuple[str, Json]]:
    response = _response(ask, f"resp_{begun.id}", begun.created, "in_progress")
    return [("created", {"response": response}), ("in_progress", {"response": response})]


def _events(ask: ResponsesAsk, reply: ChatReply) -> Iterator[tuple[str, Json]]:
    whole = render(ask, reply)
    for index, item in enumerate(whole["output"]):
        yield "output_item.added", {"output_index": index, "item": _opened(item)}
        for name, data in _filling(item):
            yield name, {"item_id": item["id"], "output_index": index, **data}
        yield "output_item.done", {"output_index": index, "item": item}
    yield whole["status"], {"response": whole}


def _opened(item: Json) -> Json:
    """The item as it is announced: every field there, none of them filled. Codex loses an item without its lists."""
    match item["type"]:
        case "reasoning":  # its seal is what the end of the item adds
            item = {name: value for name, value in item.items() if name != "encrypted_content"}
        case "shell_call":
            item = {**item, "action": {**item["action"], "commands": []}}
        case "compaction":
            return {**item, "encrypted_content": ""}
    empty: Json = {"status": "in_progress", "content": [], "arguments": "", "input": ""}
    if item["type"] == "tool_search_call":
        empty["arguments"] = {}
    return {name: empty.get(name, value) for name, value in item.items()}


def _filling(item: Json) -> Iterator[tuple[str, Json]]:
    match item["type"]:
        case "message" | "reasoning":
            for index, part in enumerate(item["content"]):
                at, name, text = {"content_index": index}, part["type"], part["text"]
                logprobs: Json = {"logprobs": []} if name == "output_text" else {}
                yield "content_part.added", {**at, "part": {**part, "text": ""}}
                yield f"{name}.delta", {**at, "delta": text, **logprobs}
                yield f"{name}.done", {**at, "text": text, **logprobs}
                yield "content_part.done", {**at, "part": part}
        case "function_call":
            yield "function_call_arguments.delta", {"delta": item["arguments"]}
            yield "function_call_arguments.done", {"arguments": item["arguments"]}
        case "custom_tool_call":
            yield "custom_tool_call_input.delta", {"delta": item["input"]}
            yield "custom_tool_call_input.done", {"input": item["input"]}


def stream_type(ask: ResponsesAsk) -> str:
    return "text/event-stream"


def keepalive(ask: ResponsesAsk, begun: Begun, nth: int) -> bytes:
    """The events that begin every answer, then the second of them again: that it is in progress.

    Codex gives up after 300 s without an event, and a comment is none; the SDKs refuse one before `created`.
    """
    opening = _opening(ask, begun)
    if nth == 0:
        return b"".join(_numbered(opening))
    _, running = opening
    # Tools and instructions are as long as the request, and nobody reads them twice.
    data = {"response": {**running[1]["response"], "tools": [], "instructions": None}}
    return b"".join(_numbered([("in_progress", data)], _first_number(nth)))


def error(error: CallError, request_id: str = "") -> tuple[int, Json]:
    return api_error(error)


def stream_error(ask: ResponsesAsk, error: CallError, begun: Begun, opened: int) -> bytes:
    match error.kind:
        case "context_overflow":
            code = "context_length_exceeded"  # Codex compacts, or stops, on this code
        case "no_model":
            code = "invalid_prompt"  # Codex would try any other again
        case _:
            code = "invalid_prompt" if error.fault == "client" else "server_error"
    response = _response(ask, f"resp_{begun.id}", begun.created, "failed")
    failed = {**response, "error": {"code": code, "message": error_words(error)}}
    return b"".join(_numbered([("failed", {"response": failed})], _first_number(opened)))
