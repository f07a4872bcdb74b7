"""Evaluators: rewards, and the difference between a bad outcome and an evaluation that failed."""

import os
from pathlib import Path
from typing import Any, Literal

import pytest

from polar_mitm.sandboxes import SANDBOXES
from polar_mitm.tasks.errors import ScenarioError
from polar_mitm.tasks.evaluators import Answer, Command, Evaluation, Finished, Python, SessionCompleted
from polar_mitm.tasks.evaluators.base import EvaluatorFields
from polar_mitm.tasks.reading import bundled, load
from tests.needs import need


@pytest.fixture(params=[pytest.param("host"), pytest.param("bwrap", marks=pytest.mark.live)])
def sandbox_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    need(SANDBOXES[name].check())
    return name


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


async def judge(
    evaluator: EvaluatorFields,
    workspace: Path,
    *,
    sandbox: str = "host",
    answer: str = "",
    exit_code: int | None = 0,
    valid_calls: int = 1,
    task: dict[str, Any] | None = None,
) -> Evaluation:
    answer_file = workspace.parent / "answer.txt"
    answer_file.write_text(answer)
    finished = Finished(
        sandbox=SANDBOXES[sandbox],
        session_id="ses_test",
        workspace=workspace,
        answer=answer_file,
        exit_code=exit_code,
        valid_calls=valid_calls,
        task=task or {},
        image=None,
        workdir=None,
        task_folder=workspace.parent,
    )
    return await evaluator.evaluate(finished)


def command(run: str, timeout_s: float = 20) -> Command:
    return Command(type="command", run=run, timeout_s=timeout_s)


async def test_exit_zero_is_one_and_the_output_is_kept(workspace: Path, sandbox_name: str) -> None:
    evaluation = await judge(command("echo fine; echo really >&2"), workspace, sandbox=sandbox_name)
    assert evaluation == Evaluation.of("command", 1.0, "fine\nreally\n")


@pytest.mark.parametrize("code", [1, 2, 125])
async def test_any_other_exit_is_zero_which_is_no_error(workspace: Path, code: int) -> None:
    evaluation = await judge(command(f"exit {code}"), workspace)
    assert evaluation == Evaluation.of("command", 0.0, "")


async def test_it_sees_workspace_answer_and_session_and_nothing_of_the_users(
    workspace: Path, sandbox_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_USER", "x")
    (workspace / "out.txt").write_text("made\n")
    script = 'cat out.txt "$POLAR_ANSWER"; echo; echo "$POLAR_SESSION,$SECRET_OF_THE_USER,$HTTPS_PROXY"'
    evaluation = await judge(command(script), workspace, sandbox=sandbox_name, answer="It's “Paris”.")
    assert evaluation.output == "made\nIt's “Paris”.\nses_test,,\n"


async def test_the_answer_file_is_a_copy(workspace: Path, sandbox_name: str) -> None:
    await judge(command('echo spoilt > "$POLAR_ANSWER"'), workspace, sandbox=sandbox_name, answer="kept")
    assert (workspace.parent / "answer.txt").read_text() == "kept"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("no-such-program-here", "cannot run (exit code 127)"),
        ("./plain.txt", "cannot run (exit code 126)"),
        ("kill -KILL $$", "was killed by signal 9"),
    ],
)
async def test_a_command_that_judged_nothing_is_an_error_without_a_reward(
    workspace: Path, sandbox_name: str, script: str, said: str
) -> None:
    (workspace / "plain.txt").write_text("no program\n")
    evaluation = await judge(command(script), workspace, sandbox=sandbox_name)
    assert (evaluation.reward, evaluation.rewards) == (None, {})
    assert evaluation.error is not None
    assert said in evaluation.error


async def test_a_command_that_takes_too_long_is_an_error_with_what_it_said(workspace: Path, sandbox_name: str) -> None:
    evaluation = await judge(command("echo begun; sleep 30", timeout_s=0.5), workspace, sandbox=sandbox_name)
    assert evaluation == Evaluation(None, {}, "the evaluator's command took more than 0.5 s", "begun\n")


