"""Callbacks: signed, at least once, again and again until somebody takes them, and never in the way of each other."""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from polar_mitm.rollout.server import callbacks
from polar_mitm.rollout.server.callbacks import delay
from tests.rollout.fake_gateway import FakeGateway, completes
from tests.rollout.server.conftest import SECRET, On, Start, eventually


class Receiver:
    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.hang = False
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        self.requests.append((dict(request.headers), await request.read()))
        if self.hang:
            await asyncio.sleep(3600)
        return web.Response(status=self.statuses.pop(0) if self.statuses else 200)


@asynccontextmanager
async def receiving(*statuses: int) -> AsyncIterator[Receiver]:
    receiver = Receiver(*statuses)
    app = web.Application()
    app.router.add_post("/hook", receiver.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/hook"  # type: ignore[union-attr]
    yield receiver
    await runner.cleanup()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "FIRST_S", 0.01)


async def test_the_end_of_a_task_is_posted_and_signed(on: On) -> None:
    async with receiving() as receiver, FakeGateway(on.client, work=completes):
        task = await on.submit(num_samples=2, callback={"url": receiver.url}, metadata={"row": 3})
        await on.ended(task["task_id"])
        await eventually(lambda: receiver.requests)
        await eventually(lambda: on.get("/v1/callbacks", state="delivered"))
    headers, body = receiver.requests[0]
    stamp = int(headers["webhook-timestamp"])
    expected = hmac.new(SECRET.encode(), f"{headers['webhook-id']}.{stamp}.".encode() + body, hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(expected).decode()
    import json

    said = json.loads(body)
    assert (said["type"], said["id"]) == ("task.finished", headers["webhook-id"])
    assert (said["task"]["status"], said["task"]["metadata"]) == ("completed", {"row": 3})
    assert len(receiver.requests) == 1


async def test_each_sessions_end_is_posted_where_that_was_asked_for(on: On) -> None:
    async with receiving() as receiver, FakeGateway(on.client, work=completes):
        events = ["session.finished", "task.finished"]
        task = await on.submit(num_samples=3, callback={"url": receiver.url, "events": events})
        await on.ended(task["task_id"])
        await eventually(lambda: len(receiver.requests) == 4)
    import json

    bodies = [json.loads(body) for _, body in receiver.requests]
    results = [body["result"] for body in bodies if body["type"] == "session.finished"]
    assert {r["session"]["sample"] for r in results} == {0, 1, 2}
    assert all(r["rewards"] == {"reward": 1.0} for r in results)


@pytest.mark.usefixtures("quick")
async def test_what_was_not_taken_is_sent_again_under_the_same_id(on: On) -> None:
    async with receiving(500, 302, 404) as receiver, FakeGateway(on.client, work=completes):
        await on.submit(callback={"url": receiver.url})
        await eventually(lambda: len(receiver.requests) == 4)

        async def delivered() -> Any:
            return (await on.get("/v1/callbacks", state="delivered"))["items"]

        (row,) = await eventually(delivered)
    assert (row["attempts"], row["last_error"]) == (4, None)
    assert len({headers["webhook-id"] for headers, _ in receiver.requests}) == 1


@pytest.mark.usefixtures("quick")
async def test_what_nobody_takes_is_listed_and_can_be_sent_again(on: On) -> None:
    on.service.postman.tries = 3
    async with receiving(500, 500, 500) as receiver, FakeGateway(on.client, work=completes):
        await on.submit(callback={"url": receiver.url})

        async def dead() -> Any:
            return (await on.get("/v1/callbacks", state="dead"))["items"]

        (row,) = await eventually(dead)
        assert (row["attempts"], row["last_error"]) == (3, "it answered 500")
        assert (await on.get("/v1/overview"))["callbacks_dead"] == 1
        path = f"/v1/callbacks/{row['id']}/resend"
        assert (await on.client.post(path)).status_code == 202
        await eventually(lambda: len(receiver.requests) == 4)

        async def none_left() -> bool:
            return (await on.get("/v1/overview"))["callbacks_dead"] == 0

        await eventually(none_left)


async def test_a_slow_receiver_holds_up_nobody_else(on: On) -> None:
    async with receiving() as slow, receiving() as quick, FakeGateway(on.client, capacity=40, work=completes):
        slow.hang = True
        for _ in range(20):
            await on.submit(callback={"url": slow.url})
        await eventually(lambda: slow.requests)
        for _ in range(5):
            await on.submit(callback={"url": quick.url})
        await eventually(lambda: len(quick.requests) == 5)
        assert len(slow.requests) == callbacks.AT_ONCE_EACH


async def test_callbacks_outlive_the_server(start: Start) -> None:
    async with receiving() as receiver:
        async with start() as on:
            receiver.statuses = [500]
            async with FakeGateway(on.client, work=completes):
                await on.submit(callback={"url": receiver.url})
                await eventually(lambda: receiver.requests)
        async with start() as on:
            await eventually(lambda: len(receiver.requests) >= 2)


def test_the_time_between_tries_grows_to_an_end() -> None:
    delays = [delay(tries) for tries in range(1, 16)]
    assert all(0.8 <= value <= 720 for value in delays)
    assert delays[5] > delays[2] > delays[0]
