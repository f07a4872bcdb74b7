"""A stand-in for vLLM's OpenAI server, for tests of speed and of faults; the real one is used under `-m live`.

A token is a byte: its id is the byte's value + 10, its logprob -0.5. Replies are taken from `script`, the last one for
ever. Its token routes do what vLLM's do, and what they leave undone.
"""

import asyncio
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from tests.fakes.templates import MARKS, Template, chatml, decoded, encoded, pieces

MOST_STOPS = 4
EOS = MARKS["<|im_end|>"]
RENDER, GENERATE = "/v1/chat/completions/render", "/inference/v1/generate"
DERENDER = "/v1/chat/completions/derender"
TOKEN_ROUTES = (RENDER, GENERATE, DERENDER)
_CALL = re.compile(r'<tool_call>\n\{"name": "(.*?)", "arguments": (.*?)\}\n</tool_call>', re.DOTALL)


@dataclass(slots=True)
class Reply:
    text: str = "Hello."
    tool_calls: list[tuple[str, str]] = field(default_factory=list)
    """Name and argument text."""
    reasoning: str | None = None
    finish_reason: str = "stop"
    end: str = "<|im_end|>"
    """What the model ends the reply with, where neither a limit nor a stop string does."""
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

    def __init__(
        self,
        *script: Reply,
        max_model_len: int = 100_000,
        probe: Reply | None = None,
        template: Template = chatml,
        lacks: Collection[str] = (),
    ) -> None:
        """`probe` is the reply to a request for one token, with which polar finds out what an engine can do; `lacks`
        names the token routes that it does not have."""
        self.probe = probe or Reply()
        self.template = template
        self.lacks = set(lacks)
        self.renders = 0
        """How many prompts it rendered for its token routes."""
        self.weights = "default"
        self.model = "fake"
        self.hangs = False
        """Whether its token routes never answer."""
        self._rendered: dict[str, dict[str, Any]] = {}
        self._without_calls: set[str] = set()
        """Texts that hold no call, whatever they look like."""
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
        self.routes(app)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"

    def routes(self, app: web.Application) -> None:
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/version", self._version)
        app.router.add_get("/health", self._health)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post(RENDER, self._render)
        app.router.add_post(GENERATE, self._generate)
        app.router.add_post(DERENDER, self._derender)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.model, "max_model_len": self.max_model_len}]})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.0-fake"})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _tokenize(self, request: web.Request) -> web.Response:
        prompt = self._prompt_ids(await request.json())
        return web.json_response({"count": len(prompt), "max_model_len": self.max_model_len, "tokens": prompt})

    async def _detokenize(self, request: web.Request) -> web.Response:
        tokens = (await request.json())["tokens"]
        return web.json_response({"prompt": decoded(tokens)})

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        if refusal := _too_many_stops(body):
            return refusal
        prompt = self._prompt_ids(body)
        if body.get("max_tokens") == 1:
            if self.probe.hold:
                await self.probe.hold.wait()
            return web.json_response(_completion(prompt, self.probe, "."))
        self.requests.append(body)
        reply = await self._next(request)
        return (
            reply
            if isinstance(reply, web.Response)
            else web.json_response(_completion(prompt, reply, reply.text, body.get("tool_choice")))
        )

    async def _render(self, request: web.Request) -> web.Response:
        if RENDER in self.lacks:
            return _lacking()
        if self.hangs:
            await asyncio.Event().wait()
        body = await request.json()
        if refusal := _too_many_stops(body):
            return refusal
        self.renders += 1
        prompt = self._prompt_ids(body)
        if len(prompt) >= self.max_model_len:
            words = f"maximum context length is {self.max_model_len} tokens. However, your prompt contains"
            error = {"message": f"{words} at least {self.max_model_len + 1} input tokens", "param": "input_tokens"}
            return web.json_response({"error": error}, status=400)
        name = f"chatcmpl-{self.renders}"
        self._rendered[name] = body
        room = self.max_model_len - len(prompt)
        wanted = {key: body[key] for key in ("temperature", "stop", "structured_outputs") if key in body}
        sampling = {**wanted, "max_tokens": body.get("max_tokens", room)}
        return web.json_response(
            {"request_id": name, "token_ids": prompt, "sampling_params": sampling, "features": None, "model": "fake"}
        )

    async def _generate(self, request: web.Request) -> web.Response:
        if GENERATE in self.lacks:
            return _lacking()
        body = await request.json()
        prompt, most = body["token_ids"], body["sampling_params"]["max_tokens"]
        if len(prompt) + most > self.max_model_len or max(prompt) > 265:
            return _refusing("the prompt and max_tokens are longer than the window, or a token id is out of vocabulary")
        if most == 1:
            return web.json_response(self._generated(prompt, self.probe, "."))
        sampled = {key: value for key, value in body["sampling_params"].items() if key in ("max_tokens", "stop")}
        self.requests.append(self._rendered[body["request_id"]] | sampled)
        reply = await self._next(request)
        return (
            reply if isinstance(reply, web.Response) else web.json_response(self._generated(prompt, reply, reply.text))
        )

    async def _derender(self, request: web.Request) -> web.Response:
        if DERENDER in self.lacks:
            return _lacking()
        body = await request.json()
        if refusal := _too_many_stops(body["chat_request"]):
            return refusal
        choice = body["generate_response"]["choices"][0]
        if not choice["token_ids"]:
            return _refusing("choice 0 has empty or null token_ids")
        # The token that ended the reply is left in, and so is a stop string.
        text = decoded(choice["token_ids"])
        thought = re.match(r"<think>(.*?)</think>", text, re.DOTALL)
        text = text[thought.end() :] if thought else text
        message: dict[str, Any] = {"role": "assistant", "reasoning": thought[1] if thought else None}
        calls = [] if text.removesuffix("<|im_end|>") in self._without_calls else _CALL.findall(text)
        message["tool_calls"] = [
            {"id": f"parsed-{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in enumerate(calls)
        ]
        message["content"] = text.partition("<tool_call>")[0] if message["tool_calls"] else text
        return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    async def _next(self, request: web.Request) -> Reply | web.Response:
        """The next reply, once it is due; or the answer that stands for it."""
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
        return reply

    def _prompt_ids(self, body: dict[str, Any]) -> list[int]:
        return encoded(self.template(body["messages"], body.get("tools", []), body.get("add_generation_prompt", True)))

    def _generated(self, prompt: list[int], reply: Reply, text: str) -> dict[str, Any]:
        ids = _sampled_ids(reply, text)
        shown = _written(reply, text)
        if not reply.tool_calls:
            self._without_calls.add(text)
        choice = {
            "index": 0,
            "text": shown,
            "token_ids": ids if reply.token_ids else None,
            "logprobs": {"content": [_entry(piece.decode(), piece) for piece in pieces(ids)]}
            if reply.logprobs
            else None,
            "finish_reason": "stop" if reply.tool_calls and reply.finish_reason != "length" else reply.finish_reason,
            "stop_reason": reply.stop_reason,
            "weight_versions": [{"version": self.weights, "start": 0, "end": len(ids)}],
        }
        return {
            "request_id": "generate-1",
            "choices": [choice],
            "usage": _usage(prompt, ids),
            "prompt_token_ids": prompt,
        }


def ids_of(text: str) -> list[int]:
    return encoded(text)


def prompt_of(*messages: dict[str, Any]) -> list[int]:
    """The prompt that these messages make, without tools."""
    return encoded(chatml(messages, [], True))


def _written(reply: Reply, text: str) -> str:
    """All of the reply as the model writes it, up to a stop string."""
    calls = [f'<tool_call>\n{{"name": "{n}", "arguments": {a}}}\n</tool_call>' for n, a in reply.tool_calls]
    return (f"<think>{reply.reasoning}</think>" if reply.reasoning else "") + text + "".join(calls)


def _sampled_ids(reply: Reply, text: str) -> list[int]:
    ids = encoded(_written(reply, text) + (reply.stop_reason or ""))
    return [*ids, MARKS[reply.end]] if reply.finish_reason == "stop" and not reply.stop_reason else ids


def _completion(prompt: list[int], reply: Reply, text: str, choice: object = None) -> dict[str, Any]:
    ids = _sampled_ids(reply, text)
    message: dict[str, Any] = {"role": "assistant", "content": text or None, "reasoning": reply.reasoning}
    if reply.tool_calls:
        message["tool_calls"] = [
            {"id": f"engine-{k}", "type": "function", "function": {"name": n, "arguments": a}}
            for k, (n, a) in enumerate(reply.tool_calls)
        ]
    entries = zip(ids, pieces(ids), strict=True) if reply.logprobs else ()
    logprobs = {"content": [_entry(f"token_id:{token}", piece) for token, piece in entries]}
    return {
        "id": "chatcmpl-fake",
        "object": "chat.completion",
        "created": 1,
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": logprobs if reply.logprobs else None,
                "finish_reason": "tool_calls"
                if reply.tool_calls and not isinstance(choice, dict)
                else reply.finish_reason,
                "stop_reason": reply.stop_reason,
                "token_ids": ids if reply.token_ids else None,
            }
        ],
        "usage": _usage(prompt, ids)
        | {"completion_tokens_details": {"reasoning_tokens": len(encoded(reply.reasoning or ""))}},
        "prompt_token_ids": prompt if reply.token_ids else None,
    }


def _usage(prompt: list[int], ids: list[int]) -> dict[str, Any]:
    return {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}


def _entry(token: str, piece: bytes) -> dict[str, Any]:
    return {"token": token, "bytes": list(piece), "logprob": -0.5, "top_logprobs": []}


def _lacking() -> web.Response:
    error = {"message": "Scale-out endpoints are disabled. Restart with --enable-scale-out.", "code": 403}
    return web.json_response({"error": error}, status=403)


def _too_many_stops(body: dict[str, Any]) -> web.Response | None:
    """vLLM's refusal of more stop strings than VLLM_MAX_STOP_STRINGS, in its words."""
    if len(body.get("stop") or []) <= MOST_STOPS:
        return None
    problem = f"List should have at most {MOST_STOPS} items after validation, not {len(body['stop'])}"
    return _refusing(f"1 validation error:\n  {{'type': 'too_long', 'loc': 'body.stop', 'msg': '{problem}'}}")


def _refusing(message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "param": None, "code": 400}}, status=400)
