"""`polar calls`: a row a call, and under them what the model was not given."""

import json
from pathlib import Path

from typer.testing import CliRunner

from polar_mitm.capture.folder import SessionFolder, SessionRecord
from polar_mitm.capture.log import CallLog
from polar_mitm.capture.record import Lost
from polar_mitm.capture.session import SessionLog
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


def test_a_session_is_headed_by_whose_it_is(tmp_path: Path) -> None:
    write(tmp_path)
    record = SessionRecord(session_id="ses_1", started_at=1.0, status="completed", scenario="hello", sample=3)
    record.harness = "pi"
    SessionFolder(tmp_path / "ses_1").write(record)
    result = CliRunner().invoke(app, ["calls", str(tmp_path)], env={"COLUMNS": "80"})
    assert result.stdout.startswith(f"{tmp_path / 'ses_1'}  hello, sample 3, pi\n")


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
        {"field": "seed", "why": "because", "times": 1},
        {"field": "tools.web_search", "why": "because", "times": 1},
    ]
    assert (rows[1]["kind"], rows[1]["kind_reason"]) == ("title", "no tools")


def test_a_file_its_folder_and_the_run_all_show_the_session(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "ses_1" / "workspace").mkdir()
    (tmp_path / "ses_1" / "workspace" / "calls.jsonl").write_text("the harness's own\n")
    shown = [shown_for(path) for path in (tmp_path, tmp_path / "ses_1", tmp_path / "ses_1" / "calls.jsonl")]
    assert shown[0] == shown[1] == shown[2]
    assert list(shown[0]) == [str(tmp_path / "ses_1")]


def test_a_copy_under_another_name_is_shown_under_that_name(tmp_path: Path) -> None:
    write(tmp_path)
    copy = (tmp_path / "ses_1" / "calls.jsonl").rename(tmp_path / "kept.jsonl")
    assert [len(rows) for rows in shown_for(copy).values()] == [3]
    assert list(shown_for(copy)) == [str(copy)]


def test_a_folder_without_captures_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["calls", str(tmp_path)])
    assert (result.exit_code, result.stderr) == (2, f"polar: no calls.jsonl under {tmp_path}\n")


def shown_for(path: Path) -> dict[str, list[dict[str, object]]]:
    result = CliRunner().invoke(app, ["calls", str(path), "--json"])
    assert result.exit_code == 0
    shown = json.loads(result.stdout)
    assert isinstance(shown, dict)
    return shown


def test_a_session_whose_process_is_gone_is_closed_by_looking_at_it(tmp_path: Path) -> None:
    write(tmp_path)
    folder = SessionFolder(tmp_path / "ses_1")
    folder.write(SessionRecord(session_id="ses_1", started_at=1.0))
    result = CliRunner().invoke(app, ["calls", str(folder.calls), "--json"])
    assert [len(rows) for rows in json.loads(result.stdout).values()] == [3]
    assert result.stderr == f"{folder.path}: incomplete: the process that ran it ended before the session did\n"
    assert folder.load().status == "failed"
    assert CliRunner().invoke(app, ["calls", str(tmp_path)]).stderr == ""


def test_looking_at_a_copy_closes_no_session_beside_it(tmp_path: Path) -> None:
    write(tmp_path)
    folder = SessionFolder(tmp_path / "ses_1")
    folder.write(SessionRecord(session_id="ses_1", started_at=1.0))
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(folder.calls.read_bytes())
    assert [len(rows) for rows in shown_for(copy).values()] == [3]
    assert folder.load().status == "open"


def test_a_running_session_is_shown_and_left_running(tmp_path: Path) -> None:
    log = SessionLog(SessionFolder.create(tmp_path, "ses_1"), SessionRecord(session_id="ses_1", started_at=1.0))
    log.record(make_call("one"))
    assert [len(rows) for rows in shown_for(tmp_path).values()] == [1]
    assert log.folder.load().status == "open"
    log.close("completed")


def test_compressed_calls_are_shown_the_same_and_given_out_as_text(tmp_path: Path) -> None:
    log = SessionLog(SessionFolder.create(tmp_path, "ses_1"), SessionRecord(session_id="ses_1", started_at=1.0))
    log.record(make_call("one"))
    text = log.folder.calls.read_text()
    log.close("completed")
    before = shown_for(tmp_path)
    assert CliRunner().invoke(app, ["seal", str(tmp_path)]).exit_code == 0
    assert log.folder.calls.name == "calls.jsonl.zst"
    for path in (tmp_path, log.folder.path, log.folder.calls):
        assert shown_for(path) == before
        assert CliRunner().invoke(app, ["calls", str(path), "--jsonl"]).stdout == text
