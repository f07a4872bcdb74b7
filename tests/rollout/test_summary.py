"""Pass rates and rewards of a run."""

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from polar_mitm.capture.folder import SessionRecord
from polar_mitm.cli.summary import summary_table
from polar_mitm.rollout.outcome import Outcome
from polar_mitm.rollout.summary import pass_at, summary


def outcome(reward: float | None, *, task: str = "t", harness: str = "pi", calls: int = 2) -> Outcome:
    session = SessionRecord(
        session_id="ses_1",
        task_id=task,
        sample=0,
        harness=harness,
        sandbox="host",
        intercept="proxy",
        started_at=1.0,
        finished_at=3.0,
        status="completed",
        reward=reward,
        calls=calls,
        prompt_tokens=10,
        response_tokens=5,
    )
    return Outcome(Path("ses_1"), session)


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_pass(passes: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(passes)))
    draws = list(combinations(passes, k))
    expected = sum(any(draw) for draw in draws) / len(draws)
    assert pass_at(k, samples=len(passes), passed=sum(passes)) == pytest.approx(expected)


def test_pass_at_more_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="pass@3 of 2"):
        pass_at(3, samples=2, passed=1)


def test_a_sample_without_a_reward_is_no_zero() -> None:
    (row,) = summary([outcome(1.0), outcome(None), outcome(0.5)])
    assert (row.samples, row.graded, row.passed) == (3, 2, 1)
    assert row.mean_reward == pytest.approx(0.75)
    assert row.standard_error == pytest.approx(0.25)
    assert (row.pass_at_1, row.pass_at_k) == (0.5, 1.0)
    assert (row.calls, row.prompt_tokens, row.response_tokens, row.seconds) == (6, 30, 15, 2.0)


def test_nothing_graded_has_no_rates() -> None:
    (row,) = summary([outcome(None)])
    assert (row.pass_at_1, row.pass_at_k, row.mean_reward, row.standard_error) == (None, None, None, None)


def test_pass_at_a_k_that_too_few_samples_reached_is_unknown() -> None:
    assert summary([outcome(1.0)], k=2)[0].pass_at_k is None


def test_harnesses_have_a_row_each() -> None:
    rows = summary([outcome(1.0), outcome(0.0, harness="codex"), outcome(0.0)])
    assert [(row.cell.harness, row.samples, row.mean_reward) for row in rows] == [("pi", 2, 0.5), ("codex", 1, 0.0)]


def test_tasks_count_alike_however_often_each_was_sampled() -> None:
    outcomes = [outcome(1.0, task="t/1"), outcome(1.0, task="t/1"), outcome(1.0, task="t/1"), outcome(0.0, task="t/2")]
    (row,) = summary(outcomes)
    assert (row.tasks, row.samples, row.cell.scenario) == (2, 4, "t")
    assert (row.pass_at_1, row.mean_reward, row.standard_error) == (0.5, 0.5, 0.5)
    assert summary(outcomes, k=3)[0].pass_at_k == 1.0  # of the one task with three samples


def printed(outcomes: list[Outcome], width: int) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(summary_table(summary(outcomes), width))
    return captured.get()


def test_no_column_of_the_table_is_cut_and_those_left_out_are_named() -> None:
    outcomes = [outcome(1.0, task=f"write_file/{number}", harness="mini-swe-agent", calls=4321) for number in range(12)]
    narrow, wide = printed(outcomes, 80), printed(outcomes, 120)
    assert "\u2026" not in narrow + wide
    assert all(len(line) <= 80 for line in narrow.splitlines())
    assert "left out, for a wider terminal or --json: +-" in narrow and " s" in narrow.splitlines()[0]
    assert "left out" not in wide and " tokens " in wide


def test_the_table_says_which_k_it_is() -> None:
    assert "pass@2" in printed([outcome(1.0), outcome(0.0)], 120)
    assert printed([outcome(1.0)], 120).count("pass@") == 1
    mixed = printed([outcome(1.0), outcome(0.0), outcome(1.0, harness="codex")], 120)
    assert "pass@k" in mixed and "1.00 @2" in mixed and "1.00 @1" in mixed
