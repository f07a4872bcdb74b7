"""The HTTP API of a gateway, as the rollout server meets it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from polar_mitm.client.nodes import Assignment
from polar_mitm.engine.pool import EnginePool
from polar_mitm.rollout.gateway.app import make_app
from polar_mitm.rollout.gateway.pipeline import Held, Pipeline
from polar_mitm.rollout.gateway.settings import Workers
from tests.rollout.gateway.attempts import Bench, assignment
from tests.rollout.gateway.fake_server import TOKEN

ONE = Workers(preparing=1, ready=0, running=1, grading=1, waiting=0)
ENGINES = EnginePool.of(["http://127.0.0.1:9"])
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, ONE) as bench:
        yield bench


@pytest.fixture
async def client(bench: Bench) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(make_app(bench.pipeline, ENGINES, TOKEN, "i1"))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=HEADERS) as client:
        yield client


def body(session_id: str = "ses_1", **fields: Any) -> dict[str, Any]:
    return assignment(session_id).model_dump(mode="json") | fields


async def test_without_the_token_only_health_is_open(client: httpx.AsyncClient) -> None:
    for headers in ({"Authorization": ""}, {"Authorization": "Bearer x"}, {"Authorization": f"Basic {TOKEN}"}):
        for method, path in (("POST", "/v1/sessions"), ("DELETE", "/v1/sessions/x"), ("GET", "/openapi.json")):
            answer = await client.request(method, path, headers=headers, json=body())
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "unauthorized"
        assert (await client.get("/metrics", headers=headers)).status_code == 401
        assert (await client.get("/healthz", headers=headers)).json() == {"status": "ok"}


async def test_a_session_is_taken_once_and_the_answer_is_the_same(bench: Bench, client: httpx.AsyncClient) -> None:
    for _ in range(2):
        answer = await client.post("/v1/sessions", json=body())
        assert answer.status_code == 202
        assert answer.json()["session_id"] == "ses_1"
    await bench.end("ses_1")
    bench.pipeline.forget("ses_1")
    assert (await client.post("/v1/sessions", json=body())).json()["stage"] == "done"
    assert len(bench.attempts) == 1


async def test_busy_draining_and_another_life_are_told_apart(bench: Bench, client: httpx.AsyncClient) -> None:
    bench.shut = {"running"}
    for number in range(ONE.capacity):
        assert (await client.post("/v1/sessions", json=body(f"ses_{number}"))).status_code == 202
    busy = await client.post("/v1/sessions", json=body("ses_more"))
    assert (busy.status_code, busy.json()["error"]["code"]) == (429, "busy")
    other = await client.post("/v1/sessions", json=body("ses_more", incarnation="i0"))
    assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
    held = await client.post("/v1/sessions", json=body("ses_0", incarnation="i0"))
    assert held.status_code == 202, "what is held is held, whichever life it was meant for"
    bench.pipeline.draining = True
    draining = await client.post("/v1/sessions", json=body("ses_more"))
    assert (draining.status_code, draining.json()["error"]["code"]) == (503, "unavailable")
    assert (await client.get("/healthz")).json() == {"status": "draining"}


async def test_a_session_is_ended_and_an_unknown_one_is_not_found(bench: Bench, client: httpx.AsyncClient) -> None:
    bench.shut = {"running"}
    await client.post("/v1/sessions", json=body())
    await bench.at("ses_1", "running")
    assert (await client.get("/v1/sessions")).json() == {"ses_1": "running"}
    assert 'polar_gateway_sessions{stage="running"} 1.0' in (await client.get("/metrics")).text
    assert (await client.delete("/v1/sessions/ses_1")).status_code == 202
    assert (await bench.end("ses_1")).status == "cancelled"
    missing = await client.delete("/v1/sessions/ses_2")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")


async def test_what_makes_no_sense_is_refused_with_the_field(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/sessions", json=body(sample=-1))
    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == "sample"
    assert (await client.post("/v1/sessions", content=b"{")).status_code == 422
    unknown = await client.get("/v1/nothing")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")


def _no_sessions() -> Pipeline:
    async def refuse(_: Assignment) -> Any:
        raise OSError("no sessions here")

    pipeline = Pipeline(Workers(waiting=10_000), open_sample=refuse, done=lambda held: forget(held))

    def forget(held: Held) -> None:
        pipeline.forget(held.assignment.session_id)

    return pipeline


APP = make_app(_no_sessions(), ENGINES, TOKEN, "i1")
schema = schemathesis.openapi.from_asgi("/openapi.json", APP, headers=HEADERS)


@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_makes_it_fail(case: schemathesis.Case) -> None:
    answer = case.call(headers=HEADERS)
    assert answer.status_code < 500 or answer.status_code == 503, (case.method, case.path, answer.text)
    case.validate_response(answer, checks=[schemathesis.checks.not_a_server_error])
