"""The tasks of a scenario: the one it describes, or those of a JSONL file, one a line.

A line is a JSON object of the data set's own. The scenario says which of its fields holds the instruction; the whole of
it is handed to the evaluator.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polar_mitm.tasks.errors import ScenarioError
from polar_mitm.tasks.fields import TaskSet
from polar_mitm.tasks.scenario import Scenario


@dataclass(slots=True, frozen=True)
class Task:
    """What is to be done. Samples of one task are compared with each other."""

    id: str
    """`<scenario>`, or `<scenario>/<id of the line>`."""
    instruction: str
    data: dict[str, Any] = field(default_factory=dict)
    """The line of the task set, or the metadata of a Harbor task; empty for a scenario of one task."""


def tasks_of(scenario: Scenario) -> list[Task]:
    """In the order of the file. Raises ScenarioError, which names the file, the line and the field, and OSError."""
    if scenario.tasks is None:
        return [Task(scenario.name, scenario.instruction_text)]
    assert scenario.tasks.file is not None
    path = scenario.path.parent / scenario.tasks.file
    seen: dict[str, int] = {}
    tasks: dict[str, Task] = {}
    for line, row in _rows(path):
        task = _task(scenario.name, scenario.tasks, path, line, row)
        if task.id in seen:
            what = f"expected an id of its own; line {seen[task.id]} has {task.id.partition('/')[2]!r} as well"
            raise ScenarioError(path, line, scenario.tasks.id, what)
        seen[task.id] = line
        if expected := scenario.evaluator.problem_with(row):
            raise ScenarioError(path, line, *expected)
        tasks[task.id.partition("/")[2]] = task
        if len(tasks) == scenario.tasks.limit and not scenario.tasks.only:
            break
    if not tasks:
        raise ScenarioError(path, None, "", "expected tasks, one JSON object a line; there are none")
    return scenario.tasks.chosen(path, tasks.items())


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for line, text in enumerate(file, 1):
                if not text.strip():
                    continue
                try:
                    row = json.loads(text)
                except (ValueError, RecursionError) as error:
                    raise ScenarioError(path, line, "", f"not JSON: {error}") from None
                if not isinstance(row, dict):
                    raise ScenarioError(path, line, "", "expected a JSON object")
                yield line, row
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(path, None, "", f"cannot be read: {error}") from error


def _task(scenario: str, fields: TaskSet, path: Path, line: int, row: dict[str, Any]) -> Task:
    instruction = row.get(fields.instruction)
    if not isinstance(instruction, str) or not instruction.strip():
        known = ", ".join(row) or "none"
        what = f"expected the instruction's text; the fields are {known} (say which with tasks.instruction)"
        raise ScenarioError(path, line, fields.instruction, what)
    name = row.get(fields.id, line)
    if not isinstance(name, str | int) or isinstance(name, bool) or not str(name).isprintable() or name == "":
        raise ScenarioError(path, line, fields.id, "expected an id: text of one line, or a whole number")
    return Task(f"{scenario}/{name}", instruction, row)
