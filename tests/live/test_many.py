"""A run over several samples that is killed again and again comes to each sample exactly once."""

import random
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from polar_mitm.capture.session import SessionFolder
from tests.live.polar import LIMIT_S, POLAR, left, rows, run, survivors
from tests.live.test_write_file import need_parts

pytestmark = pytest.mark.live

SCENARIO = """\
name: steps
instruction: Do the steps.
harness: pi
model: tiny
sandbox: host
script:
  - shell: "sleep 1; echo done > out.txt"
evaluator:
  type: command
  run: test -e out.txt
"""
SAMPLES = 6
KILLS = 4


def test_killed_and_resumed_each_sample_is_done_once_and_nothing_is_left(engine_url: str, tmp_path: Path) -> None:
    need_parts("pi", "host")
    scenario = tmp_path / "steps.yaml"
    scenario.write_text(SCENARIO)
    out = tmp_path / "out"
    arguments = ("run-task", scenario, "--engine-url", engine_url, "--out", out, "--resume")
    arguments += ("--samples", str(SAMPLES), "--concurrency", "2", "--json")
    chance = random.Random(1)
    for _ in range(KILLS):
        begun = len(list(out.glob("ses_*")))
        with subprocess.Popen([POLAR, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            deadline = time.monotonic() + LIMIT_S
            while len(list(out.glob("ses_*"))) == begun and running.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(chance.uniform(0, 3))
            running.kill()
    statuses = [SessionFolder(path.parent).load().status for path in out.glob("*/session.json")]
    assert "open" in statuses, "no kill met a running sample"
    ended = run(*arguments)
    assert ended.returncode == 0, ended.stderr
    assert [row["sample"] for row in rows(ended.stdout)] == list(range(SAMPLES))
    sessions = [there.session for there in left(out)]
    assert Counter(session.sample for session in sessions if session.status == "completed") == dict.fromkeys(
        range(SAMPLES), 1
    )
    for session in sessions:
        assert session.status == "completed" or session.incomplete
        assert survivors(session.session_id) == []
        assert list(Path("/tmp").glob(f"polar-{session.session_id}*")) == []
    again = run(*arguments)
    assert again.returncode == 0, again.stderr
    assert [row["session_id"] for row in rows(again.stdout)] == [row["session_id"] for row in rows(ended.stdout)]
