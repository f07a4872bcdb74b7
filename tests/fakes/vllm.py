"""A stand-in for vLLM's OpenAI server, for tests of speed and of faults; the real one is used under `-m live`.

A token is a byte: its id is the byte's value + 10, its logprob -0.5. Replies are taken from `script`, the last one for
ever.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

EOS = 2


@dataclass(slots=True)
class Reply:
    text: str = "Hello."
    tool_calls: list[tuple[str, str]] = field(default_factory=list)
    """Name and argument text."""
    reasoning: str | None = None
    finish_reason: str = "stop"
    stop_reason: str | None = None
    delay_s: float = 0.0
    hold: asyncio.Event | None = None
    """Answer no sooner than this is set."""
    status: int = 200
    error: str = ""
    token_ids: bool = True
    logprobs: bool = True
    drop: bool = False
    """Close the connection in place of an answer."""
    raw: bytes | None = None
    """Send this as the body, said to be JSON."""


class FakeVllm:
    """`async with FakeVllm() as engine:` serves on `engine.url`; `requests` holds the chat bodies it got."""

    def __init__(self, *script: Reply, max_model_len: int = 100_000, probe: Reply | None = None) -> None:
        """`probe` is the reply to a request for one token, with which polar finds out what an engine can do."""
        self.probe = probe or Reply()
        self.script = list(script) or [Reply()]
        self.max_model_len = max_model_len
        self.requests: list[dict[str, Any]] = []
        self.cancelled = 0
        self.running = 0
        self.port = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Listen no more; calls that run are cut off."""
        await self._runner.cleanup()

    async def start(self) -> None:
        """Listen, after a `stop` on the same port again."""
        app = web.Application(client_max_size=0)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/version", self._version)
        app.router.add_get("/health", self._health)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "fake", "max_model_len": self.max_model_len}]})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.0-fake"})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _tokenize(self, request: web.Request) -> web.Response:
        prompt = _prompt_ids(await request.json())
        return web.json_response({"count": len(prompt), "max_model_len": self.max_model_len, "tokens": prompt})

    async def _detokenize(self, request: web.Request) -> web.Response:
        tokens = (await request.json())["tokens"]
        return web.json_response({"prompt": bytes(token - 10 for token in tokens).decode(errors="replace")})

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body.get("max_tokens") == 1:
            if self.probe.hold:
                await self.probe.hold.wait()
            return web.json_response(_completion(body, self.probe, "."))
        self.requests.append(body)
        reply = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        self.running += 1
        try:
            await asyncio.sleep(reply.delay_s)
            if reply.hold:
                await reply.hold.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        if reply.drop:
            assert request.transport
            request.transport.abort()
        if reply.raw is not None:
            return web.Response(body=reply.raw, content_type="application/json")
        if reply.status != 200:
            error = {"message": reply.error, "type": "Error", "param": None, "code": reply.status}
            return web.json_response({"error": error}, status=reply.status)
        return web.json_response(_completion(body, reply, reply.text))


def ids_of(text: str) -> list[int]:
    return [byte + 10 for byte in text.encode()]


def _prompt_ids(body: dict[str, Any]) -> list[int]:
    return ids_of("".join(f"{m['role']}:{m.get('content')}:{m.get('tool_calls')}\n" for m in body["messages"]))


def _completion(body: dict[str, Any], reply: Reply, text: str) -> dict[str, Any]:
    calls = [f'<tool_call>\n{{"name": "{n}", "arguments": {a}}}\n</tool_call>' for n, a in reply.tool_calls]
    sampled = (f"<think>{reply.reasoning}</think>" if reply.reasoning else "") + text + "".join(calls)
    ids = ids_of(sampled)
    if reply.finish_reason == "stop" and not reply.stop_reason:
        ids.append(EOS)
    prompt = _prompt_ids(body)
    message: dict[str, Any] = {"role": "assistant", "content": text or None, "reasoning": reply.reasoning}
    if reply.tool_calls:
        message["tool_calls"] = [
            {"id": f"engine-{k}", "type": "function", "function": {"name": n, "arguments": a}}
            for k, (n, a) in enumerate(reply.tool_calls)
        ]
    return {
        "id": "chatcmpl-fake",
        "object": "chat.completion",
        "created": 1,
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": {"content": [_entry(token) for token in ids]} if reply.logprobs else None,
                "finish_reason": "tool_calls" if reply.tool_calls else reply.finish_reason,
                "stop_reason": reply.stop_reason,
                "token_ids": ids if reply.token_ids else None,
            }
        ],
        "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)},
        "prompt_token_ids": prompt if reply.token_ids else None,
    }


def _entry(token: int) -> dict[str, Any]:
    text = b"<|im_end|>" if token == EOS else bytes([token - 10])
    return {"token": f"token_id:{token}", "bytes": list(text), "logprob": -0.5, "top_logprobs": []}
