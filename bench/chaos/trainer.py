"""Who asks for sessions and is told of their end: sends until it is answered, and checks every callback's signature."""

import asyncio
import base64
import hashlib
import hmac
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
from aiohttp import web

SCENARIO = {
    "name": "chaos",
    "instruction": "Say hello.",
    "harness": "command",
    "command": ["true"],
    "sandbox": "host",
    "model": "fake",
    "evaluator": {"type": "session_completed"},
}
REFUSED = 0.1
"""Of the callbacks, by a receiver that is not well."""
PAUSE_S = 0.3


class Unavailable(Exception):
    """No answer, or one that says to come again."""


@dataclass
class Trainer:
    """`async with Trainer(url, token, dice)`; `callbacks` has, by task, the ids of what was delivered."""

    url: str
    token: str
    dice: random.Random
    submitted: dict[str, int] = field(default_factory=dict)
    """Samples, by task."""
    callbacks: dict[str, Counter[str]] = field(default_factory=dict)
    statuses: dict[str, set[str]] = field(default_factory=dict)
    """What the callbacks said of the task."""
    refuses: float = REFUSED
    unsigned: int = 0
    refused: int = 0
    retries: int = 0
    failures: Counter[int] = field(default_factory=Counter)
    """Answers of 5xx."""

    async def __aenter__(self) -> Self:
        headers = {"Authorization": f"Bearer {self.token}"}
        self._http = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=10))
        app = web.Application(client_max_size=0)
        app.router.add_post("/hook", self._hook)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.hook = f"http://127.0.0.1:{self._runner.addresses[0][1]}/hook"
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._runner.cleanup()
        await self._http.close()

    async def submit(self, task_id: str, samples: int) -> None:
        """As often as it takes; the task is one however often it was sent."""
        body = {
            "task_id": task_id,
            "scenario": SCENARIO,
            "num_samples": samples,
            "max_attempts": 100,
            "callback": {"url": self.hook},
        }
        await self.patient("POST", "/v1/tasks", body, {"Idempotency-Key": f"key-{task_id}"})
        self.submitted[task_id] = samples

    async def patient(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, url: str | None = None
    ) -> Any:
        while True:
            try:
                return await self.ask(method, path, body, headers, url)
            except Unavailable:
                self.retries += 1
                await asyncio.sleep(PAUSE_S)

    async def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, url: str | None = None
    ) -> Any:
        """The JSON of an answer. Raises Unavailable, and RuntimeError for an answer that should never be given."""
        try:
            async with self._http.request(method, (url or self.url) + path, json=body, headers=headers) as answer:
                text = await answer.text()
                if answer.status >= 500:
                    self.failures[answer.status] += 1
                    raise Unavailable(text)
                if answer.status >= 300:
                    raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]}")
                return await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(str(error)) from error

    async def fetch(self, path: str, url: str | None = None) -> bytes:
        """The bytes of an answer. Raises aiohttp.ClientError."""
        async with self._http.get((url or self.url) + path) as answer:
            answer.raise_for_status()
            return await answer.read()

    async def pages(self, path: str) -> list[dict[str, Any]]:
        """Every item of a list."""
        items: list[dict[str, Any]] = []
        cursor, join = None, "&" if "?" in path else "?"
        name = "after" if path.startswith("/v1/results") else "cursor"
        while True:
            after = f"&{name}={cursor}" if cursor else ""
            page = await self.patient("GET", f"{path}{join}limit=500{after}")
            items += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return items

    async def _hook(self, request: web.Request) -> web.Response:
        body = await request.read()
        sent = {name: request.headers.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature")}
        signed = f"{sent['id']}.{sent['timestamp']}.".encode() + body
        digest = hmac.new(self.token.encode(), signed, hashlib.sha256).digest()
        if not hmac.compare_digest(sent["signature"], "v1," + base64.b64encode(digest).decode()):
            self.unsigned += 1
            return web.Response(status=400)
        if self.dice.random() < self.refuses:
            self.refused += 1
            return web.Response(status=500)
        task = (await request.json())["task"]
        self.callbacks.setdefault(task["task_id"], Counter())[sent["id"]] += 1
        self.statuses.setdefault(task["task_id"], set()).add(task["status"])
        return web.Response()
