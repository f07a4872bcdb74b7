"""Saved logs, graded by swebench itself through the evaluator: resolved, not resolved, and no grade at all."""

import asyncio
import json
from pathlib import Path

import pytest

from polar_mitm.capture.folder import SessionFolder
from polar_mitm.sandboxes import SANDBOXES
from polar_mitm.tasks.evaluators import EVALUATORS, Evaluation, Finished, Swebench
from polar_mitm.tasks.swebench import package, verify
from polar_mitm.tasks.swebench.rows import Row
from polar_mitm.tasks.swebench.setting import Setting
from tests.live_engine import at_home
from tests.needs import need
from tests.swebench.samples import FIXED, KEPT, log, row

ALL = (f"PASSED {FIXED}", f"PASSED {KEPT[0]}", f"PASSED {KEPT[1]}")

GRADED: dict[str, tuple[str, float]] = {
    "all pass": (log(*ALL), 1.0),
    "an expected failure and a skipped old test": (
        log(f"XFAIL {FIXED}", f"PASSED {KEPT[0]}", f"SKIPPED {KEPT[1]}"),
        1.0,
    ),
    "the new test fails": (log(f"FAILED {FIXED} - assert 1 == 3", *ALL[1:], code=1), 0.0),
    "the new test is skipped": (log(f"SKIPPED {FIXED}", *ALL[1:]), 0.0),
    "an old test fails": (log(*ALL[:2], f"FAILED {KEPT[1]} - assert 0", code=1), 0.0),
    "an old test is not there": (log(*ALL[:2]), 0.0),
    "odd bytes in the output": (log("caf\udce9", *ALL), 1.0),
    "results outside the marks": (f"{log()}{ALL[0]}\n{ALL[1]}\n{ALL[2]}\n", 1.0),
}

NO_GRADE: dict[str, tuple[str, str]] = {
    "nothing in it": ("", "tests"),
    "no end": (log(*ALL, end=False), "tests"),
    "no result": (log("nothing here is a result"), "tests"),
    "a patch that did not apply": (f">>>>> Patch Apply Failed\n{log(*ALL)}", "tests"),
    "no test was found": (log("collected 0 items", code=5), "tests (no_tests_collected)"),
    "passes only, and yet a failure": (log(*ALL, code=1), "tests"),
}

ROW = Row.model_validate(row())

type Verdicts = dict[str, verify.Graded]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """Of every log, asked for at once: loading swebench takes seconds."""
    folder = tmp_path_factory.mktemp("logs")
    logs = {name: text for name, (text, _) in (GRADED | NO_GRADE).items()}
    questions = []
    for name, text in logs.items():
        (folder / "saved").write_text(text, errors="surrogateescape")
        verify.keep_log(folder / "saved", folder / name)
        questions.append(verify.question(ROW, "", folder / name))
    with at_home():
        need(package.problems())
        reports = asyncio.run(package.ask(*questions))
    return {name: verify.graded(ROW.instance_id, report) for name, report in zip(logs, reports, strict=True)}


@pytest.mark.live
@pytest.mark.parametrize("name", GRADED)
def test_a_log_gives_the_grade_that_swebench_gives_it(verdicts: Verdicts, name: str) -> None:
    verdict = verdicts[name]
    assert verdict.resolved is bool(GRADED[name][1])
    assert set(verdict.report[ROW.instance_id]["tests_status"]["FAIL_TO_PASS"]) == {"success", "failure"}


@pytest.mark.live
@pytest.mark.parametrize("name", NO_GRADE)
def test_a_log_that_says_nothing_is_no_grade(verdicts: Verdicts, name: str) -> None:
    assert verdicts[name].resolved is None
    assert verdicts[name].why == f"swebench can read no result in the log of the {NO_GRADE[name][1]}"


async def judged(
    tmp_path: Path, text: str | None, log: str | None = "{instance_id}.log", **changes: object
) -> Evaluation:
    if text is not None:
        (tmp_path / "filler__sum-1.log").write_text(text)
    folder = SessionFolder.create(tmp_path, "ses_test")
    workspace = folder.path / "workspace"
    workspace.mkdir()
    folder.workspace_diff.write_bytes(b"")
    finished = Finished(
        sandbox=SANDBOXES["host"],
        session_id="ses_test",
        workspace=workspace,
        answer=folder.answer,
        exit_code=0,
        valid_calls=1,
        task={},
        image=None,
        workdir=None,
        task_folder=tmp_path,
        swebench=Setting(Row.model_validate(row(**changes)), saved_log=True),
        folder=folder,
    )
    with at_home():
        need(package.problems())
        return await Swebench(type="swebench", log=log).evaluate(finished)


@pytest.mark.live
async def test_the_evaluator_grades_a_saved_log_and_keeps_the_report(tmp_path: Path) -> None:
    evaluation = await judged(tmp_path, log(*ALL))
    assert evaluation == Evaluation.of("resolved", 1.0, log(*ALL))
    report = json.loads((tmp_path / "ses_test" / "swebench" / "report.json").read_text())
    assert report[ROW.instance_id]["resolved"] is True


@pytest.mark.live
async def test_a_session_that_changed_nothing_is_not_resolved_and_runs_no_tests(tmp_path: Path) -> None:
    evaluation = await judged(tmp_path, None, log=None)
    assert evaluation == Evaluation.of("resolved", 0.0)
    assert sorted(path.name for path in (tmp_path / "ses_test" / "swebench").iterdir()) == ["patch.diff", "report.json"]


@pytest.mark.live
@pytest.mark.parametrize(
    ("text", "changes", "why"),
    [
        (None, {}, "filler__sum-1.log cannot be read: No such file or directory"),
        (log(*ALL), {"log_parser": "parse_log_of_nobody"}, "swebench failed: KeyError: 'parse_log_of_nobody'"),
    ],
)
async def test_no_grade_is_an_error_and_never_a_zero(
    tmp_path: Path, text: str | None, changes: dict[str, str], why: str
) -> None:
    evaluation = await judged(tmp_path, text, **changes)
    assert (evaluation.reward, evaluation.rewards) == (None, {})
    assert (evaluation.error or "").startswith("there is no grade: ")
    assert (evaluation.error or "").endswith(why)


async def test_without_a_row_there_is_nothing_to_grade(tmp_path: Path) -> None:
    finished = Finished(SANDBOXES["host"], "s", tmp_path, tmp_path / "a", 0, 1, {}, None, None, tmp_path)
    evaluation = await EVALUATORS["swebench"].model_validate({"type": "swebench"}).evaluate(finished)
    assert "there is no SWE-bench row" in (evaluation.error or "")


def test_an_evaluator_that_is_not_installed_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_HOME", str(tmp_path))
    assert Swebench(type="swebench").lacks() == [
        "swebench is not installed: install it with `polar evaluator install swebench`"
    ]
