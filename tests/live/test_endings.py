"""How runs end that do not end well, and what is left of them: real harnesses, and a real engine where it matters."""

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from polar_mitm.capture.session import SessionFolder
from polar_mitm.trajectory.builders import build
from tests.fakes.vllm import FakeVllm, Reply
from tests.live.polar import LIMIT_S, POLAR, SCENARIOS, left, only, rows, run, survivors
from tests.live.test_write_file import need_parts

pytestmark = pytest.mark.live

SLEEPER = """\
name: sleeper
instruction: Wait.
harness: pi
model: tiny
timeout_s: {timeout_s}
sandbox: {sandbox}
script:
  - shell: "echo started > started.txt; setsid sleep 301 & sleep 300"
evaluator:
  type: command
  run: test -e started.txt
"""


@pytest.mark.parametrize("sandbox", ["host", "bwrap"])
def test_a_timeout_ends_the_harness_and_its_children_and_keeps_the_calls(
    sandbox: str, engine_url: str, tmp_path: Path
) -> None:
    need_parts("pi", sandbox)
    scenario = tmp_path / "sleeper.yaml"
    scenario.write_text(SLEEPER.format(timeout_s=12, sandbox=sandbox))
    ended = run("run-task", scenario, "--engine-url", engine_url, "--out", tmp_path / "out", "--json")
    assert ended.returncode == 1, ended.stderr
    there = only(tmp_path / "out")
    assert there.session.status == "timeout"
    assert there.session.reward == 1.0
    assert [call.checks.valid for call in there.calls] == [True]
    assert survivors(there.session.session_id) == []
    trajectory = build(there.folder.path)
    assert (trajectory.status, trajectory.reward, len(trajectory.traces)) == ("timeout", 1.0, 1)


@pytest.mark.parametrize(
    ("sandbox", "numbers"),
    [("bwrap", [signal.SIGINT]), ("bwrap", [signal.SIGTERM]), ("host", [signal.SIGINT, signal.SIGINT])],
)
def test_an_interrupted_run_leaves_nothing_running_and_the_session_cancelled(
    sandbox: str, numbers: list[signal.Signals], engine_url: str, tmp_path: Path
) -> None:
    need_parts("pi", sandbox)
    scenario = tmp_path / "sleeper.yaml"
    scenario.write_text(SLEEPER.format(timeout_s=200, sandbox=sandbox))
    out = tmp_path / "out"
    command = [POLAR, "run-task", scenario, "--engine-url", engine_url, "--out", out]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        until_started(out)
        for number in numbers:
            running.send_signal(number)
            time.sleep(0.1)
        printed, _ = running.communicate(timeout=60)
    # The second Ctrl-C may come when all is ended, and end the interpreter itself.
    assert running.returncode in (128 + signal.SIGINT, -signal.SIGINT)[: len(numbers)], printed
    there = only(out)
    assert there.session.status == "cancelled"
    assert len(there.calls) == 1
    assert survivors(there.session.session_id) == []


