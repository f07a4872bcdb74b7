"""The HTTP API at its borders: who may come in, what is refused and how, what is the same when it is sent again."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.rollout.fake_gateway import FakeGateway, completes
from tests.rollout.server.conftest import SCENARIO, TOKEN, On, Start, eventually

PATHS = ["/v1/tasks", "/v1/events", "/v1/gateways", "/metrics", "/docs", "/openapi.json", "/v1/nothing", "/"]


@pytest.mark.parametrize("path", PATHS)
async def test_nothing_is_shown_without_the_token(on: On, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Token {TOKEN}"}):
        async with httpx.AsyncClient(base_url=on.url, headers=headers) as client:
            reply = await client.get(path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, "unauthorized")
        assert any("Basic" in value for value in reply.headers.get_list("www-authenticate"))


async def test_liveness_is_open_to_all(on: On) -> None:
    async with httpx.AsyncClient(base_url=on.url) as client:
        assert (await client.get("/healthz")).text == "ok\n"


async def test_a_browser_gives_the_token_as_a_password(on: On) -> None:
    async with httpx.AsyncClient(base_url=on.url, auth=("me", TOKEN)) as client:
        assert (await client.get("/v1/tasks")).status_code == 200
        own = {"Sec-Fetch-Site": "same-origin"}
        foreign: list[dict[str, str]] = [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://elsewhere.example"}]
        assert (await client.post("/v1/tasks", json={"scenario": SCENARIO}, headers=own)).status_code == 202
        for headers in foreign:
            reply = await client.post("/v1/tasks", json={"scenario": SCENARIO}, headers=headers)
            assert reply.status_code == 403
    async with httpx.AsyncClient(base_url=on.url, auth=("me", "wrong")) as client:
        assert (await client.get("/v1/tasks")).status_code == 401


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "scenario"),
        ({"scenario": SCENARIO, "num_samples": 0}, "num_samples"),
        ({"scenario": SCENARIO, "colour": 1}, "colour"),
        ({"scenario": SCENARIO | {"harness": "no-such"}}, "scenario.harness"),
        ({"scenario": SCENARIO, "changes": {"sandbox": "no-such"}}, "scenario.sandbox"),
        ({"scenario": {"instruction": "x"}}, "scenario.evaluator"),
        ({"scenario": SCENARIO | {"tasks": {"file": "x.jsonl"}}}, "scenario.tasks"),
        ({"scenario": SCENARIO, "callback": {"url": "ftp://x"}}, "callback.url"),
    ],
)
async def test_what_cannot_be_run_is_refused_by_name(on: On, body: dict[str, Any], field: str) -> None:
    reply = await on.client.post("/v1/tasks", json=body)
    assert reply.status_code == 422, reply.text
    assert reply.json()["error"]["field"] == field
    assert field in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "text",
    [
        b'{"scenario": "hello", "metadata": {"x": NaN}}',
        b'{"scenario": "hello", "metadata": {"x": 1e999}}',
        b'{"scenario": "hello", "metadata": {"x": "\\ud800"}}',
        b'{"scenario": "hello", "metadata": {"x": "\xff"}}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"",
        b"null",
    ],
)
async def test_what_is_no_json_is_refused(on: On, text: bytes) -> None:
    reply = await on.client.post("/v1/tasks", content=text, headers={"Content-Type": "application/json"})
    assert reply.status_code == 422, reply.text
    assert reply.json()["error"]["code"] == "invalid"


async def test_metadata_comes_back_as_it_was_sent(on: On) -> None:
    metadata = {"zero": "a\u0000b", "big": 10**40, "text": "ü\U0001f600", "deep": {"list": [1, 2.5, None, True]}}
    task = await on.submit(metadata=metadata)
    assert (await on.task(task["task_id"]))["metadata"] == metadata


async def test_zero_bytes_in_reasons_and_ids_break_nothing(on: On) -> None:
    task = await on.submit(num_samples=1)
    async with FakeGateway(on.client) as gateway:
        await eventually(lambda: gateway.begun)
        await gateway.report(gateway.begun[0], status="failed", status_reason="a\u0000b", ended_in="running")
    assert (await on.ended(task["task_id"]))["status"] == "failed"
    assert (await on.sessions(task["task_id"]))[0]["status_reason"] == "a\ufffdb"
    for path in ("/v1/tasks/a%00b", "/v1/tasks?group_id=%00", "/v1/sessions/x%00/result", "/v1/results?task_id=%00"):
        assert (await on.client.get(path)).status_code == 422
    assert (await on.client.post("/v1/tasks", json={"scenario": "x", "policy_version": "\u0000"})).status_code == 422


async def test_a_body_of_ten_megabytes_is_taken_and_one_too_large_is_not(start: Start) -> None:
    async with start(max_body=12_000_000) as on:
        task = await on.submit(metadata={"x": "y" * 10_000_000}, num_samples=4)
        async with FakeGateway(on.client, work=completes):
            done = await on.ended(task["task_id"])
        assert len(done["metadata"]["x"]) == 10_000_000
        listed = await on.client.get("/v1/tasks")
        assert len(listed.content) < 10_000

        async def endless() -> Any:
            for _ in range(13):
                yield b" " * 1_000_000

        refused = await on.client.post("/v1/tasks", json={"scenario": "x", "metadata": {"x": "y" * 13_000_000}})
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_large")
        streamed = await on.client.post("/v1/tasks", content=endless(), headers={"Content-Type": "application/json"})
        assert streamed.status_code == 413
        assert (await on.get("/v1/overview"))["tasks"] == {"completed": 1}


async def test_the_same_key_gives_the_same_task(on: On) -> None:
    headers = {"Idempotency-Key": "k1"}
    body = {"scenario": SCENARIO, "num_samples": 2}
    replies = await asyncio.gather(*(on.client.post("/v1/tasks", json=body, headers=headers) for _ in range(8)))
    assert {reply.status_code for reply in replies} == {202}
    assert len({reply.json()["task_id"] for reply in replies}) == 1
    assert sum("idempotent-replayed" in reply.headers for reply in replies) == 7
    other = await on.client.post("/v1/tasks", json=body | {"num_samples": 3}, headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
    assert (await on.get("/v1/overview"))["stages"] == {"queued": 2}


async def test_a_task_id_is_taken_once(on: On) -> None:
    await on.submit(task_id="mine")
    again = await on.client.post("/v1/tasks", json={"scenario": SCENARIO, "task_id": "mine"})
    assert again.status_code == 409
    assert "mine" in again.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/tasks/none"),
        ("GET", "/v1/tasks/none/sessions"),
        ("GET", "/v1/tasks/none/results"),
        ("POST", "/v1/tasks/none/cancel"),
        ("POST", "/v1/tasks/none/retry"),
        ("GET", "/v1/sessions/none"),
        ("GET", "/v1/sessions/none/result"),
        ("GET", "/v1/sessions/none/files"),
        ("GET", "/v1/sessions/none/files/x"),
        ("PUT", "/v1/sessions/none/files/x"),
        ("POST", "/v1/callbacks/none/resend"),
        ("GET", "/v1/nothing"),
    ],
)
async def test_what_is_not_there_is_said_to_be_not_there(on: On, method: str, path: str) -> None:
    reply = await on.client.request(method, path)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")


async def test_a_session_that_has_not_ended_has_no_result(on: On) -> None:
    task = await on.submit()
    session = (await on.sessions(task["task_id"]))[0]
    reply = await on.client.get(f"/v1/sessions/{session['session_id']}/result")
    assert reply.status_code == 404
    assert "has not ended" in reply.json()["error"]["message"]


async def test_the_page_of_the_api_needs_nothing_from_elsewhere(on: On) -> None:
    page = (await on.client.get("/docs")).text
    assert "/v1/tasks/{task_id}/results" in page
    assert "TaskRequest" in page
    assert "http" not in page.replace("http-equiv", "").replace("^https?://", "").replace("HTTP", "").lower()


async def test_prometheus_is_told_what_happened(on: On) -> None:
    task = await on.submit(num_samples=2)
    async with FakeGateway(on.client, work=completes):
        await on.ended(task["task_id"])
        text = (await on.client.get("/metrics")).text
    for line in (
        "polar_tasks_submitted_total 1.0",
        'polar_sessions_ended_total{status="completed"} 2.0',
        'polar_reports_total{outcome="counts"} 2.0',
        'polar_dispatches_total{answer="taken"} 2.0',
        'polar_sessions{stage="queued"} 0.0',
        'polar_gateways{state="ready"} 1.0',
        'polar_http_requests_total{route="POST /v1/tasks",status="202"} 1.0',
    ):
        assert line in text.splitlines()
