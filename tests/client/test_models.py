"""The models of the HTTP API: what is refused, what is let through, and what importing them costs."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from polar_mitm.client.models import Task, TaskRequest
from polar_mitm.client.nodes import Registration, Report

HEAVY = ("mitmproxy", "fastapi", "starlette", "sqlalchemy", "aiohttp", "torch", "orjson", "typer", "uvicorn")


def test_the_models_import_nothing_but_pydantic() -> None:
    code = "import sys, polar_mitm.client.models, polar_mitm.client.nodes; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "pydantic" in loaded
    assert not {name.partition(".")[0] for name in loaded} & set(HEAVY)


@pytest.mark.parametrize(
    "fields",
    [
        {"task_id": "../x"},
        {"task_id": "a/b"},
        {"num_samples": 0},
        {"num_samples": 2, "stop_after": 3},
        {"budgets": {"running_s": -1}},
        {"budgets": {"running_s": "inf"}},
        {"callback": {"url": "file:///etc/passwd"}},
        {"callback": {"url": "https://[::1"}},
        {"callback": {"url": "http://a:99999/x"}},
        {"callback": {"url": "http://:80/x"}},
        {"instruction": ""},
        {"no_such_field": 1},
    ],
)
def test_a_request_that_cannot_be_meant_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TaskRequest.model_validate({"scenario": "hello"} | fields)


def test_a_newer_servers_fields_are_left_out() -> None:
    fields = {"task_id": "t", "group_id": "t", "status": "queued", "num_samples": 1, "samples": {}, "attempts": 1}
    task = Task.model_validate(fields | {"priority": 0, "submitted_at": 1.0, "colour": "blue"})
    assert not hasattr(task, "colour")


def test_a_gateway_has_an_address() -> None:
    with pytest.raises(ValidationError):
        Registration.model_validate({"name": "a", "incarnation": "b", "url": "a:80", "capacity": 1})


def test_a_reward_is_finite() -> None:
    fields = {"session_id": "s", "incarnation": "i", "status": "completed", "ended_in": "running", "times": {}}
    with pytest.raises(ValidationError):
        Report.model_validate(fields | {"reward": float("nan")})
