"""Documents of the Agent Trajectory Interchange Format, v1.8: a folder with one file a session, `<session_id>.json`.

Traces of the conversation after the first (a fork, a rewind, a compaction) are `<session_id>.cont-<n>.json`, all
linked by `continued_trajectory_ref`. Sub-agents and side requests are embedded in the first document. A step that this
document's trace did not sample is marked as copied context.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from polar_mitm.trajectory.exporters.base import Format, Row, Session, Tally
from polar_mitm.trajectory.exporters.canonical import reward
from polar_mitm.trajectory.exporters.conversation import Said, conversation, text
from polar_mitm.trajectory.exporters.sinks import Documents
from polar_mitm.trajectory.trace import Trace, Turn

_VERSION: Final = "ATIF-v1.8"


def rows(session: Session, tally: Tally) -> Iterator[Row]:
    del tally
    name, traces = session.trajectory.session_id, session.trajectory.traces
    spine = [trace for trace in traces if trace.lineage.within == "main"] or traces[:1]
    apart = [trace for trace in traces if all(trace is not one for one in spine)]
    if not spine:
        yield {"name": name, "document": _document(session, None, None)}
    for number, trace in enumerate(spine):
        last = number + 1 == len(spine)
        document = _document(session, trace, None if last else f"{name}.cont-{number + 1}.json")
        if number == 0 and apart:
            document["subagent_trajectories"] = [_document(session, other, None) for other in apart]
        yield {"name": f"{name}.cont-{number}" if number else name, "document": document}


def _document(session: Session, trace: Trace | None, continued: str | None) -> Row:
    trajectory = session.trajectory
    steps = list(_steps(trace)) if trace else []
    document: Row = {
        "schema_version": _VERSION,
        "session_id": trajectory.session_id,
        "trajectory_id": trace.trace_id if trace else trajectory.session_id,
        "agent": {
            "name": trajectory.harness or "unknown",
            "version": session.record.harness_version or "unknown",
            "model_name": trace.model if trace else None,
            "tool_definitions": (trace.tools if trace else None) or None,
        },
        "steps": steps or [{"step_id": 1, "source": "system", "message": "No model call was captured."}],
        "final_metrics": {
            "total_prompt_tokens": sum(step["metrics"]["prompt_tokens"] for step in steps if "metrics" in step),
            "total_completion_tokens": sum(step["metrics"]["completion_tokens"] for step in steps if "metrics" in step),
            "total_steps": max(len(steps), 1),
        },
        "continued_trajectory_ref": continued,
        "extra": {
            "group_id": trajectory.group_id,
            "rollout_id": trajectory.rollout_id,
            "sample": trajectory.sample,
            "attempt": trajectory.attempt,
            "status": trajectory.status,
            "masked": trajectory.masked,
            "reward": reward(session, trace),
            "rewards": trace.rewards if trace and trace.rewards else trajectory.rewards,
            "lineage": trace.lineage.model_dump() if trace else None,
            "weight": trace.weight if trace and trace.trained else 0.0,
            "advantage": trace.advantage if trace else None,
            "exact": trace.exact if trace else None,
        },
    }
    return _without_nulls(document)


def _steps(trace: Trace) -> Iterator[Row]:
    steps: list[Row] = []
    calls: dict[str, Row] = {}
    for said in conversation(trace):
        role = said.message.get("role")
        called = calls.get(said.message.get("tool_call_id") or "") if role == "tool" else None
        if called is not None:
            result = {"source_call_id": said.message["tool_call_id"], "content": text(said.message.get("content"))}
            called.setdefault("observation", {"results": []})["results"].append(result)
            continue
        step = _agent(trace, said) if role == "assistant" else _given(said.message)
        step = {"step_id": len(steps) + 1, **step}
        steps.append(step)
        calls |= {call["tool_call_id"]: step for call in step.get("tool_calls", ())}
    yield from steps


def _given(message: dict[str, Any]) -> Row:
    source = "system" if message.get("role") in ("system", "developer") else "user"
    step: Row = {"source": source, "message": text(message.get("content"))}
    if message.get("role") == "tool":
        step["extra"] = {"tool_call_id": message.get("tool_call_id")}
    return step


def _agent(trace: Trace, said: Said) -> Row:
    message, turn = said.message, said.turn
    step: Row = {
        "source": "agent",
        "message": text(message.get("content")),
        "reasoning_content": message.get("reasoning") or None,
        "tool_calls": [_call(call) for call in message.get("tool_calls") or []] or None,
    }
    if turn is None:
        step["is_copied_context"] = True
    else:
        step["timestamp"] = datetime.fromtimestamp(turn.started_at, UTC).isoformat()
        step["llm_call_count"] = 1
        step["metrics"] = _metrics(trace, turn)
    return _without_nulls(step)


def _call(call: dict[str, Any]) -> Row:
    """ATIF wants the arguments parsed; text that is no JSON object goes beside them as it is."""
    written = call["function"]["arguments"]
    named = {"tool_call_id": call["id"], "function_name": call["function"]["name"]}
    try:
        arguments = orjson.loads(written)
    except orjson.JSONDecodeError:
        arguments = None
    if isinstance(arguments, dict):
        return {**named, "arguments": arguments}
    return {**named, "arguments": {}, "extra": {"arguments": written}}


def _metrics(trace: Trace, turn: Turn) -> Row:
    prompt = trace.prompt_ids + trace.response_ids[: turn.start]
    return {
        "prompt_tokens": len(prompt),
        "completion_tokens": turn.end - turn.start,
        "prompt_token_ids": prompt,
        "completion_token_ids": trace.response_ids[turn.start : turn.end],
        "logprobs": trace.logprobs[turn.start : turn.end],
        "extra": {
            "loss_mask": trace.loss_mask[turn.start : turn.end],
            **turn.model_dump(include={"call_id", "relation", "kind", "bin", "finish_reason", "policy_version"}),
            "weight_versions": turn.weight_versions,
            "logprobs_mode": turn.logprobs_mode,
            "sampling": turn.sampling,
            "reward": turn.reward,
        },
    }


def _without_nulls(row: Row) -> Row:
    return {name: value for name, value in row.items() if value is not None}


FORMAT = Format(
    name="atif",
    output="atif",
    what="a folder of ATIF v1.8 documents, a session a file",
    checked="loader-verified with harbor",
    rows=rows,
    sink=Documents,
    one_model=False,
)
