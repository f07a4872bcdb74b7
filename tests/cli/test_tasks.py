"""`polar submit`: what becomes a request, and what is refused before a server is asked."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from polar_mitm.cli import app, tasks
from polar_mitm.client.models import Result, Session
from polar_mitm.client.requests import ApiError


@pytest.mark.parametrize("task", ["nope.yaml", "no/such", "folder", "./folder", "set.yaml"])
def test_what_is_no_task_is_refused_with_the_mend(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "rows.jsonl").write_text("{}")
    evaluator = "evaluator: {type: session_completed}"
    (tmp_path / "set.yaml").write_text(f"tasks: {{file: rows.jsonl, instruction: x}}\n{evaluator}\n")
    run = CliRunner().invoke(
        app, ["submit", task, "--server-url", "http://127.0.0.1:1"], env={"POLAR_ROLLOUT_TOKEN": "t"}
    )
    assert run.exit_code == 2, run.output
    assert ("no such file" in run.output) if task.startswith("no") else ("--scenarios" in run.output)


def test_one_task_of_a_set_that_gateways_know_is_named_by_its_id() -> None:
    request = tasks._request("my-set", 2, None, "astropy-1", None, 0, None)
    assert (request.scenario, request.changes) == ("my-set", {"tasks": {"only": ["astropy-1"]}})


def test_a_result_says_each_thing_once() -> None:
    fields = {"session_id": "ses_1", "task_id": "t", "group_id": "t", "sample": 2, "attempt": 1, "stage": "done"}
    session = Session.model_validate(fields | {"status": "cancelled", "status_reason": "cancelled"})
    line = tasks._line(Result(seq=1, session=session, calls=1, trained_tokens=3))
    assert line.startswith("sample 2: cancelled, 1 call, 3 trained tokens, reward -")


def test_a_refused_field_is_named_once() -> None:
    assert str(ApiError(422, "invalid", "scenario.tasks: no", "scenario.tasks")) == "scenario.tasks: no"
