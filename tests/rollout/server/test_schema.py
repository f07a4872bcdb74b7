"""What the OpenAPI document says, tried out: whatever is sent, the server answers as it says and never with a 500."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, seed, settings
from schemathesis.checks import not_a_server_error

from tests.rollout.server.conftest import TOKEN, On, Start

EXAMPLES = 12
"""For each operation; the streams that do not end are left out."""

ENDLESS = "/v1/events"


async def test_the_document_names_every_error_it_may_answer_with(on: On) -> None:
    document = (await on.client.get("/openapi.json")).json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if path != "/healthz":
                assert {"401", "422", "503"} <= set(operation["responses"]), (method, path)
            assert operation["description"], (method, path)


@pytest.mark.parametrize("shown", [True])
async def test_no_request_makes_the_server_fail(start: Start, shown: bool) -> None:
    import asyncio

    async with start() as on:
        document = (await on.client.get("/openapi.json")).json()
        document["paths"].pop(ENDLESS)
        schema = schemathesis.openapi.from_dict(document)
        tried = await asyncio.to_thread(_try_all, schema, on.url)
    assert tried > 200


def _try_all(schema: Any, url: str) -> int:
    tried = 0
    headers = {"Authorization": f"Bearer {TOKEN}"}
    for found in schema.get_all_operations():
        operation = found.ok()

        @seed(20260811)
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def one(case: Any) -> None:
            nonlocal tried
            tried += 1
            if "application/x-ndjson" in str(case.headers):
                return
            reply = case.call(base_url=url, headers=headers, timeout=60)
            case.validate_response(reply, checks=[not_a_server_error])

        from hypothesis import given

        given(case=operation.as_strategy())(one)()
    return tried
