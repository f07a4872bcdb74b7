"""Evaluators: rewards, and the difference between a bad outcome and an evaluation that failed."""

from pathlib import Path

import pytest

from polar_mitm.sandboxes import SANDBOXES
from polar_mitm.tasks.evaluators import Evaluation, evaluate
from polar_mitm.tasks.scenario import CommandEvaluator, SessionCompletedEvaluator, bundled, load
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
    evaluator: CommandEvaluator | SessionCompletedEvaluator,
    workspace: Path,
    *,
    sandbox: str = "host",
    answer: str = "",
    exit_code: int | None = 0,
    valid_calls: int = 1,
) -> Evaluation:
    answer_file = workspace.parent / "answer.txt"
    answer_file.write_text(answer)
    return await evaluate(
        evaluator,
        sandbox=SANDBOXES[sandbox],
        session_id="ses_test",
        workspace=workspace,
        answer=answer_file,
        exit_code=exit_code,
        valid_calls=valid_calls,
    )


def command(run: str, timeout_s: float = 20) -> CommandEvaluator:
    return CommandEvaluator(type="command", run=run, timeout_s=timeout_s)


async def test_exit_zero_is_one_and_the_output_is_kept(workspace: Path, sandbox_name: str) -> None:
    evaluation = await judge(command("echo fine; echo really >&2"), workspace, sandbox=sandbox_name)
    assert evaluation == Evaluation(1.0, {"command": 1.0}, None, "fine\nreally\n")


@pytest.mark.parametrize("code", [1, 2, 125])
async def test_any_other_exit_is_zero_which_is_no_error(workspace: Path, code: int) -> None:
    evaluation = await judge(command(f"exit {code}"), workspace)
    assert evaluation == Evaluation(0.0, {"command": 0.0}, None, "")


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
        SessionCompletedEvaluator(type="session_completed"),
        workspace,
        exit_code=exit_code,
        valid_calls=valid_calls,
    )
    assert evaluation == Evaluation(reward, {"session_completed": reward}, None, "")


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
