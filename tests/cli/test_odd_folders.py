"""Folders and files that are not what commands expect: a message and an exit code, never a traceback."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from polar_mitm.capture.folder import SessionFolder
from polar_mitm.capture.log import CallLog
from polar_mitm.cli import app
from tests.capture.samples import make_call


def polar(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


def calls(folder: Path, *names: str) -> Path:
    with CallLog(folder / "calls.jsonl", durability="none") as log:
        for name in names:
            log.append(make_call(name))
    return folder


def test_a_folder_without_its_record_says_how_to_get_one(tmp_path: Path) -> None:
    folder = calls(tmp_path / "ses_1", "a")
    refused = polar("export", tmp_path, "--format", "jsonl")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == (
        f"polar: {folder}: it has no session.json (`polar recover {folder}` makes one from its calls)\n"
    )
    assert polar("calls", tmp_path).exit_code == 0
    assert polar("recover", folder).exit_code == 0
    assert SessionFolder(folder).load().calls == 1
    assert polar("export", tmp_path, "--format", "jsonl").exit_code == 0


@pytest.mark.parametrize("command", [["calls"], ["calls", "--jsonl"], ["export", "--format", "jsonl"], ["traces"]])
def test_a_folder_where_the_calls_should_be_is_named(tmp_path: Path, command: list[str]) -> None:
    folder = calls(tmp_path / "ses_1", "a")
    polar("recover", folder)
    (folder / "calls.jsonl").rename(tmp_path / "kept")
    (folder / "calls.jsonl").mkdir()
    result = polar(*command, tmp_path)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1
    assert "calls.jsonl" in result.stderr and "Traceback" not in result.stderr


def test_a_line_nested_without_end_is_named(tmp_path: Path) -> None:
    folder = calls(tmp_path / "ses_1", "a")
    with (folder / "calls.jsonl").open("ab") as file:
        file.write(b"[" * 200_000 + b"\n{}\n")
    result = polar("calls", folder)
    assert isinstance(result.exception, SystemExit), result.exception
    assert (result.exit_code, "line 2: not JSON: nested too deep" in result.stderr) == (1, True)


def test_a_torn_last_line_is_told(tmp_path: Path) -> None:
    folder = calls(tmp_path / "ses_1", "a", "b")
    file = folder / "calls.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    result = polar("calls", folder, "--json")
    assert [len(rows) for rows in json.loads(result.stdout).values()] == [1]
    assert result.stderr.startswith(f"{file}: its last line is not whole, and is left out: ")
    whole = calls(tmp_path / "ses_2", "a")
    assert polar("calls", whole, "--json").stderr == ""


@pytest.mark.parametrize("version", ["true", "0", "null", '"1"'])
def test_what_is_no_schema_version_is_refused(tmp_path: Path, version: str) -> None:
    folder = calls(tmp_path / "ses_1", "a")
    polar("recover", folder)
    record = SessionFolder(folder).record
    text = record.read_text()
    record.write_text(text.replace('"schema": 1', f'"schema": {version}'))
    refused = polar("export", folder, "--format", "jsonl")
    assert refused.exit_code == 2 and "session.json: its schema version is" in refused.stderr
    copy = tmp_path / "copy.jsonl"
    copy.write_text((folder / "calls.jsonl").read_text().replace('"schema":1', f'"schema":{version}', 1))
    assert "line 1: not a call record: it has no schema version" in polar("calls", copy).stderr


def test_replay_takes_a_sessions_folder_and_names_one_that_is_none(tmp_path: Path) -> None:
    result = polar("replay", tmp_path, "--out", tmp_path / "again")
    assert (result.exit_code, result.stderr) == (
        2,
        f"polar: there is no flows.mitm in {tmp_path}: name a session's folder, or a file of flows\n",
    )
    (tmp_path / "flows.mitm").write_bytes(b"")
    assert "no call of a session is in it" in polar("replay", tmp_path, "--out", tmp_path / "again").stderr
