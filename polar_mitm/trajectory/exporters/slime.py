"""JSON lines that slime's `Sample.from_dict` takes, a trace a line."""

from collections.abc import Iterator
from typing import Literal

from polar_mitm.trajectory.exporters.base import Format, Row, Session, Tally, trained_or_place
from polar_mitm.trajectory.exporters.canonical import about, reward
from polar_mitm.trajectory.exporters.sinks import JsonLines
from polar_mitm.trajectory.trace import Trace

type Status = Literal["completed", "truncated", "aborted", "failed"]


def rows(session: Session, tally: Tally) -> Iterator[Row]:
    """All traces of a session share `rollout_id`, by which slime weighs them as one.

    A masked session has `remove_sample`, a mask of zeros and reward 0.0: slime makes one tensor of a group's rewards.
    """
    trajectory = session.trajectory
    group = tally.group(trajectory.group_id)
    for index, trace in enumerate(trained_or_place(session, tally), start=tally.rows):
        yield {
            "group_index": group,
            "index": index,
            "rollout_id": tally.sessions,
            "prompt": trace.messages,
            "tokens": trace.prompt_ids + trace.response_ids,
            "response": _text(trace),
            "response_length": len(trace.response_ids),
            "label": None,
            "reward": 0.0 if trajectory.masked else reward(session, trace),
            "loss_mask": trace.loss_mask,
            "rollout_log_probs": trace.logprobs,
            "weight_versions": trace.policy_versions,
            "remove_sample": trajectory.masked is not None,
            "status": _status(session, trace),
            "session_id": trajectory.session_id,
            "metadata": {
                "group_id": trajectory.group_id,
                "rollout_id": trajectory.rollout_id,
                **about(session, trace),
            },
        }


def _text(trace: Trace) -> str:
    content = trace.reply.get("content")
    return content if isinstance(content, str) else ""


def _status(session: Session, trace: Trace) -> Status:
    match session.trajectory.status:
        case "completed":
            truncated = bool(trace.turns) and trace.turns[-1].finish_reason == "length"
            return "truncated" if truncated else "completed"
        case "failed":
            return "failed"
        case _:
            return "aborted"


FORMAT = Format(
    name="slime",
    output="slime.jsonl",
    what="fields of slime's Sample",
    checked="schema-tested",
    rows=rows,
    sink=JsonLines,
)
