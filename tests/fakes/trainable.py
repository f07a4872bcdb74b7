"""A stand-in for a vLLM in development mode, whose weights can be changed."""

import asyncio
import json
from dataclasses import replace
from typing import Any

from aiohttp import web

from tests.fakes.vllm import FakeVllm, Reply

ABORT = "/inference/v1/abort_requests"


class Trainable(FakeVllm):
    """`lacks` may name its own routes too. `steps` are the routes that were called, in their order."""

    def __init__(self, *script: Reply, began: float = 1000.0, **more: Any) -> None:
        super().__init__(*script, **more)
        self.began = began
        self.steps: list[str] = []
        self.loaded: str | None = None
        self.refuses = ""
        """What it says to weights that it cannot load."""
        self.going = asyncio.Event()
        self.going.set()
        self.ended = asyncio.Event()

    def routes(self, app: web.Application) -> None:
        super().routes(app)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post(ABORT, self._abort)
        if "control" in self.lacks:
            return
        app.router.add_get("/is_paused", self._is_paused)
        app.router.add_get("/weight_info", self._weight_info)
        for path in ("/pause", "/resume", "/update_weight_version", "/collective_rpc", "/reset_prefix_cache"):
            app.router.add_post(path, self._step)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {self.began}\n")

    async def _is_paused(self, request: web.Request) -> web.Response:
        return web.json_response({"is_paused": not self.going.is_set()})

    async def _weight_info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.weights})

    async def _abort(self, request: web.Request) -> web.Response:
        if ABORT in self.lacks:
            return web.json_response({}, status=403)
        assert (await request.json())["request_ids"]
        self.ended.set()
        self.ended = asyncio.Event()
        return web.Response()

    async def _step(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.steps.append(request.path)
        match request.path:
            case "/pause":
                assert request.query["mode"] == "keep"
                self.going.clear()
            case "/resume":
                self.going.set()
            case "/update_weight_version":
                self.weights = body["new_version"]
            case "/collective_rpc":
                assert body["method"] == "reload_weights"
                if self.refuses:
                    return web.json_response({"error": {"message": self.refuses}}, status=500)
                self.loaded = body["kwargs"]["weights_path"]
        return web.json_response({"success": True})

    async def _next(self, request: web.Request) -> Reply | web.Response:
        ended = asyncio.ensure_future(self.ended.wait())
        coming = asyncio.ensure_future(super()._next(request))
        try:
            await asyncio.wait([ended, coming], return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                return replace(self.script[0], text="Hel", tool_calls=[], finish_reason="abort")
            reply = coming.result()
            await self.going.wait()
            return reply
        finally:
            ended.cancel()
            coming.cancel()

    async def _chat(self, request: web.Request) -> web.Response:
        await self.going.wait()
        return await super()._chat(request)

    async def _generate(self, request: web.Request) -> web.Response:
        was = self.weights
        answer = await super()._generate(request)
        if was != self.weights and answer.status == 200:
            assert isinstance(answer.body, bytes)
            body = json.loads(answer.body)
            [choice] = body["choices"]
            count = len(choice["token_ids"])
            spans = [(was, 0, 1), (self.weights, 1, count)]
            choice["weight_versions"] = [{"version": name, "start": start, "end": end} for name, start, end in spans]
            return web.json_response(body)
        return answer
