"""A rollout server of the tests' own, in this process and on a real port, with either database."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from polar_mitm.rollout.server.app import create_app
from polar_mitm.rollout.server.serve import _listen, _Server
from polar_mitm.rollout.server.service import Service
from polar_mitm.rollout.server.settings import Settings
from tests.rollout.databases import database_url, pg_cluster

__all__ = ["database_url", "pg_cluster"]

TOKEN = "a-token-of-the-tests"
SECRET = "a-secret-of-the-tests"
SCENARIO: dict[str, Any] = {"instruction": "Say hello.", "evaluator": {"type": "session_completed"}}

PATIENCE_S = 30.0
"""For what happens within a second on an idle machine."""


@dataclass
class On:
    """A running server."""

    service: Service
    client: httpx.AsyncClient
    url: str

    async def submit(self, **fields: Any) -> dict[str, Any]:
        reply = await self.client.post("/v1/tasks", json={"scenario": SCENARIO} | fields)
        assert reply.status_code == 202, reply.text
        task: dict[str, Any] = reply.json()
        return task

    async def get(self, path: str, **parameters: Any) -> Any:
        reply = await self.client.get(path, params=parameters)
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def task(self, task_id: str) -> dict[str, Any]:
        task: dict[str, Any] = await self.get(f"/v1/tasks/{task_id}")
        return task

    async def ended(self, task_id: str) -> dict[str, Any]:
        """The task, once it has ended."""

        async def finished() -> dict[str, Any] | None:
            task = await self.task(task_id)
            return task if task["finished_at"] is not None else None

        return await eventually(finished)

    async def sessions(self, task_id: str) -> list[dict[str, Any]]:
        found = await self.get(f"/v1/tasks/{task_id}/sessions", limit=1000)
        items: list[dict[str, Any]] = found["items"]
        return items


async def eventually[T](ask: Callable[[], Awaitable[T | None] | T | None], *, seconds: float = PATIENCE_S) -> T:
    """What `ask` gives as soon as it gives something true."""
    end = time.monotonic() + seconds
    while True:
        found = ask()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found  # type: ignore[return-value]
        assert time.monotonic() < end, f"it never came: {ask}"
        await asyncio.sleep(0.03)


def settings(url: str, folder: Path, **more: Any) -> Settings:
    given: dict[str, Any] = {
        "token": TOKEN,
        "database": url,
        "files": str(folder / "files"),
        "callback_secret": SECRET,
        "heartbeat_s": 0.5,
    }
    return Settings(**(given | more))


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[On]:
    import uvicorn

    async with Service(settings) as service:
        up = asyncio.Event()
        config = uvicorn.Config(
            create_app(settings, service), lifespan="off", log_config=None, timeout_graceful_shutdown=1
        )
        server = _Server(config, up.set)
        with _listen("127.0.0.1", 0) as listening:
            work = asyncio.create_task(server.serve(sockets=[listening]))
            await up.wait()
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE_S) as client:
                yield On(service, client, url)
            service.broadcast.close()
            server.should_exit = True
            await work


type Start = Callable[..., AbstractAsyncContextManager[On]]


@pytest.fixture
def start(database_url: str, tmp_path: Path) -> Start:
    """`async with start(heartbeat_s=1) as on`: on the same database and files each time."""
    return lambda **more: serving(settings(database_url, tmp_path, **more))


@pytest.fixture
async def on(start: Start) -> AsyncIterator[On]:
    async with start() as running:
        yield running
