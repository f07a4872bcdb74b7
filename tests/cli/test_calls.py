"""`polar calls`: a row a call, and under them what the model was not given."""

import json
from pathlib import Path

from typer.testing import CliRunner

from polar_mitm.capture.log import CallLog
from polar_mitm.capture.record import Lost
from polar_mitm.cli import app
from tests.capture.samples import make_call

LOST = {"one": ["seed", "tools.web_search"], "two": ["seed"], "three": ["seed", "thinking.budget"]}


def write(folder: Path) -> None:
    with CallLog(folder / "ses_1" / "calls.jsonl", durability="none") as log:
        for name, fields in LOST.items():
            call = make_call(name)
            call.request.not_carried = [Lost(field=field, why="because") for field in fields]
            if name == "two":
                call.origin.kind, call.origin.kind_reason = "title", "no tools"
            log.append(call)


def test_what_was_not_carried_stands_under_the_table_by_how_often(tmp_path: Path) -> None:
    write(tmp_path)
    result = CliRunner().invoke(app, ["calls", str(tmp_path)])
    assert result.exit_code == 0
    shown = " ".join(result.stdout.split())
    assert "the model was not given: seed x3, thinking.budget x1, tools.web_search x1" in shown
    assert "title: " in shown


def test_a_session_that_lost_nothing_has_no_such_line(tmp_path: Path) -> None:
    with CallLog(tmp_path / "calls.jsonl", durability="none") as log:
        call = make_call("one")
        call.request.not_carried = []
        log.append(call)
    assert "not given" not in CliRunner().invoke(app, ["calls", str(tmp_path)]).stdout


def test_json_names_each_field_the_kind_and_why(tmp_path: Path) -> None:
    write(tmp_path)
    (rows,) = json.loads(CliRunner().invoke(app, ["calls", str(tmp_path), "--json"]).stdout).values()
    assert rows[0]["not_carried"] == [
        {"field": "seed", "why": "because"},
        {"field": "tools.web_search", "why": "because"},
    ]
    assert (rows[1]["kind"], rows[1]["kind_reason"]) == ("title", "no tools")
