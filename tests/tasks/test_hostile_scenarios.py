"""Scenario files that were made to hurt: each is one clear error, and takes no time."""

import os
from pathlib import Path

import pytest

from polar_mitm.tasks.errors import ScenarioError
from polar_mitm.tasks.place import Place
from polar_mitm.tasks.reading import load
from polar_mitm.tasks.scenario import Scenario
from polar_mitm.tasks.workspace import Workspace

BOMB = "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9) if n else 'lol'}]\n" for n in range(9))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x: " + "[" * 5000, "nested too deeply"),
        ("samples: !!int 'abc'", "not YAML"),
        (BOMB, "more than 100000 values"),
        ('instruction: "a\\0b"', "zero byte"),
        ('files: {a: "\\ud83d"}', "half a surrogate pair"),
    ],
)
def test_a_hostile_file_is_one_clear_error(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "hostile.yaml"
    file.write_text(text)
    with pytest.raises(ScenarioError, match=says):
        load(file)


def test_a_fifo_is_no_scenario_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ScenarioError, match="cannot be read"):
        load(tmp_path / "pipe")


async def test_a_workspace_that_holds_the_runs_is_copied_without_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    scenario = Scenario.model_validate(
        {
            "path": tmp_path / "s.yaml",
            "name": "s",
            "instruction": "x",
            "workspace": ".",
            "evaluator": {"type": "session_completed"},
        }
    )
    session = tmp_path / "runs" / "ses_1"
    session.mkdir(parents=True)
    workspace = await Workspace.prepare(session, scenario, Place())
    assert sorted(path.name for path in workspace.path.iterdir()) == ["a.txt"]
