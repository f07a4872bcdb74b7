"""A provider that gives canned answers in all four APIs and keeps every request, for recording what harnesses send.

It knows nothing of polar: what a harness sends in its second turn must not depend on how polar renders the first.
"""

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from aiohttp import web

type Json = dict[str, Any]

HOST_HEADER = "x-wire-host"
"""Where the recording proxy puts the host that the harness asked for."""

MODEL_PATH = re.compile(r"/(messages|chat/completions|responses)$|:(streamG|g)enerateContent$")


@dataclass(slots=True, frozen=True)
class Call:
    """A tool call to answer with. `id` follows the API's own prefix; it tells the calls of a run apart."""

    name: str
    arguments: Json = field(default_factory=dict)
    namespace: str = ""
    custom: str = ""
    """The raw text of a Responses custom tool."""
    id: str = "1"


@dataclass(slots=True, frozen=True)
class Answer:
    text: str = ""
    call: Call | None = None
    prompt_tokens: int = 1000
    """What the usage says: a harness compacts by it."""


DONE = Answer("Done.")


@dataclass(slots=True)
class Asked:
    """A request as it came."""

    method: str
    host: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    """Names are lower-case."""
    body: Json
    status: int = 200


@dataclass
class CannedProvider:
    """`answer` gives the answer to a model call; `fixed` answers other paths by their end."""

    answer: Callable[[Asked], Answer]
    fixed: dict[str, Json] = field(default_factory=dict)
    refuse_threads: bool = False
    asked: list[Asked] = field(default_factory=list)
    """The model calls."""
    missed: list[str] = field(default_factory=list)
    """Everything else, as `METHOD host/path`."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        host = request.headers.get(HOST_HEADER, request.host)
        raw = await request.read()
        if request.method == "POST" and MODEL_PATH.search(request.path):
            headers = {name.lower(): value for name, value in request.headers.items()}
            asked = Asked(request.method, host, request.path, dict(request.query), headers, json.loads(raw))
            self.asked.append(asked)
            return self._model_call(asked)
        self.missed.append(f"{request.method} {host}{request.path}")
        for end, body in self.fixed.items():
            if request.path.endswith(end):
                return web.json_response(body)
        if request.headers.get("upgrade", "").lower() == "websocket":
            return web.Response(status=426)
        return web.json_response({"error": {"type": "not_found_error", "message": "nothing here"}}, status=404)

    def _model_call(self, asked: Asked) -> web.Response:
        if self.refuse_threads and "thread" in asked.body:
            asked.status = 400
            error = {"type": "invalid_request_error", "message": "thread: Extra inputs are not permitted"}
            return web.json_response({"type": "error", "error": error}, status=400)
        answer, number = self.answer(asked), len(self.asked)
        if asked.path.endswith("/messages"):
            whole, stream = _messages(asked.body, answer, number)
        elif asked.path.endswith("/chat/completions"):
            whole, stream = _chat(asked.body, answer, number)
        elif asked.path.endswith("/responses"):
            whole, stream = _responses(asked.body, answer, number)
        else:
            whole = _google(answer)
            if "v1internal" in asked.path:
                whole = {"response": whole}
            if asked.path.endswith(":generateContent"):
                return web.json_response(whole)
            stream = iter([f"data: {json.dumps(whole)}\n\n"])
        if not asked.body.get("stream") and ":" not in asked.path:
            return web.json_response(whole)
        return web.Response(body="".join(stream).encode(), content_type="text/event-stream")


@asynccontextmanager
async def serving(provider: CannedProvider, socket: Path) -> AsyncIterator[int]:
    """Serve on a unix socket, and on a free loopback port, which is yielded."""
    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", provider.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.UnixSite(runner, str(socket)).start()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield next(address[1] for address in runner.addresses if isinstance(address, tuple))
    finally:
        await runner.cleanup()


def _event(kind: str, **data: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind} | data)}\n\n"


def _messages(body: Json, answer: Answer, number: int) -> tuple[Json, Iterator[str]]:
    usage = {"input_tokens": answer.prompt_tokens, "output_tokens": 5}
    call = answer.call
    block: Json = {"type": "text", "text": answer.text}
    start, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": answer.text}
    if call:
        block = {"type": "tool_use", "id": f"toolu_{call.id}", "name": call.name, "input": call.arguments}
        start, delta = block | {"input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(call.arguments)}
    stop = {"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None}
    head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": body.get("model", "")}
    whole = head | {"content": [block], "usage": usage} | stop

    def events() -> Iterator[str]:
        yield _event("message_start", message=whole | {"content": [], "stop_reason": None})
        yield _event("content_block_start", index=0, content_block=start)
        yield _event("content_block_delta", index=0, delta=delta)
        yield _event("content_block_stop", index=0)
        yield _event("message_delta", delta=stop, usage=usage)
        yield _event("message_stop")

    return whole, events()


def _chat(body: Json, answer: Answer, number: int) -> tuple[Json, Iterator[str]]:
    usage = {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": 5,
        "total_tokens": answer.prompt_tokens + 5,
    }
    message: Json = {"role": "assistant", "content": answer.text}
    if call := answer.call:
        function = {"name": call.name, "arguments": json.dumps(call.arguments)}
        calls = [{"id": f"call_{call.id}", "type": "function", "function": function}]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
    finish = "tool_calls" if call else "stop"
    head = {"id": f"chatcmpl-{number}", "created": 1, "model": body.get("model", "")}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    whole = head | {"object": "chat.completion", "choices": [choice], "usage": usage}

    def events() -> Iterator[str]:
        def chunk(choices: list[Json], **more: Any) -> str:
            data = head | {"object": "chat.completion.chunk", "choices": choices} | more
            return f"data: {json.dumps(data)}\n\n"

        indexed = [{"index": 0, **one} for one in message.get("tool_calls", [])]
        delta = message | ({"tool_calls": indexed} if indexed else {})
        yield chunk([{"index": 0, "delta": delta, "finish_reason": None}])
        yield chunk([{"index": 0, "delta": {}, "finish_reason": finish}])
        yield chunk([], usage=usage)
        yield "data: [DONE]\n\n"

    return whole, events()


def _responses(body: Json, answer: Answer, number: int) -> tuple[Json, Iterator[str]]:
    item = _item(body, answer, number)
    details: Json = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    usage = {
        "input_tokens": answer.prompt_tokens,
        "output_tokens": 5,
        "total_tokens": answer.prompt_tokens + 5,
        **details,
    }
    head = {"id": f"resp_{number}", "object": "response", "created_at": 1, "model": body.get("model", "")}
    whole = head | {"status": "completed", "output": [item], "usage": usage}

    def events() -> Iterator[str]:
        numbers = iter(range(100))

        def event(kind: str, **data: Any) -> str:
            return _event(kind, sequence_number=next(numbers), **data)

        empty: Json = {"status": "in_progress"}
        empty |= {"content": []} if item["type"] == "message" else {}
        empty |= {"arguments": ""} if item["type"] == "function_call" else {}
        empty |= {"input": ""} if item["type"] == "custom_tool_call" else {}
        place = {"item_id": item["id"], "output_index": 0}
        yield event("response.created", response=head | {"status": "in_progress", "output": [], "usage": None})
        yield event("response.output_item.added", output_index=0, item=item | empty)
        match item["type"]:
            case "message":
                part = {"type": "output_text", "text": "", "annotations": []}
                yield event("response.content_part.added", **place, content_index=0, part=part)
                yield event("response.output_text.delta", **place, content_index=0, delta=answer.text)
                yield event("response.output_text.done", **place, content_index=0, text=answer.text)
                full = part | {"text": answer.text}
                yield event("response.content_part.done", **place, content_index=0, part=full)
            case "function_call":
                yield event("response.function_call_arguments.delta", **place, delta=item["arguments"])
                yield event("response.function_call_arguments.done", **place, arguments=item["arguments"])
            case "custom_tool_call":
                yield event("response.custom_tool_call_input.delta", **place, delta=item["input"])
                yield event("response.custom_tool_call_input.done", **place, input=item["input"])
            case _:
                pass
        yield event("response.output_item.done", output_index=0, item=item)
        yield event("response.completed", response=whole)

    return whole, events()


def _item(body: Json, answer: Answer, number: int) -> Json:
    if any(isinstance(item, dict) and item.get("type") == "compaction_trigger" for item in body["input"]):
        return {"type": "compaction", "id": f"cmp_{number}", "encrypted_content": "c2VhbGVk"}
    call = answer.call
    if call is None:
        part = {"type": "output_text", "text": answer.text, "annotations": []}
        return {
            "type": "message",
            "id": f"msg_{number}",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
    ids = {"call_id": f"call_{call.id}", "name": call.name, "status": "completed"}
    if call.custom:
        return {"type": "custom_tool_call", "id": f"ctc_{number}", "input": call.custom, **ids}
    namespace = {"namespace": call.namespace} if call.namespace else {}
    arguments = json.dumps(call.arguments)
    return {"type": "function_call", "id": f"fc_{number}", "arguments": arguments, **ids, **namespace}


def _google(answer: Answer) -> Json:
    part: Json = {"text": answer.text}
    if call := answer.call:
        part = {"functionCall": {"id": f"call_{call.id}", "name": call.name, "args": call.arguments}}
        part |= {"thoughtSignature": "c2lnbmVk"}
    usage = {"promptTokenCount": answer.prompt_tokens, "candidatesTokenCount": 5}
    usage |= {"totalTokenCount": answer.prompt_tokens + 5}
    candidate = {"index": 0, "content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m", "responseId": "r"}


type Mode = Literal["base-url", "proxy"]
