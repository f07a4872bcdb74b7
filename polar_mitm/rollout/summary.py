"""What a run comes to: a row for each scenario and harness, with pass rates, rewards, tokens and seconds."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polar_mitm.rollout.outcome import Outcome
from polar_mitm.rollout.resume import Cell

PASS = 1.0
"""The reward from which on a sample has passed."""


@dataclass(slots=True, frozen=True)
class Row:
    """Rates and rewards are over the graded samples, and None when there are none; the rest is over all."""

    cell: Cell
    samples: int
    graded: int
    """Samples with a reward."""
    passed: int
    pass_at_1: float | None
    pass_at_k: float | None
    """The chance that of k of the graded samples at least one has passed; None when there are less than k."""
    mean_reward: float | None
    standard_error: float | None
    """Of the mean; None for less than two samples."""
    calls: int
    prompt_tokens: int
    response_tokens: int
    seconds: float
    """Mean wall time of a sample."""


def summary(outcomes: Iterable[Outcome], *, k: int | None = None) -> list[Row]:
    """In the order in which the cells first appear. `k` is that of pass@k: all graded samples of a cell, if None."""
    cells: dict[Cell, list[Outcome]] = {}
    for outcome in outcomes:
        cells.setdefault(Cell.of_session(outcome.session), []).append(outcome)
    return [_row(cell, members, k) for cell, members in cells.items()]


def pass_at(k: int, *, samples: int, passed: int) -> float:
    """The chance that at least one of k samples passes, drawn without return from `samples` of which `passed` did."""
    if k > samples:
        raise ValueError(f"pass@{k} of {samples} samples is not defined")
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


def _row(cell: Cell, members: Sequence[Outcome], k: int | None) -> Row:
    rewards = [outcome.session.reward for outcome in members if outcome.session.reward is not None]
    passed = sum(reward >= PASS for reward in rewards)
    of = len(rewards) if k is None else k
    sessions = [outcome.session for outcome in members]
    return Row(
        cell=cell,
        samples=len(members),
        graded=len(rewards),
        passed=passed,
        pass_at_1=passed / len(rewards) if rewards else None,
        pass_at_k=pass_at(of, samples=len(rewards), passed=passed) if 0 < of <= len(rewards) else None,
        mean_reward=sum(rewards) / len(rewards) if rewards else None,
        standard_error=_standard_error(rewards),
        calls=sum(session.calls for session in sessions),
        prompt_tokens=sum(session.prompt_tokens for session in sessions),
        response_tokens=sum(session.response_tokens for session in sessions),
        seconds=sum(outcome.seconds for outcome in members) / len(members),
    )


def _standard_error(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
