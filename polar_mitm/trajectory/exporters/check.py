"""What must hold of a trajectory before a row of it is written, whoever built it.

A broken array is an error: nothing of that export can be trusted. A reward that is not a number is the evaluation's
failure: the session keeps its place and is masked.
"""

import math
from collections.abc import Iterator

from polar_mitm.trajectory.exporters.base import ExportFailed
from polar_mitm.trajectory.trace import Trace, Trajectory

_INT32_MAX = 2**31 - 1


def checked(trajectory: Trajectory) -> Trajectory:
    """The trajectory with finite numbers only, masked if its reward is not one. Raises ExportFailed."""
    for trace in trajectory.traces:
        _check(trace)
        if trajectory.masked is not None and trace.trained:
            _fail(trace, f"it has trained tokens, but its session is masked ({trajectory.masked})")
    odd = list(_odd_rewards(trajectory))
    return _finite(trajectory, masked=f"reward is not finite: {', '.join(odd)}" if odd else None)


def _check(trace: Trace) -> None:
    lengths = {len(trace.response_ids), len(trace.loss_mask), len(trace.logprobs)}
    if len(lengths) != 1:
        lists = f"{len(trace.response_ids)} response ids, {len(trace.loss_mask)} mask values"
        _fail(trace, f"its lists differ in length: {lists}, {len(trace.logprobs)} logprobs")
    for name, ids in (("prompt", trace.prompt_ids), ("response", trace.response_ids)):
        if ids and not (min(ids) >= 0 and max(ids) <= _INT32_MAX):
            _fail(trace, f"a {name} id is not a token id of 32 bits")
    if not set(trace.loss_mask) <= {0, 1}:
        _fail(trace, "its loss mask holds something other than 0 and 1")
    for place, (mask, logprob) in enumerate(zip(trace.loss_mask, trace.logprobs, strict=True)):
        if mask and not math.isfinite(logprob):
            _fail(trace, f"response token {place} would be trained on a log-probability of {logprob}")
    for name, number in (("weight", trace.weight), ("advantage", trace.advantage)):
        if number is not None and not math.isfinite(number):
            _fail(trace, f"its {name} is {number}")


def _fail(trace: Trace, what: str) -> None:
    raise ExportFailed(
        f"trace {trace.trace_id}: {what}. Nothing was written: build the session anew from its calls.jsonl, and if it "
        "stays so, leave the session out by moving its folder"
    )


def _odd_rewards(trajectory: Trajectory) -> Iterator[str]:
    yield from _odd("session", trajectory.reward, trajectory.rewards)
    for trace in trajectory.traces:
        yield from _odd(trace.trace_id, trace.reward, trace.rewards)
        for turn in trace.turns:
            yield from _odd(turn.call_id, turn.reward, {})


def _odd(place: str, reward: float | None, rewards: dict[str, float]) -> Iterator[str]:
    for name, value in {"reward": reward, **rewards}.items():
        if value is not None and not math.isfinite(value):
            yield f"{name} of {place} is {value}"


def _finite(trajectory: Trajectory, masked: str | None) -> Trajectory:
    """JSON has no word for infinities: what is not trained on is 0.0 in the row, as for tokens never sampled."""
    return trajectory.model_copy(
        update={
            "masked": trajectory.masked or masked,
            "reward": _number(trajectory.reward),
            "rewards": _numbers(trajectory.rewards),
            "traces": [_finite_trace(trace, masked=masked is not None) for trace in trajectory.traces],
        }
    )


def _finite_trace(trace: Trace, *, masked: bool) -> Trace:
    update: dict[str, object] = {
        "reward": _number(trace.reward),
        "rewards": _numbers(trace.rewards),
        "turns": [turn.model_copy(update={"reward": _number(turn.reward)}) for turn in trace.turns],
    }
    if not all(map(math.isfinite, trace.logprobs)):
        update["logprobs"] = [value if math.isfinite(value) else 0.0 for value in trace.logprobs]
    if masked:
        update |= {"loss_mask": [0] * len(trace.loss_mask), "advantage": None}
    return trace.model_copy(update=update)


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _numbers(values: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if math.isfinite(value)}
