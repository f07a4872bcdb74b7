"""The published schema of scenario files, and the table of their fields in the docs."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError  # type: ignore[import-untyped]  # it ships no types
from ruamel.yaml import YAML

from polar_mitm.tasks.fields import TaskSet
from polar_mitm.tasks.scenario import NOT_IN_FILE, Scenario
from polar_mitm.tasks.schema import files, scenario_schema

ROOT = Path(__file__).parents[2]
SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))
SCHEMA = Draft202012Validator(scenario_schema())


def document(text: str) -> Any:
    return YAML(typ="safe").load(text)


def test_the_published_schema_is_the_one_the_code_has() -> None:
    for name, text in files().items():
        assert (ROOT / "docs/schemas" / name).read_bytes() == text, "run: make schemas"


def test_the_command_writes_the_file(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "polar_mitm.tasks.schema", str(tmp_path / "new")], check=True, timeout=60)
    assert {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()} == files()


def test_the_schema_is_valid_2020_12_and_says_what_fields_mean() -> None:
    Draft202012Validator.check_schema(scenario_schema())
    assert scenario_schema()["properties"]["timeout_s"]["description"] == "Seconds that the harness may run."


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_that_comes_with_polar_validates(path: Path) -> None:
    SCHEMA.validate(document(path.read_text()))


@pytest.mark.parametrize(
    "text",
    [
        "instruction: x",
        "{instruction: x, evaluator: {type: none}}",
        "{instruction: x, evaluator: {type: command}}",
        "{instruction: x, evaluator: {type: session_completed}, harnes: pi}",
        "{instruction: x, evaluator: {type: session_completed}, harness: none}",
        "{instruction: x, evaluator: {type: session_completed}, samples: 0}",
        "{instruction: x, evaluator: {type: session_completed}, path: x.yaml}",
        "{instruction: x, evaluator: {type: session_completed}, script: [{write: {path: a}}]}",
    ],
)
def test_a_mistake_does_not(text: str) -> None:
    with pytest.raises(ValidationError):
        SCHEMA.validate(document(text))


def test_the_table_of_the_docs_names_every_field() -> None:
    page = (ROOT / "docs/scenarios.md").read_text()
    table = page.partition("| field | default | meaning |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.partition(" | ")[0])}
    assert named == set(Scenario.model_fields) - NOT_IN_FILE


def test_the_docs_name_every_field_of_a_task_set() -> None:
    section = (ROOT / "docs/scenarios.md").read_text().partition("## Task sets")[2].partition("\n## ")[0]
    assert all(re.search(rf"\b{name}\b", section) for name in TaskSet.model_fields)
