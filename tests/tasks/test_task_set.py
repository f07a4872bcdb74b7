"""Task sets: a JSONL file of a scenario's tasks."""

from pathlib import Path

import pytest

from polar_mitm.tasks.errors import ScenarioError
from polar_mitm.tasks.reading import load
from polar_mitm.tasks.task_set import Task, tasks_of

SCENARIO = "tasks: {{file: set.jsonl{more}}}\nevaluator: {{type: session_completed}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def tasks(folder: Path, rows: str, more: str = "") -> list[Task]:
    (folder / "math.yaml").write_text(SCENARIO.format(more=more))
    (folder / "set.jsonl").write_text(rows)
    return tasks_of(load(folder / "math.yaml"))


def test_each_line_is_a_task(folder: Path) -> None:
    rows = '{"id": "a/b", "instruction": "One."}\n\n{"instruction": "Two.", "answer": 2}\n'
    assert tasks(folder, rows) == [
        Task("math/a/b", "One.", {"id": "a/b", "instruction": "One."}),
        Task("math/3", "Two.", {"instruction": "Two.", "answer": 2}),
    ]


def test_the_data_sets_own_fields_and_a_limit(folder: Path) -> None:
    rows = "".join(f'{{"question": "{n}?", "key": {n}}}\n' for n in range(5))
    found = tasks(folder, rows, ", instruction: question, id: key, limit: 2")
    assert [(task.id, task.instruction) for task in found] == [("math/0", "0?"), ("math/1", "1?")]


def test_a_scenario_of_one_task_is_a_set_of_one(folder: Path) -> None:
    (folder / "one.yaml").write_text("instruction: Hi.\nevaluator: {type: session_completed}\n")
    assert tasks_of(load(folder / "one.yaml")) == [Task("one", "Hi.")]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("{\n", ":1: not JSON"),
        ("[1]\n", ":1: expected a JSON object"),
        ('{"prompt": "x"}\n', ":1: instruction: expected the instruction's text; the fields are prompt"),
        ('{"instruction": " "}\n', ":1: instruction: expected"),
        ('{"instruction": "x", "id": 1}\n{"instruction": "y", "id": 1}\n', ":2: id: expected an id of its own; line 1"),
        ('{"instruction": "x", "id": [1]}\n', ":1: id: expected an id"),
        ('{"instruction": "x", "id": "a\\nb"}\n', ":1: id: expected an id"),
        ("", ": expected tasks, one JSON object a line; there are none"),
    ],
)
def test_a_bad_line_is_told_with_its_place(folder: Path, rows: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        tasks(folder, rows)
    assert f"{folder / 'set.jsonl'}{said}" in str(caught.value)


def test_a_set_that_is_not_there(folder: Path) -> None:
    (folder / "math.yaml").write_text(SCENARIO.format(more=""))
    with pytest.raises(ScenarioError, match=r"set\.jsonl: cannot be read"):
        tasks_of(load(folder / "math.yaml"))


ANSWERED = "tasks: {{file: set.jsonl{more}}}\nevaluator: {{type: answer, expected_field: {field}, match: {match}}}\n"


@pytest.mark.parametrize(
    ("field", "match", "said"),
    [
        (
            "anwser",
            "exact",
            ":1: anwser: expected the answer (evaluator.expected_field); the fields are instruction, answer",
        ),
        ("answer", "number", ":2: answer: expected a number; got 'no'"),
        ("answer", "regex", ":3: answer: expected a regular expression"),
    ],
)
def test_an_answer_that_cannot_be_graded_by_is_found_when_the_set_is_read(
    folder: Path, field: str, match: str, said: str
) -> None:
    (folder / "math.yaml").write_text(ANSWERED.format(more="", field=field, match=match))
    rows = ("42", "no", "(")
    (folder / "set.jsonl").write_text("".join(f'{{"instruction": "x", "answer": "{row}"}}\n' for row in rows))
    with pytest.raises(ScenarioError) as caught:
        tasks_of(load(folder / "math.yaml"))
    assert f"{folder / 'set.jsonl'}{said}" in str(caught.value)


def test_lines_past_the_limit_are_not_asked(folder: Path) -> None:
    (folder / "math.yaml").write_text(ANSWERED.format(more=", limit: 1", field="answer", match="number"))
    (folder / "set.jsonl").write_text('{"instruction": "x", "answer": 4}\n{"instruction": "y"}\n')
    assert len(tasks_of(load(folder / "math.yaml"))) == 1


def test_single_tasks_can_be_chosen(folder: Path) -> None:
    rows = "".join(f'{{"instruction": "{n}?", "id": {n}}}\n' for n in range(5))
    assert [task.id for task in tasks(folder, rows, ", only: ['3', '1']")] == ["math/1", "math/3"]
    with pytest.raises(ScenarioError, match=r"set\.jsonl: tasks\.only: there is no task '7' in it"):
        tasks(folder, rows, ", only: ['7']")
