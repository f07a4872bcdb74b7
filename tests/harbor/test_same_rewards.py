"""The task folders of this project, and some that end badly: polar's oracle gets the rewards that harbor's does."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from polar_mitm.capture.session import SessionFolder, SessionRecord
from tests.harbor.running import LIMIT_S, TASKS, Trial, harbor_run, need_harbor, need_images

pytestmark = pytest.mark.live

REWARDS: dict[str, tuple[float, str, dict[str, float]]] = {
    "inputs": (14.0, "reward", {"reward": 14.0}),
    "mean-of-rewards": (2 / 3, "mean", {"a": 1.0, "b": 0.0, "c": 1.0}),
    "named-rewards": (1.0, "reward", {"reward": 1.0, "lines": 3.0, "whole": 1.0, "penalty": -0.25}),
    "no-workdir": (4.0, "reward", {"reward": 4.0}),
    "older-fields": (1.0, "reward", {"reward": 1.0}),
    "out-of-time": (0.5, "reward", {"reward": 0.5}),
    "plain": (1.0, "reward", {"reward": 1.0}),
    "prebuilt-image": (1.0, "reward", {"reward": 1.0}),
    "separate-copy": (4.0, "reward", {"reward": 4.0}),
    "separate-image": (14.0, "only", {"score": 14.0}),
    "service": (1.0, "reward", {"reward": 1.0}),
    "users-and-variables": (1.0, "mean", {"facts": 1.0, "answer": 1.0, "own": 1.0}),
}
"""Of each folder in `tasks`: the reward, which it is, and all."""

ENDINGS: dict[str, tuple[str, str | None]] = {
    "leaves-nothing": ("#!/bin/bash\necho 1 > /logs/verifier/Reward.txt\n", "the tests left neither"),
    "kills-itself": ("#!/bin/bash\necho 1 > /logs/verifier/reward.txt\nkill -KILL $$\n", None),
    "kills-all": ("#!/bin/bash\necho 1 > /logs/verifier/reward.txt\nkill -KILL -1\n", None),
    "hangs": ("#!/bin/bash\necho 1 > /logs/verifier/reward.txt\nsleep 300 & wait\n", "the tests took more than 8 s"),
    "ends-lines-as-windows-does": ("#!/bin/bash\r\necho 1 > /logs/verifier/reward.txt\r\n", "the tests left neither"),
    "has-a-folder-for-a-reward": ("#!/bin/bash\nmkdir /logs/verifier/reward.json\n", "reward.json is no regular file"),
    "links-to-its-reward": ("#!/bin/bash\ncd /logs/verifier; echo 0.5 > x; ln -s x reward.txt\n", None),
    "says-it-is-infinite": ("#!/bin/bash\necho inf > /logs/verifier/reward.txt\n", "which is not finite"),
}
"""Test scripts of a task that is solved, and why there is no reward; None where there is one."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("harbor") / "tasks"
    shutil.copytree(TASKS, folder, symlinks=True)
    for name, (script, _) in ENDINGS.items():
        shutil.copytree(TASKS / "plain", folder / name)
        (folder / name / "tests" / "test.sh").write_text(script)
        with (folder / name / "task.toml").open("a") as config:
            config.write("[verifier]\ntimeout_sec = 8\n")
    return folder


@pytest.fixture(scope="module")
def polars(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, SessionFolder]:
    """What `polar run-task FOLDER --harness oracle` left, by the task's name."""
    need_images()
    out = tmp_path_factory.mktemp("polar")
    polar = [sys.executable, "-c", "from polar_mitm.cli import app; app()"]
    command = [*polar, "run-task", str(folder), "--harness", "oracle", "--out", str(out), "--concurrency", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    found = [SessionFolder(path.parent) for path in out.glob("*/session.json")]
    assert len(found) == len(REWARDS) + len(ENDINGS), done.stdout + done.stderr
    return {(there.load().task_id or "").removeprefix("tasks/"): there for there in found}


@pytest.fixture(scope="module")
def harbors(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trial]:
    need_images()
    need_harbor()
    return harbor_run(folder, tmp_path_factory.mktemp("jobs"))


def graded(session: SessionRecord) -> tuple[float | None, str | None, dict[str, float]]:
    return session.reward, session.reward_from, session.rewards


def test_every_folder_has_a_reward_here() -> None:
    assert set(REWARDS) == {path.name for path in TASKS.iterdir()}
    assert len(REWARDS) == 12


def test_the_oracle_gets_the_rewards_of_each_folder(polars: dict[str, SessionFolder]) -> None:
    assert {name: graded(polars[name].load()) for name in REWARDS} == REWARDS
    assert {polars[name].load().evaluation_error for name in REWARDS} == {None}


@pytest.mark.parametrize("name", ENDINGS)
def test_tests_that_end_badly_have_a_reward_or_say_why_not(polars: dict[str, SessionFolder], name: str) -> None:
    session = polars[name].load()
    why = ENDINGS[name][1]
    if why is None:
        assert (session.evaluation_error, session.reward) == (None, 0.5 if name == "links-to-its-reward" else 1.0)
    else:
        assert (session.reward, session.rewards, session.reward_from) == (None, {}, None)
        assert why in (session.evaluation_error or "")
    assert session.status == "completed"


def test_harbor_gives_the_same(polars: dict[str, SessionFolder], harbors: dict[str, Trial]) -> None:
    assert set(harbors) == set(polars)
    for name, trial in harbors.items():
        session = polars[name].load()
        assert session.rewards == (trial.rewards or {}), (name, trial.error, session.evaluation_error)


def test_an_agent_that_used_all_its_time_is_looked_at_and_graded(polars: dict[str, SessionFolder]) -> None:
    there = polars["out-of-time"]
    session = there.load()
    assert (session.status, session.reward, session.evaluation_error) == ("timeout", 0.5, None)
    assert "+half" in there.workspace_diff.read_text()


def test_what_the_task_wants_kept_is_in_the_session(polars: dict[str, SessionFolder]) -> None:
    kept = polars["separate-image"].path / "artifacts"
    files = sorted(str(path.relative_to(kept)) for path in kept.rglob("*") if not path.is_dir())
    assert files == ["app/big/kept/c", "app/out/collected", "app/out/link", "app/out/result.txt", "kept/report.txt"]
    assert (polars["separate-image"].path / "logs" / "artifacts" / "note.txt").read_text() == "note\n"


def test_what_the_tests_print_and_what_changed_is_in_the_session(polars: dict[str, SessionFolder]) -> None:
    assert '"b": 0' in (polars["mean-of-rewards"].path / "evaluator.txt").read_text()
    diff = polars["named-rewards"].workspace_diff.read_text()
    assert "-pear\n-fig\n apple\n+fig\n+pear\n" in diff
    assert polars["no-workdir"].workspace_diff.read_text() == ""