async def test_a_sandbox_that_fails_is_an_error_of_the_evaluation(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    evaluation = await judge(command("exit 0"), workspace, sandbox="bwrap")
    assert evaluation.reward is None
    assert evaluation.error is not None
    assert "bubblewrap is not installed" in evaluation.error


@pytest.mark.parametrize(
    ("exit_code", "valid_calls", "reward"), [(0, 1, 1.0), (0, 7, 1.0), (0, 0, 0.0), (1, 3, 0.0), (None, 3, 0.0)]
)
async def test_session_completed_needs_a_good_end_and_a_valid_call(
    workspace: Path, exit_code: int | None, valid_calls: int, reward: float
) -> None:
    evaluation = await judge(
        SessionCompleted(type="session_completed"),
        workspace,
        exit_code=exit_code,
        valid_calls=valid_calls,
    )
    assert evaluation == Evaluation.of("session_completed", reward, "")


@pytest.mark.parametrize(
    ("answer", "reward"), [("The capital is Paris.", 1.0), ("paris", 1.0), ("Lyon", 0.0), ("", 0.0)]
)
async def test_the_hello_scenario_rewards_the_right_city(workspace: Path, answer: str, reward: float) -> None:
    evaluator = load(bundled("hello")).evaluator
    assert (await judge(evaluator, workspace, answer=answer)).reward == reward


@pytest.mark.parametrize(("content", "reward"), [("hello\n", 1.0), ("hello", 1.0), ("hello world\n", 0.0), (None, 0.0)])
async def test_the_write_file_scenario_rewards_the_word_and_nothing_else(
    workspace: Path, content: str | None, reward: float
) -> None:
    if content is not None:
        (workspace / "out.txt").write_text(content)
    evaluator = load(bundled("write_file")).evaluator
    assert (await judge(evaluator, workspace)).reward == reward


async def test_the_program_works_on_a_copy_and_never_waits_for_a_pipe(workspace: Path, sandbox_name: str) -> None:
    (workspace / "out.txt").write_text("made\n")
    (workspace / "link").symlink_to("out.txt")
    os.mkfifo(workspace / "pipe")
    judged = await judge(command("cat link && rm out.txt && test ! -e pipe"), workspace, sandbox=sandbox_name)
    assert judged == Evaluation.of("command", 1.0, "made\n")
    assert (workspace / "out.txt").read_text() == "made\n"


@pytest.mark.parametrize(
    ("match", "expected", "answer", "reward"),
    [
        ("exact", "Paris", "  Paris\n", 1.0),
        ("exact", "Paris", "Paris.", 0.0),
        ("regex", r"(?i)\bparis\b", "It is PARIS, I think", 1.0),
        ("regex", r"^Paris$", "It is Paris", 0.0),
        ("number", "1234.5", "First 7, then 1,234.5.", 1.0),
        ("number", "-2e3", "so -2000", 1.0),
        ("number", "3", "three", 0.0),
        ("number", "3", "3 or 4", 0.0),
        ("number", "0.3333333", "1/3 = 0.33333333", 1.0),
        ("number", ".5", "0.5", 1.0),
        ("number", "4", "from 3-4", 1.0),
    ],
)
async def test_an_answer_is_held_against_the_expected_one(
    workspace: Path, match: Literal["exact", "regex", "number"], expected: str, answer: str, reward: float
) -> None:
    evaluator = Answer(type="answer", expected=expected, match=match)
    assert await judge(evaluator, workspace, answer=answer) == Evaluation.of("answer", reward, "")


async def test_an_expression_that_would_search_for_ever_is_no_reward(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polar_mitm.tasks.evaluators.answer.SEARCH_S", 0.5)
    evaluator = Answer(type="answer", expected="^(a+)+$", match="regex")
    seen = await judge(evaluator, workspace, answer="a" * 40 + "b")
    assert seen == Evaluation.failed("the expression took longer than 0.5 s on the harness's final text")


CHECKS = """
import math, os

def of_file(session):
    print("looking")
    return float(open("out.txt").read())

def named(session):
    return {"fast": 0.5, "right": 1, "length": len(session["answer"])}

def chosen(session):
    return {"reward": 0.25, "other": 9}

def broken(session):
    raise ValueError("no such thing")

def gone(session):
    os._exit(0)

def infinite(session):
    return math.inf

def nothing(session):
    return None

def words(session):
    return {"reward": 1.0, "why": "it is good"}

def spoof(session):
    print(session["session"] + ":99")
    return 0.5
"""


def python(name: str) -> Python:
    return Python(type="python", function=f"checks.py:{name}")


@pytest.mark.parametrize(
    ("name", "reward", "which", "rewards"),
    [
        ("of_file", 0.75, "only", {"python": 0.75}),
        ("named", 1.5, "mean", {"fast": 0.5, "right": 1.0, "length": 3.0}),
        ("chosen", 0.25, "reward", {"reward": 0.25, "other": 9.0}),
        ("spoof", 0.5, "only", {"python": 0.5}),
    ],
)
async def test_a_function_gives_one_reward_or_several(
    workspace: Path, sandbox_name: str, name: str, reward: float, which: str, rewards: dict[str, float]
) -> None:
    (workspace.parent / "checks.py").write_text(CHECKS)
    (workspace / "out.txt").write_text("0.75")
    judged = await judge(python(name), workspace, sandbox=sandbox_name, answer="yes")
    assert (judged.error, judged.reward, judged.reward_from, judged.rewards) == (None, reward, which, rewards)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_that_is_not_finite_is_none(odd: float) -> None:
    assert Evaluation.of("x", odd) == Evaluation.failed(f"the reward x is not finite: {odd}")
    assert Evaluation.named({"reward": 1.0, "x": odd}).reward is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "ValueError: no such thing"),
        ("gone", "ended its process"),
        ("infinite", "no finite reward"),
        ("nothing", "no finite reward"),
        ("words", "no finite reward"),
        ("missing", "AttributeError"),
    ],
)
async def test_a_function_that_gives_no_number_is_an_error_without_a_reward(
    workspace: Path, name: str, said: str
) -> None:
    (workspace.parent / "checks.py").write_text(CHECKS)
    judged = await judge(python(name), workspace)
    assert (judged.reward, judged.rewards) == (None, {})
    assert judged.error is not None
    assert said in judged.error


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("{type: answer, expected: '(', match: regex}", "evaluator.expected: expected a regular expression"),
        ("{type: answer, expected: three, match: number}", "evaluator.expected: expected a number; got 'three'"),
        ("{type: answer, expected: x, match: fuzzy}", "evaluator.match: expected one of exact, regex, number"),
        ("{type: python, function: 'checks.py:grade'}", "evaluator.function: expected FILE.py:NAME or MODULE:NAME"),
        ("{type: python, function: 'no.such.module:grade'}", "there is no no.such.module"),
    ],
)
def test_a_bad_evaluator_is_told_when_the_scenario_is_loaded(tmp_path: Path, fields: str, said: str) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(f"instruction: x\nevaluator: {fields}\n")
    with pytest.raises(ScenarioError) as caught:
        load(file)
    assert f"{file}:2: " in str(caught.value)
    assert said in str(caught.value)


async def test_the_line_of_the_task_set_is_at_hand(workspace: Path, sandbox_name: str) -> None:
    (workspace.parent / "checks.py").write_text("def grade(session):\n    return session['task']['worth']\n")
    task = {"worth": 0.5, "says": "é"}
    assert (await judge(python("grade"), workspace, sandbox=sandbox_name, task=task)).reward == 0.5
    shell = command("""grep -q '"worth": 0.5' "$POLAR_TASK" """)
    assert (await judge(shell, workspace, sandbox=sandbox_name, task=task)).reward == 1.0


@pytest.mark.parametrize(("line", "reward"), [({"n": 7}, 1.0), ({"n": "8"}, 0.0), ({"n": None}, None), ({}, None)])
async def test_an_answer_is_held_against_a_field_of_the_line(
    workspace: Path, line: dict[str, Any], reward: float | None
) -> None:
    evaluator = Answer(type="answer", expected_field="n", match="number")
    judged = await judge(evaluator, workspace, answer="7 it is", task=line)
    assert judged.reward == reward
    assert (judged.error is None) == (reward is not None)
