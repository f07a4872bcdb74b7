"""Harnesses that are told nothing of polar: their names, or all names and addresses, lead to it."""

from pathlib import Path

import pytest

from tests.live.polar import SCENARIOS, only, rows, run
from tests.live.test_write_file import need_parts

pytestmark = pytest.mark.live


@pytest.mark.parametrize(
    ("harness", "sandbox", "intercept"),
    [
        ("pi", "bwrap", "hosts"),
        ("codex", "bwrap", "transparent"),
        ("claude-code", "bwrap", "transparent"),
        ("codex", "container", "hosts"),
        ("pi", "container", "transparent"),
    ],
)
def test_a_harness_makes_the_file_and_its_calls_are_its_sessions(
    harness: str, sandbox: str, intercept: str, engine_url: str, tmp_path: Path
) -> None:
    need_parts(harness, sandbox)
    ended = run(
        *("run-task", SCENARIOS / "write_file.yaml", "--engine-url", engine_url, "--out", tmp_path, "--json"),
        *("--harness", harness, "--sandbox", sandbox, "--intercept", intercept),
    )
    assert ended.returncode == 0, ended.stderr
    (row,) = rows(ended.stdout)
    assert (row["status"], row["reward"]) == ("completed", 1.0)
    there = only(tmp_path)
    assert (there.folder.path / "workspace" / "out.txt").read_text() == "hello\n"
    assert len(there.calls) >= 2
    assert all(call.checks.valid for call in there.calls)


def test_a_sandbox_that_cannot_do_it_is_an_exit_3_with_one_that_can(engine_url: str, tmp_path: Path) -> None:
    ended = run(
        *("run-task", SCENARIOS / "write_file.yaml", "--engine-url", engine_url, "--out", tmp_path),
        *("--sandbox", "host", "--intercept", "transparent"),
    )
    assert ended.returncode == 3
    assert "use --sandbox bwrap or container, or --intercept proxy" in ended.stderr
