"""A model provider with two canned turns, for running real harnesses without a model.

A conversation without a tool result gets one call of the harness's own shell tool, `echo hello > out.txt`; with one, it
gets the text `Done.`. Speaks Anthropic Messages and OpenAI Chat Completions, as a stream or as JSON. It keeps every
request, with its headers, in `requests`. Any other path is a fast 404, which all harnesses tolerate.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

COMMAND = "echo hello > out.txt"
ANSWER = "Done."

type Json = dict[str, Any]


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    """Names are lower-case."""
    body: Json


@dataclass
class FakeProvider:
    """`async with serving(FakeProvider(...)) as port`."""

    tool: str
    """Name of the harness's shell tool."""
    arguments: Json
    requests: list[Request] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    """Paths that were not model calls."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if request.method == "POST" and path.endswith(("/messages", "/chat/completions")):
            body = json.loads(await request.read())
            self.requests.append(Request(path, {k.lower(): v for k, v in request.headers.items()}, body))
            if "thread" in body:
                error = {"type": "invalid_request_error", "message": "thread: Extra inputs are not permitted"}
                return web.json_response({"type": "error", "error": error}, status=400)
            first = not _has_tool_result(body)
            make = self.messages if path.endswith("/messages") else self.chat
            whole, events = make(body.get("model", ""), first)
            if not body.get("stream"):
                return web.json_response(whole)
            return web.Response(body="".join(events).encode(), content_type="text/event-stream")
        self.missed.append(path)
        return web.json_response({"error": {"type": "not_found_error", "message": "nothing here"}}, status=404)

    def messages(self, model: str, first: bool) -> tuple[Json, Iterator[str]]:
        usage = {"input_tokens": 10, "output_tokens": 5}
        call = {"type": "tool_use", "id": "toolu_1", "name": self.tool, "input": self.arguments}
        block: Json = call if first else {"type": "text", "text": ANSWER}
        stop = "tool_use" if first else "end_turn"
        head = {"id": f"msg_{len(self.requests)}", "type": "message", "role": "assistant", "model": model}
        whole = head | {"content": [block], "stop_reason": stop, "stop_sequence": None, "usage": usage}

        def events() -> Iterator[str]:
            def event(kind: str, **data: Any) -> str:
                return f"event: {kind}\ndata: {json.dumps({'type': kind} | data)}\n\n"

            yield event("message_start", message=whole | {"content": [], "stop_reason": None})
            if first:
                delta = {"type": "input_json_delta", "partial_json": json.dumps(self.arguments)}
                yield event("content_block_start", index=0, content_block=call | {"input": {}})
            else:
                delta = {"type": "text_delta", "text": ANSWER}
                yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
            yield event("content_block_delta", index=0, delta=delta)
            yield event("content_block_stop", index=0)
            yield event("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage=usage)
            yield event("message_stop")

        return whole, events()

    def chat(self, model: str, first: bool) -> tuple[Json, Iterator[str]]:
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        function = {"name": self.tool, "arguments": json.dumps(self.arguments)}
        call = {"id": "call_1", "type": "function", "function": function}
        message: Json = {"role": "assistant", "content": None, "tool_calls": [call]}
        if not first:
            message = {"role": "assistant", "content": ANSWER}
        finish = "tool_calls" if first else "stop"
        head = {"id": f"chatcmpl-{len(self.requests)}", "created": 1, "model": model}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        whole = head | {"object": "chat.completion", "choices": [choice], "usage": usage}

        def events() -> Iterator[str]:
            def chunk(choices: list[Json], **more: Any) -> str:
                data = head | {"object": "chat.completion.chunk", "choices": choices} | more
                return f"data: {json.dumps(data)}\n\n"

            delta = message | ({"tool_calls": [call | {"index": 0}]} if first else {})
            yield chunk([{"index": 0, "delta": delta, "finish_reason": None}])
            yield chunk([{"index": 0, "delta": {}, "finish_reason": finish}])
            yield chunk([], usage=usage)
            yield "data: [DONE]\n\n"

        return whole, events()


@asynccontextmanager
async def serving(provider: FakeProvider) -> AsyncIterator[int]:
    """Serve on a free loopback port, which is yielded, until the block ends."""
    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", provider.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _has_tool_result(body: Json) -> bool:
    for message in body["messages"]:
        if message["role"] == "tool":
            return True
        content = message["content"]
        if isinstance(content, list) and any(part.get("type") == "tool_result" for part in content):
            return True
    return False
