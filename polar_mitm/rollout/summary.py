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
    """Rates and rewards are means over the tasks of what their graded samples come to, None when there are none.

    The rest is over all samples.
    """

    cell: Cell
    tasks: int
    samples: int
    graded: int
    """Samples with a reward."""
    passed: int
    pass_at_1: float | None
    pass_at_k: float | None
    """The chance that of k graded samples of a task at least one has passed; tasks with less than k do not count."""
    k: int | None
    """None where it was not given and tasks have different numbers of graded samples."""
    mean_reward: float | None
    standard_error: float | None
    """Of the mean: over tasks, or over the samples of a single task; None for less than two."""
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
    tasks: dict[str | None, list[float]] = {}
    for outcome in members:
        if outcome.session.reward is not None:
            tasks.setdefault(outcome.session.task_id, []).append(outcome.session.reward)
    rewards = [reward for of_task in tasks.values() for reward in of_task]
    means = [_mean(of_task) for of_task in tasks.values()]
    sessions = [outcome.session for outcome in members]
    return Row(
        cell=cell,
        tasks=len({session.task_id for session in sessions}),
        samples=len(members),
        graded=len(rewards),
        passed=sum(reward >= PASS for reward in rewards),
        pass_at_1=_mean([_pass_at(1, of_task) for of_task in tasks.values()]),
        pass_at_k=_mean([_pass_at(k or len(of_task), of_task) for of_task in tasks.values()]),
        k=k or (len(next(iter(tasks.values()))) if len({len(of_task) for of_task in tasks.values()}) == 1 else None),
        mean_reward=_mean(means),
        standard_error=_standard_error([mean for mean in means if mean is not None] if len(means) > 1 else rewards),
        calls=sum(session.calls for session in sessions),
        prompt_tokens=sum(session.prompt_tokens for session in sessions),
        response_tokens=sum(session.response_tokens for session in sessions),
        seconds=sum(outcome.seconds for outcome in members) / len(members),
    )


def _pass_at(k: int, rewards: Sequence[float]) -> float | None:
    if k > len(rewards):
        return None
    return pass_at(k, samples=len(rewards), passed=sum(reward >= PASS for reward in rewards))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _standard_error(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
