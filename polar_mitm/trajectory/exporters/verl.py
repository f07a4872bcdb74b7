"""JSON lines with the fields of verl's `AgentLoopOutput`, a trace a line."""

from collections.abc import Iterator

from polar_mitm.trajectory.exporters.base import Format, Row, Session, Tally, trained_or_place
from polar_mitm.trajectory.exporters.canonical import about, reward
from polar_mitm.trajectory.exporters.sinks import JsonLines


def rows(session: Session, tally: Tally) -> Iterator[Row]:
    """A masked session has reward 0.0 and a mask of zeros: verl would score a row without a reward itself."""
    trajectory = session.trajectory
    for trace in trained_or_place(session, tally):
        yield {
            "prompt_ids": trace.prompt_ids,
            "response_ids": trace.response_ids,
            "response_mask": trace.loss_mask,
            "response_logprobs": trace.logprobs,
            "multi_modal_data": None,
            "reward_score": 0.0 if trajectory.masked else reward(session, trace),
            "num_turns": sum(message.get("role") != "system" for message in trace.messages) + 1,
            "metrics": {"generate_sequences": 0.0, "tool_calls": 0.0},
            "extra_fields": {
                "uid": trajectory.group_id,
                "rollout_id": trajectory.rollout_id,
                **about(session, trace),
            },
        }


FORMAT = Format(
    name="verl",
    output="verl.jsonl",
    what="fields of verl's AgentLoopOutput",
    checked="schema-tested",
    rows=rows,
    sink=JsonLines,
)
