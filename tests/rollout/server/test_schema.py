"""What the OpenAPI document says of the server, and a slice of `make api`: no request makes it fail."""

import asyncio
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error

from tests.rollout.server.conftest import TOKEN, On

EXAMPLES = 4
"""For each operation."""
ENDLESS = ("/v1/events", "/v1/results")
"""Streams that do not end; the second one is a page as well."""


async def test_the_document_names_every_error_it_may_answer_with(on: On) -> None:
    document = (await on.client.get("/openapi.json")).json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if path != "/healthz":
                assert {"401", "422", "503"} <= set(operation["responses"]), (method, path)
            assert operation["description"], (method, path)


async def test_no_request_makes_the_server_fail(on: On) -> None:
    document = (await on.client.get("/openapi.json")).json()
    for path in ENDLESS:
        del document["paths"][path]
    operations = [found.ok() for found in schemathesis.openapi.from_dict(document).get_all_operations()]
    assert len(operations) > 20
    for operation in operations:
        await asyncio.to_thread(_try, operation, on.url)


def _try(operation: Any, url: str) -> None:
    @seed(20260811)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def one(case: Any) -> None:
        reply = case.call(base_url=url, headers={"Authorization": f"Bearer {TOKEN}", "Accept": "*/*"}, timeout=60)
        case.validate_response(reply, checks=[not_a_server_error])

    one()
