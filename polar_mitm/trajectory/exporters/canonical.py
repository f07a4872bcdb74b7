"""The canonical row: one trace with all that is known of it. The formats `parquet` and `jsonl` write it.

Its fields are described in `docs/exporters.md`; its version is in the field `schema`. Ids are int32, the mask int8,
logprobs float32, rewards float64. A session without any trace has one row with empty arrays, so that its place in the
group is kept.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polar_mitm.trajectory.exporters.base import Format, Row, Session, Sink, Tally
from polar_mitm.trajectory.exporters.sinks import JsonLines, Parquet, arrow
from polar_mitm.trajectory.exporters.text import packed
from polar_mitm.trajectory.trace import Lineage, Trace, Turn

SCHEMA = 1
"""Schema version of a canonical row."""


def rows(session: Session, tally: Tally) -> Iterator[Row]:
    """Every trace of the session, those without a trained token too."""
    del tally
    if not session.trajectory.traces:
        yield _row(session, None)
    for trace in session.trajectory.traces:
        yield _row(session, trace)


def _row(session: Session, trace: Trace | None) -> Row:
    trajectory = session.trajectory
    lineage = trace.lineage if trace else Lineage(kind="main")
    versions = trace.policy_versions if trace else []
    return {
        "schema": SCHEMA,
        "session_id": trajectory.session_id,
        "trace_id": trace.trace_id if trace else None,
        "group_id": trajectory.group_id,
        "rollout_id": trajectory.rollout_id,
        "task_id": trajectory.task_id,
        "sample": trajectory.sample,
        "attempt": trajectory.attempt,
        "scenario": trajectory.scenario,
        "harness": trajectory.harness,
        "harness_version": session.record.harness_version,
        "model": trace.model if trace else None,
        "builder": trajectory.builder,
        "rewritten": trajectory.rewritten,
        "status": trajectory.status,
        "masked": trajectory.masked,
        "prompt_ids": trace.prompt_ids if trace else [],
        "response_ids": trace.response_ids if trace else [],
        "loss_mask": trace.loss_mask if trace else [],
        "logprobs": trace.logprobs if trace else [],
        "reward": reward(session, trace),
        "rewards": pairs(trace.rewards if trace and trace.rewards else trajectory.rewards),
        "weight": trace.weight if trace and trace.trained else 0.0,
        "advantage": trace.advantage if trace else None,
        "exact": trace.exact if trace else True,
        "lineage": lineage.model_dump(),
        "broken_by": trace.broken_by.cause if trace and trace.broken_by else None,
        "policy_versions": versions,
        "policy_version_min": lowest(versions),
        "policy_version_max": highest(versions),
        "turns": [_turn(turn) for turn in trace.turns] if trace else [],
        "messages": packed(trace.messages if trace else []),
        "tools": packed(trace.tools if trace else []),
        "reply": packed(trace.reply if trace else {}),
    }


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "call_id": turn.call_id,
        "start": turn.start,
        "end": turn.end,
        "relation": turn.relation,
        "kind": turn.kind,
        "started_at": turn.started_at,
        "finish_reason": turn.finish_reason,
        "policy_version": turn.policy_version,
        "weight_versions": [
            {"start": start, "end": end, "version": version} for start, end, version in turn.weight_versions
        ],
        "logprobs_mode": turn.logprobs_mode,
        "sampling": packed(turn.sampling),
        "tools": turn.tools,
        "bin": turn.bin,
        "reason": turn.reason,
        "reward": turn.reward,
    }


def reward(session: Session, trace: Trace | None) -> float | None:
    """The trace's own, else its session's."""
    return trace.reward if trace and trace.reward is not None else session.trajectory.reward


def about(session: Session, trace: Trace) -> Row:
    """Where a trace comes from and how it is to be counted, for the fields that a trainer leaves to others."""
    trajectory = session.trajectory
    return {
        "session_id": trajectory.session_id,
        "trace_id": trace.trace_id,
        "sample": trajectory.sample,
        "attempt": trajectory.attempt,
        "status": trajectory.status,
        "masked": trajectory.masked,
        "weight": trace.weight if trace.trained else 0.0,
        "advantage": trace.advantage,
        "rewards": trace.rewards or trajectory.rewards,
        "exact": trace.exact,
        "policy_version_min": lowest(trace.policy_versions),
        "policy_version_max": highest(trace.policy_versions),
    }


def pairs(rewards: dict[str, float]) -> list[dict[str, Any]]:
    """Named rewards as Arrow can hold them: names differ from task to task."""
    return [{"name": name, "value": value} for name, value in rewards.items()]


def lowest(versions: list[str]) -> str | None:
    return min(versions, key=_natural, default=None)


def highest(versions: list[str]) -> str | None:
    return max(versions, key=_natural, default=None)


def _natural(version: str) -> list[tuple[str, int]]:
    """So that `v10` comes after `v9`."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", version)]


def _parquet(path: Path) -> Sink:
    pa = arrow()
    words, text, whole = pa.list_(pa.string()), pa.string(), pa.int32()
    span = pa.struct([("start", whole), ("end", whole), ("version", text)])
    turn = pa.struct(
        [
            ("call_id", text),
            ("start", whole),
            ("end", whole),
            ("relation", text),
            ("kind", text),
            ("started_at", pa.float64()),
            ("finish_reason", text),
            ("policy_version", text),
            ("weight_versions", pa.list_(span)),
            ("logprobs_mode", text),
            ("sampling", text),
            ("tools", words),
            ("bin", text),
            ("reason", text),
            ("reward", pa.float64()),
        ]
    )
    columns = {
        "schema": whole,
        **dict.fromkeys(("session_id", "trace_id", "group_id", "rollout_id", "task_id"), text),
        "sample": whole,
        "attempt": whole,
        **dict.fromkeys(("scenario", "harness", "harness_version", "model"), text),
        **dict.fromkeys(("builder", "rewritten", "status", "masked"), text),
        "prompt_ids": pa.list_(whole),
        "response_ids": pa.list_(whole),
        "loss_mask": pa.list_(pa.int8()),
        "logprobs": pa.list_(pa.float32()),
        "reward": pa.float64(),
        "rewards": pa.list_(pa.struct([("name", text), ("value", pa.float64())])),
        "weight": pa.float64(),
        "advantage": pa.float64(),
        "exact": pa.bool_(),
        "lineage": pa.struct([("kind", text), ("within", text), ("of_trace", text), ("of_call", text)]),
        "broken_by": text,
        "policy_versions": words,
        "policy_version_min": text,
        "policy_version_max": text,
        "turns": pa.list_(turn),
        **dict.fromkeys(("messages", "tools", "reply"), text),
    }
    return Parquet(path, pa.schema(list(columns.items())), ("prompt_ids", "response_ids"))


PARQUET = Format(
    name="parquet",
    output="traces.parquet",
    what="a row a trace, all fields",
    checked="loader-verified with datasets",
    rows=rows,
    sink=_parquet,
    one_model=False,
)
JSONL = Format(
    name="jsonl",
    output="traces.jsonl",
    what="the same rows as JSON lines",
    checked="loader-verified with datasets",
    rows=rows,
    sink=JsonLines,
    one_model=False,
)
