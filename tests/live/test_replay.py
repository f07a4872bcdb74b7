"""Flows saved by real runs of real harnesses give the same calls.jsonl again, byte for byte, without an engine."""

from pathlib import Path

import orjson
import pytest

from tests.live.polar import SCENARIOS, only, run
from tests.live.test_write_file import need_parts

pytestmark = pytest.mark.live


@pytest.mark.parametrize("harness", ["pi", "claude-code", "codex"])
def test_the_flows_of_a_run_give_its_calls_again(harness: str, engine_url: str, tmp_path: Path) -> None:
    need_parts(harness, "bwrap")
    command = ["run-task", SCENARIOS / "five_turns.yaml", "--harness", harness, "--engine-url", engine_url]
    ended = run(*command, "--out", tmp_path / "live")
    assert ended.returncode == 0, ended.stderr
    live = only(tmp_path / "live")
    again = run("replay", live.folder.flows, "--out", tmp_path / "again", "--json")
    assert again.returncode == 0, again.stderr
    (session,) = orjson.loads(again.stdout)["sessions"]
    assert (session["calls"], session["differs_from_line"], session["missing"]) == (len(live.calls), None, [])
    rebuilt = only(tmp_path / "again")
    assert rebuilt.folder.calls.read_bytes() == live.folder.calls.read_bytes()
    assert rebuilt.session == live.session
