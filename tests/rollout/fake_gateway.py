"""A gateway as the server sees one: it takes sessions, beats, reports. What comes of a session is the test's to say."""

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import httpx
from aiohttp import web

from polar_mitm.client.nodes import Report

type Manner = Literal["take", "busy", "draining", "refuse", "hang", "take and hang", "drop", "other"]
"""What becomes of an assignment. `take and hang`: it is taken, and the answer never comes."""

NUMBERS = itertools.count()


@dataclass
class FakeGateway:
    """`async with FakeGateway(client) as gateway`: it listens, has registered, and beats until it is left."""

    client: httpx.AsyncClient
    """To the server, with the token."""
    name: str = field(default_factory=lambda: f"gw-{next(NUMBERS)}")
    capacity: int = 4
    beat_s: float | None = None
    """By default as often as the server says; 0: never by itself."""
    manner: Manner = "take"
    work: Callable[["FakeGateway", dict[str, Any]], Awaitable[None]] | None = None
    """What a session does once it is taken."""
    registration: dict[str, Any] = field(default_factory=dict)
    incarnation: str = field(default_factory=lambda: f"life-{secrets.token_hex(4)}")
    sessions: dict[str, str] = field(default_factory=dict)
    """What it holds: the stage of each."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    """Every assignment that came in."""
    begun: list[str] = field(default_factory=list)
    """Sessions that were really begun."""
    cancelled: set[str] = field(default_factory=set)
    beats: list[int] = field(default_factory=list)
    """Statuses of the answers."""
    policy_version: str | None = None
    url: str = ""
    port: int = 0
    drain_asked: bool = False
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/sessions", self._assign)
        app.router.add_delete("/v1/sessions/{id}", self._cancel)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", self.port)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self.url = f"http://127.0.0.1:{self.port}"
        await self.register()
        if self.beat_s != 0:
            self.spawn(self._beat())
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.die()

    async def die(self) -> None:
        """Stop at once: nothing is reported, nobody is told."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()
        await self.runner.cleanup()

    def spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def register(self) -> dict[str, Any]:
        body = {
            "name": self.name,
            "incarnation": self.incarnation,
            "url": self.url,
            "capacity": self.capacity,
            "sessions": self.sessions,
            "policy_version": self.policy_version,
        }
        reply = await self.client.post("/v1/gateways", json=body | self.registration)
        reply.raise_for_status()
        registered: dict[str, Any] = reply.json()
        self.interval = self.beat_s or registered["heartbeat_s"] / 2
        return registered

    async def beat(self, **more: Any) -> httpx.Response:
        body = {
            "incarnation": self.incarnation,
            "capacity": self.capacity,
            "sessions": dict(self.sessions),
            "policy_version": self.policy_version,
        }
        reply = await self.client.post(f"/v1/gateways/{self.name}/heartbeat", json=body | more)
        self.beats.append(reply.status_code)
        if reply.status_code == 404:
            await self.register()
        if reply.status_code == 200:
            self.drain_asked = reply.json()["drain"]
            for session_id in reply.json()["cancel"]:
                await self._end(session_id)
        return reply

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.interval)
            with suppress(httpx.HTTPError, RuntimeError):  # the server is down, the client closed
                await self.beat()

    async def _assign(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        session_id = body["session_id"]
        if session_id in self.sessions or session_id in self.begun:
            return web.json_response({"session_id": session_id, "stage": "waiting"}, status=202)
        match self.manner:
            case "busy":
                return web.json_response({}, status=429)
            case "draining":
                return web.json_response({}, status=503)
            case "refuse":
                return web.json_response({"error": "no such thing"}, status=422)
            case "other":
                return web.json_response({}, status=409)
            case "hang":
                await asyncio.sleep(3600)
            case "drop":
                assert request.transport
                request.transport.close()
                return web.Response()
        if len(self.sessions) >= self.capacity:
            return web.json_response({}, status=429)
        self.sessions[session_id] = "waiting"
        self.begun.append(session_id)
        if self.work is not None:
            self.spawn(self.work(self, body))
        if self.manner == "take and hang":
            assert request.transport
            request.transport.close()
        return web.json_response({"session_id": session_id, "stage": "waiting"}, status=202)

    async def _cancel(self, request: web.Request) -> web.Response:
        session_id = request.match_info["id"]
        held = session_id in self.sessions
        if held:
            self.spawn(self._end(session_id))
        return web.json_response({}, status=202 if held else 404)

    async def _end(self, session_id: str) -> None:
        if session_id in self.sessions and session_id not in self.cancelled:
            self.cancelled.add(session_id)
            await self.report(session_id, status="cancelled", reward=None, ended_in=self.sessions[session_id])

    async def report(self, session_id: str, **fields: Any) -> str:
        """Say how a session ended; what the server made of it."""
        reply = await self.post_report(session_id, **fields)
        reply.raise_for_status()
        self.sessions.pop(session_id, None)
        return str(reply.json()["outcome"])

    async def post_report(self, session_id: str, **fields: Any) -> httpx.Response:
        report = {
            "session_id": session_id,
            "incarnation": self.incarnation,
            "status": "completed",
            "ended_in": "grading",
            "reward": 1.0,
            "rewards": {"reward": 1.0},
            "trained_tokens": 10,
            "times": {"running_at": 1.0, "finished_at": 2.0},
            "record": {"session_id": session_id},
        } | fields
        if report["reward"] is None:
            report["rewards"] = {}
        body = Report.model_validate(report).model_dump(mode="json")
        return await self.client.post(f"/v1/sessions/{session_id}/report", json=body)


async def completes(gateway: FakeGateway, assignment: dict[str, Any]) -> None:
    """A session that ends well at once."""
    gateway.sessions[assignment["session_id"]] = "running"
    await gateway.report(assignment["session_id"])
