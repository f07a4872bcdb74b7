"""`polar recover` and `polar seal` on folders of sessions."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from polar_mitm.capture.folder import SessionFolder, SessionRecord
from polar_mitm.capture.reader import read_calls
from polar_mitm.capture.session import SessionLog
from polar_mitm.cli import app
from polar_mitm.rollout import resume
from tests.capture.samples import SYSTEM, make_call, user


def session(out: Path, name: str) -> SessionLog:
    log = SessionLog(SessionFolder.create(out, name), SessionRecord(session_id=name, started_at=1.0))
    log.record(make_call("a", [SYSTEM, user("again and " * 2000)]))
    return log


def abandon(log: SessionLog) -> None:
    """What the end of its process does."""
    log._release()


def test_recover_closes_what_was_left_open_and_says_so(tmp_path: Path) -> None:
    dead, running, closed = (session(tmp_path, name) for name in ("dead", "running", "closed"))
    abandon(dead)
    closed.close("completed")
    result = CliRunner().invoke(app, ["recover", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"{dead.folder.path}: incomplete: the process that ran it ended before the session did\n"
    assert [log.folder.load().status for log in (dead, running, closed)] == ["failed", "open", "completed"]
    running.close("completed")
    again = CliRunner().invoke(app, ["recover", str(tmp_path)])
    assert again.stdout == f"no session under {tmp_path} was left open\n"


def test_recover_goes_on_past_a_session_that_it_can_not_close(tmp_path: Path) -> None:
    SessionFolder.create(tmp_path, "bad").record.write_text('{"status": "open"}')
    abandon(session(tmp_path, "dead"))
    result = CliRunner().invoke(app, ["recover", str(tmp_path), "--json"])
    assert result.exit_code == 1
    bad, dead = json.loads(result.stdout)
    assert "bad/session.json: session_id: Field required" in bad["trouble"]
    assert (bad["closed"], dead["closed"], dead["trouble"]) == (False, True, None)


def test_recover_removes_what_the_sandboxes_of_dead_sessions_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[str] = []
    monkeypatch.setitem(resume.SANDBOXES, "container", SimpleNamespace(sweep=swept.append))
    dead, running, closed = (session(tmp_path, name) for name in ("dead", "running", "closed"))
    for log in (dead, running, closed):
        log.folder.write(log.folder.load().model_copy(update={"sandbox": "container"}))
    abandon(dead)
    closed.close("completed")
    CliRunner().invoke(app, ["calls", str(tmp_path)])
    assert (CliRunner().invoke(app, ["recover", str(tmp_path)]).exit_code, swept) == (0, ["dead"])
    running.close("completed")


def test_seal_compresses_closed_sessions_and_back(tmp_path: Path) -> None:
    closed, dead, running = (session(tmp_path, name) for name in ("closed", "dead", "running"))
    text = closed.folder.calls.read_bytes()
    closed.close("completed")
    abandon(dead)
    result = CliRunner().invoke(app, ["seal", str(tmp_path)])
    assert result.exit_code == 0
    assert result.stderr == f"{running.folder.path} is being written by another process\n"
    assert result.stdout == "2 sessions: 0.04 MiB of calls before, 0.00 MiB now\n"
    names = [log.folder.calls.name for log in (closed, dead, running)]
    assert names == ["calls.jsonl.zst", "calls.jsonl.zst", "calls.jsonl"]
    assert len(list(read_calls(closed.folder.calls))) == 1
    running.close("completed")
    for _ in range(2):
        assert CliRunner().invoke(app, ["seal", str(tmp_path), "--plain"]).exit_code == 0
        assert closed.folder.calls.read_bytes() == text
        assert closed.folder.load().seal == closed.session.seal


def test_seal_refuses_a_changed_file_names_it_and_goes_on(tmp_path: Path) -> None:
    log, other = session(tmp_path, "ses_1"), session(tmp_path, "ses_2")
    log.close("completed")
    other.close("completed")
    log.folder.calls.chmod(0o600)
    log.folder.calls.write_bytes(b"")
    result = CliRunner().invoke(app, ["seal", str(tmp_path)])
    assert result.exit_code == 1
    assert f"{log.folder.calls}: it was changed after its session was closed: 0 bytes" in result.stderr
    assert log.folder.calls.read_bytes() == b""
    assert other.folder.calls.name == "calls.jsonl.zst"


@pytest.mark.parametrize("command", ["recover", "seal"])
def test_a_path_that_is_not_there_is_bad_usage(command: str, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, [command, str(tmp_path / "none")]).exit_code == 2


def test_seal_without_a_session_is_bad_usage(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["seal", str(tmp_path)]).exit_code == 2