def test_a_killed_run_leaves_its_calls_readable_and_no_process_in_the_sandbox(engine_url: str, tmp_path: Path) -> None:
    need_parts("pi", "bwrap")
    scenario = tmp_path / "sleeper.yaml"
    scenario.write_text(SLEEPER.format(timeout_s=200, sandbox="bwrap"))
    out = tmp_path / "out"
    command = [POLAR, "run-task", scenario, "--engine-url", engine_url, "--out", out]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        until_started(out)
        running.kill()
    there = only(out)
    assert there.session.status == "open"
    assert [call.checks.valid for call in there.calls] == [True]
    deadline = time.monotonic() + 10
    while (still := survivors(there.session.session_id)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert still == []
    looked = run("calls", out)
    assert looked.returncode == 0
    assert "incomplete: the process that ran it ended before the session did" in looked.stderr
    closed = only(out)
    assert closed.session.incomplete
    assert closed.session.seal
    assert closed.calls == there.calls


async def test_an_engine_that_dies_in_the_middle_is_named_on_the_record(tmp_path: Path) -> None:
    need_parts("pi", "bwrap")
    async with FakeVllm(Reply(status=500, error="EngineCore encountered an issue")) as engine:
        ended = await in_thread(
            *("run-task", SCENARIOS / "hello.yaml", "--samples", "1"),
            *("--engine-url", engine.url, "--out", tmp_path, "--json"),
        )
    assert ended.returncode == 1, ended.stderr
    (row,) = rows(ended.stdout)
    assert row["status"] == "failed"
    calls = only(tmp_path).calls
    assert calls
    assert all(call.error and call.error.fault == "engine" for call in calls)


def test_an_engine_that_is_down_is_named_before_anything_starts(tmp_path: Path) -> None:
    ended = run("run-task", SCENARIOS / "hello.yaml", "--engine-url", "http://127.0.0.1:9", "--out", tmp_path)
    assert ended.returncode == 3
    assert "http://127.0.0.1:9" in ended.stderr
    assert left(tmp_path) == []


async def test_an_engine_without_token_ids_is_refused_before_anything_starts(tmp_path: Path) -> None:
    async with FakeVllm(probe=Reply(token_ids=False)) as engine:
        ended = await in_thread("run-task", SCENARIOS / "hello.yaml", "--engine-url", engine.url, "--out", tmp_path)
    assert ended.returncode == 3
    assert "token" in ended.stderr
    assert left(tmp_path) == []


async def test_a_harness_that_is_not_installed_is_an_exit_3_with_the_command_that_installs_it(tmp_path: Path) -> None:
    env = {**os.environ, "POLAR_HOME": str(tmp_path / "home")}
    async with FakeVllm() as engine:
        ended = await in_thread(
            "run-task", SCENARIOS / "hello.yaml", "--engine-url", engine.url, "--out", tmp_path / "out", env=env
        )
    assert ended.returncode == 3
    assert "polar harness install pi" in ended.stderr


def test_a_bad_scenario_is_an_exit_2_with_file_line_field_and_what_was_expected(tmp_path: Path) -> None:
    scenario = tmp_path / "bad.yaml"
    scenario.write_text("name: bad\ninstruction: x\nevaluator:\n  type: judge\n")
    ended = run("run-task", scenario)
    assert ended.returncode == 2
    assert f"{scenario}:4: evaluator.type: expected one of command, session_completed," in ended.stderr


async def test_the_demo_prints_a_row_a_sample_and_where_to_look(engine_url: str, tmp_path: Path) -> None:
    """On `tiny`, which cannot answer: a reward of 0.0 is an honest result, and no failure."""
    need_parts("pi", "bwrap")
    ended = run("demo", "--samples", "2", "--engine-url", engine_url, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    sessions = left(tmp_path / "runs")
    assert [there.session.status for there in sessions] == ["completed", "completed"]
    folder = sessions[0].folder.path.relative_to(tmp_path)
    assert f" {folder}/calls.jsonl\n" in ended.stdout
    assert f"polar web --read {folder}/flows.mitm\n" in ended.stdout


async def in_thread(*arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(run, *arguments, env=env)


def until_started(out: Path) -> None:
    """Until the harness's own tool runs in its workspace."""
    deadline = time.monotonic() + LIMIT_S
    while not list(out.glob("*/workspace/started.txt")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert SessionFolder(next(out.glob("ses_*"))).calls.exists()


async def test_an_output_folder_that_cannot_be_made_is_an_exit_3_that_names_it(tmp_path: Path) -> None:
    need_parts("pi", "bwrap")
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "out"
    async with FakeVllm() as engine:
        ended = await in_thread("run-task", SCENARIOS / "hello.yaml", "--engine-url", engine.url, "--out", out)
    assert ended.returncode == 3, ended.stderr
    assert f"no session folder can be made in {out}" in ended.stderr
