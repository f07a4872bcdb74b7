"""Columns that a `rollout_func` of TRL's GRPOTrainer returns as they are, in Parquet.

`prompt` is the group's id: the trainer hands it to `rollout_func`, which looks the group's rows up by it. TRL wants one
completion for each prompt it hands over and none that is empty, so `main` marks one row a session. `reward` is null
where the session is masked: TRL leaves such a row out of the group's baseline.
"""

from collections.abc import Iterator
from pathlib import Path

from polar_mitm.trajectory.exporters.base import Format, Row, Session, Sink, Tally, principal, trained_or_place
from polar_mitm.trajectory.exporters.canonical import highest, lowest, reward
from polar_mitm.trajectory.exporters.sinks import Parquet, arrow


def rows(session: Session, tally: Tally) -> Iterator[Row]:
    trajectory = session.trajectory
    main = principal(trajectory)
    for trace in trained_or_place(session, tally):
        yield {
            "prompt": trajectory.group_id,
            "prompt_ids": trace.prompt_ids,
            "completion_ids": trace.response_ids,
            "logprobs": trace.logprobs,
            "env_mask": trace.loss_mask,
            "reward": None if trajectory.masked else reward(session, trace),
            "advantage": trace.advantage,
            "weight": trace.weight if trace.trained else 0.0,
            "main": trace is main,
            "masked": trajectory.masked,
            "group_id": trajectory.group_id,
            "rollout_id": trajectory.rollout_id,
            "session_id": trajectory.session_id,
            "trace_id": trace.trace_id,
            "sample": trajectory.sample,
            "attempt": trajectory.attempt,
            "exact": trace.exact,
            "policy_version_min": lowest(trace.policy_versions),
            "policy_version_max": highest(trace.policy_versions),
            "model": trace.model,
        }


def _sink(path: Path) -> Sink:
    pa = arrow()
    text, ids, mask, number = pa.string(), pa.list_(pa.int32()), pa.list_(pa.int8()), pa.float64()
    columns = {
        "prompt": text,
        "prompt_ids": ids,
        "completion_ids": ids,
        "logprobs": pa.list_(pa.float32()),
        "env_mask": mask,
        **dict.fromkeys(("reward", "advantage", "weight"), number),
        "main": pa.bool_(),
        **dict.fromkeys(("masked", "group_id", "rollout_id", "session_id", "trace_id"), text),
        "sample": pa.int32(),
        "attempt": pa.int32(),
        "exact": pa.bool_(),
        **dict.fromkeys(("policy_version_min", "policy_version_max", "model"), text),
    }
    return Parquet(path, pa.schema(list(columns.items())), ("prompt_ids", "completion_ids"))


FORMAT = Format(
    name="trl",
    output="trl.parquet",
    what="columns for rollout_func of GRPOTrainer",
    checked="loader-verified with GRPOTrainer",
    rows=rows,
    sink=_sink,
)
