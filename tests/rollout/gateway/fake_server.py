"""A rollout server as a gateway sees it: it answers with what the test says, and keeps what it was sent."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

TOKEN = "a-token-of-the-tests"


@dataclass
class FakeServer:
    """`async with FakeServer() as server`. `answers` holds, by kind of request, statuses to give before it is well."""

    answers: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    registrations: list[dict[str, Any]] = field(default_factory=list)
    beats: list[dict[str, Any]] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    files: dict[tuple[str, str], bytes] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    cancel: list[str] = field(default_factory=list)
    store_url: str | None = None
    outcome: str = "counts"
    port: int = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        app = web.Application(client_max_size=0)
        app.router.add_post("/v1/gateways", self._register)
        app.router.add_post("/v1/gateways/{name}/heartbeat", self._beat)
        app.router.add_post("/v1/gateways/{name}/leave", self._leave)
        app.router.add_put("/v1/sessions/{id}/files/{name}", self._file)
        app.router.add_post("/v1/sessions/{id}/report", self._report)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    def _trouble(self, kind: str, request: web.Request) -> web.Response | None:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _error(401, "the token is not this server's")
        return _error(self.answers[kind].pop(0), "as the test wants it") if self.answers[kind] else None

    async def _register(self, request: web.Request) -> web.Response:
        if trouble := self._trouble("register", request):
            return trouble
        self.registrations.append(await request.json())
        return web.json_response({"heartbeat_s": 0.2, "store_url": self.store_url})

    async def _beat(self, request: web.Request) -> web.Response:
        if trouble := self._trouble("beat", request):
            return trouble
        self.beats.append(await request.json())
        return web.json_response({"cancel": self.cancel})

    async def _leave(self, request: web.Request) -> web.Response:
        self.left.append((await request.json())["incarnation"])
        return web.Response(status=204)

    async def _file(self, request: web.Request) -> web.Response:
        if trouble := self._trouble("file", request):
            return trouble
        self.files[request.match_info["id"], request.match_info["name"]] = await request.read()
        return web.json_response({}, status=201)

    async def _report(self, request: web.Request) -> web.Response:
        if trouble := self._trouble("report", request):
            return trouble
        self.reports.append(await request.json())
        return web.json_response({"outcome": self.outcome})


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"code": "x", "message": message, "field": None}}, status=status)
