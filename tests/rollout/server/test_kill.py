"""kill -9 of a real server process at any moment: what was accepted is there, and nothing is there twice."""

import asyncio
import contextlib
import hashlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from polar_mitm.client.models import CallbackBody
from polar_mitm.rollout.server.callbacks import signature
from tests.rollout.fake_gateway import FakeGateway
from tests.rollout.server.conftest import SCENARIO, SECRET, eventually
from tests.rollout.server.process import STARTS_S, Process

TASKS, SAMPLES, KILLS = 40, 3, 4


@pytest.fixture
async def process(database_url: str, tmp_path: Path) -> AsyncIterator[Process]:
    process = Process(tmp_path / "state", database_url)
    await process.start()
    yield process
    await process.kill()


class Receiver:
    """Takes callbacks; every third answer is an error, so that some are sent again."""

    def __init__(self) -> None:
        self.bodies: list[CallbackBody] = []
        self.seen = 0

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        headers = request.headers
        expected = signature(SECRET, headers["webhook-id"], int(headers["webhook-timestamp"]), body)
        assert headers["webhook-signature"] == expected
        self.seen += 1
        if self.seen % 3 == 0:
            return web.Response(status=500)
        self.bodies.append(CallbackBody.model_validate_json(body))
        return web.Response()


@contextlib.asynccontextmanager
async def receiving() -> AsyncIterator[tuple[Receiver, str]]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/done", receiver.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    yield receiver, f"http://127.0.0.1:{port}/done"
    await runner.cleanup()


async def insist(ask: Any) -> httpx.Response:
    """As a careful client does: again, until it is answered."""

    async def once() -> httpx.Response | None:
        try:
            reply: httpx.Response = await ask()
        except httpx.TransportError:
            return None
        return reply if reply.status_code < 500 else None

    return await eventually(once, seconds=2 * STARTS_S)


async def runs(gateway: FakeGateway, given: dict[str, Any]) -> None:
    """A little work, then a report until it is answered. What comes of a session depends on nothing but its id."""
    session_id = given["session_id"]
    await asyncio.sleep(0.05)
    failed = int(hashlib.sha256(session_id.encode()).hexdigest(), 16) % 10 == 0
    fields = {"status": "error", "reward": None} if failed else {}
    await insist(lambda: gateway.post_report(session_id, **fields))
    gateway.sessions.pop(session_id, None)


async def test_nothing_is_lost_or_doubled_by_kills_at_random_moments(process: Process, tmp_path: Path) -> None:
    chance = random.Random(20260705)
    accepted: dict[str, str] = {}

    async def submits(client: httpx.AsyncClient, callback: str) -> None:
        for number in range(TASKS):
            body = {
                "scenario": SCENARIO,
                "num_samples": SAMPLES,
                "max_attempts": 20,
                "callback": {"url": callback},
                "metadata": {"number": number},
            }
            headers = {"Idempotency-Key": f"key-{number}"}
            reply = await insist(
                lambda body=body, headers=headers: client.post("/v1/tasks", json=body, headers=headers)
            )
            assert reply.status_code == 202
            accepted[f"key-{number}"] = reply.json()["task_id"]
            await asyncio.sleep(0.02)

    async with receiving() as (receiver, callback), process.client() as client:
        gateways = [FakeGateway(client, capacity=8, beat_s=0.3, work=runs) for _ in range(2)]
        for gateway in gateways:
            await gateway.__aenter__()
        submitting = asyncio.create_task(submits(client, callback))
        for _ in range(KILLS):
            await asyncio.sleep(chance.uniform(0.1, 1.5))
            await process.kill()
            await process.start()
        await submitting
        assert len(set(accepted.values())) == TASKS

        async def all_ended() -> bool:
            tasks = (await client.get("/v1/tasks", params={"limit": 1000})).json()["items"]
            return len(tasks) == TASKS and all(task["finished_at"] for task in tasks)

        await eventually(all_ended, seconds=120)
        for task_id in accepted.values():
            whole = (await client.get(f"/v1/tasks/{task_id}/results")).json()
            assert sorted(r["session"]["sample"] for r in whole["results"]) == list(range(SAMPLES))
            assert whole["task"]["status"] == "completed"
        await eventually(lambda: {body.task.task_id for body in receiver.bodies} == set(accepted.values()))
        begun = Counter(session_id for gateway in gateways for session_id in gateway.begun)
        assert set(begun.values()) == {1}, "no session id is ever begun twice"
        for gateway in gateways:
            await gateway.die()


async def test_what_was_answered_is_on_disk(process: Process) -> None:
    """The server is killed as soon as it has answered."""
    async with process.client() as client:
        reply = await client.post("/v1/tasks", json={"scenario": SCENARIO, "task_id": "mine"})
        assert reply.status_code == 202
        await process.kill()
        await process.start()
        again = await client.get("/v1/tasks/mine")
        assert (again.status_code, again.json()["samples"]["queued"]) == (200, 1)


async def test_a_second_server_on_the_same_database_does_not_start(process: Process, tmp_path: Path) -> None:
    second = Process(tmp_path / "second", process.database)
    with pytest.raises(AssertionError, match="another rollout server uses"):
        await second.start()
    assert second.process
    assert second.process.returncode == 3


async def test_it_stops_in_order_when_it_is_told_to(process: Process) -> None:
    async with process.client() as client, client.stream("GET", "/v1/events") as events:
        assert events.status_code == 200
        assert await process.stop() == 130
    log = (process.state / "log").read_text()
    assert "Traceback" not in log
    assert "a-token-of-the-tests" not in log
