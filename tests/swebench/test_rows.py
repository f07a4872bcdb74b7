"""Files of rows: what is read, what is refused, and what tasks they are."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow.parquet import write_table

from polar_mitm.rollout.gateway.opening import _one_of as one_of
from polar_mitm.tasks.errors import ScenarioError
from polar_mitm.tasks.reading import load
from polar_mitm.tasks.swebench import rows
from polar_mitm.tasks.work import notes_of, work_of
from tests.swebench.samples import FIXED, row


def write(path: Path, *written: Any) -> Path:
    match path.suffix:
        case ".jsonl":
            path.write_text("".join(json.dumps(one) + "\n" for one in written))
        case ".json":
            path.write_text(json.dumps(written))
        case ".parquet":
            write_table(pyarrow.Table.from_pylist(list(written)), path)
    return path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet"])
def test_a_file_of_rows_is_read_in_each_form(tmp_path: Path, name: str) -> None:
    tests = f'["{FIXED}"]' if name.endswith("parquet") else [FIXED]  # a column of Parquet has one type
    path = write(tmp_path / name, row(), row(instance_id="filler__sum-2", FAIL_TO_PASS=tests))
    found = [one for _, one in rows.read(path)]
    assert [one.instance_id for one in found] == ["filler__sum-1", "filler__sum-2"]
    assert {tuple(one.FAIL_TO_PASS) for one in found} == {(FIXED,)}


def test_it_is_a_set_of_tasks_each_in_its_own_image(tmp_path: Path) -> None:
    path = write(tmp_path / "my rows.jsonl", row(), row(instance_id="filler__sum-2", image="other:1"))
    work = work_of(load(path, {"harness": "pi", "samples": 2}))
    assert [task.id for _, (task,) in work] == ["my-rows/filler__sum-1", "my-rows/filler__sum-2"]
    assert [task.instruction for _, (task,) in work] == ["The sum of two numbers is their difference.\n"] * 2
    assert [scenario.swebench and scenario.swebench.row.image for scenario, _ in work] == [row()["image"], "other:1"]
    assert {(scenario.sandbox, scenario.evaluator.type, scenario.samples) for scenario, _ in work} == {
        ("container", "swebench", 2)
    }
    (note,) = notes_of(work)
    assert note.endswith("its tests get no network; --tests-network public gives it to them")


def test_some_of_them_can_be_chosen(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", *(row(instance_id=f"a-{number}") for number in range(4)))
    changes = {"tasks": {"only": ["a-1", "a-3"], "tests_network": "public"}}
    work = work_of(load(path, changes))
    assert [task.id for _, (task,) in work] == ["rows/a-1", "rows/a-3"]
    assert list(notes_of(work)) == []
    with pytest.raises(ScenarioError, match=r"rows\.jsonl: tasks\.only: there is no task 'a-9' in it"):
        work_of(load(path, {"tasks": {"only": ["a-1", "a-9"]}}))


REFUSED: dict[str, tuple[object, str]] = {
    "older": (
        {k: v for k, v in row().items() if k not in ("image", "eval_script", "log_parser", "eval_type")},
        ":1: it has no eval_script, eval_type, image, log_parser: the data sets have had them since swebench 5",
    ),
    "no row": ({"question": "x"}, ":1: expected a row of SWE-bench; for tasks of another kind write a scenario"),
    "no mapping": ([], ":1: expected an object; got a list"),
    "lacks a column": ({k: v for k, v in row().items() if k != "repo"}, ":1: repo: expected, but it is not there"),
    "no tests": (row(FAIL_TO_PASS="[]"), ":1: FAIL_TO_PASS: Value should have at least 1 item"),
    "no list": (row(FAIL_TO_PASS="x"), ":1: FAIL_TO_PASS: Input should be a valid list; got 'x'"),
    "says nothing": (row(problem_statement=" \n"), ":1: problem_statement: "),
    "a path for an id": (row(instance_id="../x"), ":1: instance_id: "),
    "a kind nobody knows": (row(eval_type="other"), ":1: eval_type: Input should be 'pass_and_fail' or 'fail_only'"),
    "pictures": (
        row(image_assets='{"test_patch": [{"path": "a.png", "url": "x"}]}'),
        ":1: image_assets: filler__sum-1: its tests compare pictures",
    ),
    "no marks": (row(eval_script="pytest"), ":1: eval_script: filler__sum-1: it does not print '>>>>> Start"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_row_that_cannot_be_graded_is_refused_when_it_is_read(tmp_path: Path, name: str) -> None:
    wrong, why = REFUSED[name]
    path = write(tmp_path / "rows.jsonl", wrong)
    with pytest.raises(ScenarioError) as caught:
        work_of(load(path))
    assert str(caught.value).startswith(f"{path}{why}")


def test_a_file_that_is_none_says_what_it_is(tmp_path: Path) -> None:
    for name, content, why in (
        ("a.jsonl", b"{", ":1: not JSON"),
        ("b.jsonl", b"[" * 100_000, ":1: not JSON"),
        ("c.jsonl", b"\n\n", ": expected rows; there are none"),
        ("d.jsonl", b"\xff", ": cannot be read"),
        ("e.parquet", b"PAR1", ": cannot be read"),
        ("f.jsonl", None, ": cannot be read"),
        ("g.json", b"[7]", ": row 1: expected an object; got 7"),
    ):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ScenarioError) as caught:
            work_of(load(path))
        assert str(caught.value).startswith(f"{path}{why}")


def test_two_rows_of_one_id_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", row(), row())
    with pytest.raises(ScenarioError, match=":2: instance_id: expected an id of its own; got filler__sum-1 twice"):
        work_of(load(path))


def test_a_scenario_written_as_json_is_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"instruction": "x", "evaluator": {"type": "session_completed"}}')
    assert load(path).instruction == "x"


SCENARIOS = {
    "tasks: {swebench: r.jsonl}\nsandbox: bwrap\n": ":2: sandbox: a SWE-bench row is worked on in its own image",
    "tasks: {swebench: r.jsonl}\nfiles: {a: b}\n": ":2: files: a SWE-bench row brings its own: leave files out",
    "tasks: {swebench: r.jsonl}\nevaluator: {type: harbor}\n": ":2: evaluator: Harbor tasks (tasks.harbor) and the",
    "instruction: x\nevaluator: {type: swebench}\n": ":2: evaluator: SWE-bench rows (tasks.swebench) and the",
    "tasks: {swebench: r.jsonl, host_env: [A]}\n": ":1: tasks: host_env is for Harbor tasks",
    "instruction: x\nevaluator: {type: session_completed}\nswebench: x\n": ":3: swebench: unknown field",
    "tasks: {swebench: r.jsonl}\nharness: oracle\n": "the oracle needs the row's solution",
}


@pytest.mark.parametrize("text", SCENARIOS)
def test_a_scenario_that_does_not_fit_rows_says_so(tmp_path: Path, text: str) -> None:
    write(tmp_path / "r.jsonl", row())
    file = tmp_path / "s.yaml"
    file.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        work_of(load(file))
    assert SCENARIOS[text] in str(caught.value)


def test_saved_logs_are_graded_in_any_sandbox(tmp_path: Path) -> None:
    write(tmp_path / "r.jsonl", row())
    file = tmp_path / "s.yaml"
    file.write_text("tasks: {swebench: r.jsonl}\nevaluator: {type: swebench, log: 'x/{instance_id}'}\n")
    for sandbox in ("bwrap", "host"):
        ((scenario, _),) = work_of(load(file, {"sandbox": sandbox}))
        assert scenario.sandbox == sandbox
    assert load(file).sandbox == "bwrap"
    assert list(notes_of(work_of(load(file)))) == []
    with pytest.raises(ScenarioError, match=r"the oracle works in the row's image: leave evaluator\.log out"):
        load(file, {"harness": "oracle"})


def test_a_task_request_takes_one_row_of_a_file(tmp_path: Path) -> None:
    write(tmp_path / "r.jsonl", row(), row(instance_id="filler__sum-2"))
    file = tmp_path / "s.yaml"
    file.write_text("tasks: {swebench: r.jsonl, only: [filler__sum-2]}\n")
    scenario, task = one_of(load(file))
    assert scenario.swebench is not None and scenario.swebench.row.instance_id == "filler__sum-2"
    assert task.id == "s/filler__sum-2"
    with pytest.raises(ScenarioError, match="a task request is one; name it, by --only or `changes"):
        one_of(load(file, {"tasks": {"only": []}}))
