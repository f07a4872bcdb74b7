import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polar_mitm.capture.log import CallLog
from polar_mitm.capture.reader import read_calls
from polar_mitm.capture.session import SessionFolder
from tests.capture.appender import FILE_LIMIT


def appender(mode: str, path: Path) -> list[str]:
    return [sys.executable, "-m", "tests.capture.appender", mode, str(path)]


def outcome(mode: str, path: Path) -> Any:
    return json.loads(subprocess.run(appender(mode, path), check=True, capture_output=True, timeout=60).stdout)


def test_every_call_that_was_written_survives_kill_9_at_any_moment(tmp_path: Path) -> None:
    path, rng, count = tmp_path / "calls.jsonl", random.Random(), 0
    for _ in range(4):
        with subprocess.Popen(appender("endless", path), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            reported = [process.stdout.readline() for _ in range(rng.randrange(1, 12))]
            process.kill()
            reported += process.stdout.readlines()
        with CallLog(path) as log:
            assert log.calls >= count + len(reported)
            count = log.calls
        calls = list(read_calls(path))
        assert [call.identity.call_id for call in calls] == [f"call_{number}" for number in range(count)]
        assert [call.prompt_ids for call in calls] == [[1, 2, number] for number in range(count)]


def test_a_full_disk_refuses_a_call_and_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    outcomes = outcome("limited", path)
    assert outcomes[:4] == ["written"] * 4
    assert all(text.startswith(f"{path}: ") and text != "damaged" for text in outcomes[4:6])
    assert outcomes[6:] == ["written"] * 2
    assert [call.identity.call_id for call in read_calls(path)] == [f"call_{n}" for n in (0, 1, 2, 3, 6, 7)]
    assert path.stat().st_size > FILE_LIMIT


def test_a_full_disk_poisons_the_session_and_later_calls_are_still_taken(tmp_path: Path) -> None:
    outcomes, on_disk = outcome("poisoned", tmp_path)
    assert outcomes == [True] * 4 + [False] * 2 + [True] * 2
    assert on_disk.startswith("call call_4 was not recorded: ")
    record = SessionFolder(tmp_path).load()
    assert (record.status, record.poisoned, record.calls) == ("completed", on_disk, 6)


@pytest.mark.parametrize("compress_from", [0, 2**20])
@pytest.mark.parametrize(("work", "points"), [("close", 40), ("late", 100), ("recover", 100)])
def test_kill_9_anywhere_in_closing_loses_no_call(work: str, points: int, compress_from: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.capture.killer", work, str(compress_from), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > points
