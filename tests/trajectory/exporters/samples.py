"""Sessions to export, as a builder makes them: a chain of turns, and what can be different about it."""

from typing import Any

from polar_mitm.capture.folder import SessionRecord
from polar_mitm.trajectory.exporters.base import Session
from polar_mitm.trajectory.trace import Ledger, Lineage, Trace, Trajectory, Turn

PROMPT = [1, 10, 11, 12]


def trace(
    session_id: str = "ses_a",
    number: int = 0,
    *,
    turns: int = 2,
    sampled: int = 3,
    context: int = 2,
    masked: bool = False,
    **fields: Any,
) -> Trace:
    """`turns` spans of `sampled` trained ids with `context` ids of mask 0 between them."""
    ids, mask, logprobs, spans = [], [], [], []
    for turn in range(turns):
        if turn:
            ids += range(500 + 10 * turn, 500 + 10 * turn + context)
            mask += [0] * context
            logprobs += [0.0] * context
        start = len(ids)
        ids += range(100 + 10 * turn, 100 + 10 * turn + sampled)
        mask += [0 if masked else 1] * sampled
        logprobs += [-0.1 * (place + 1) for place in range(sampled)]
        spans.append((start, len(ids)))
    made = {
        "trace_id": f"{session_id}/{number}",
        "session_id": session_id,
        "lineage": Lineage(kind="main"),
        "prompt_ids": PROMPT,
        "response_ids": ids,
        "loss_mask": mask,
        "logprobs": logprobs,
        "turns": [turn_of(f"{session_id}-{number}-{place}", *span) for place, span in enumerate(spans)],
        "messages": messages(turns),
        "tools": [TOOL],
        "reply": {"role": "assistant", "content": "Done."},
        "model": "tiny",
        "reward": 1.0,
    }
    return Trace.model_validate(made | fields)


def turn_of(call_id: str, start: int, end: int, **fields: Any) -> Turn:
    made = {
        "call_id": call_id,
        "start": start,
        "end": end,
        "relation": "extends",
        "kind": "turn",
        "started_at": 1000.0 + start,
        "finish_reason": "stop",
        "policy_version": "v1",
        "bin": "trained",
    }
    return Turn.model_validate(made | fields)


TOOL = {"type": "function", "function": {"name": "run", "description": "Runs.", "parameters": {"type": "object"}}}


def messages(turns: int) -> list[dict[str, Any]]:
    """The request of the last of these turns: each turn before it called a tool."""
    said: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Do it."}]
    for turn in range(turns - 1):
        function = {"name": "run", "arguments": '{"cmd": "ls"}'}
        call = {"id": f"call_{turn}", "type": "function", "function": function}
        said.append({"role": "assistant", "content": "I look.", "reasoning": "Where?", "tool_calls": [call]})
        said.append({"role": "tool", "tool_call_id": f"call_{turn}", "content": "a.txt"})
    return said


def session(session_id: str = "ses_a", *traces: Trace, **fields: Any) -> Session:
    """A session of task `t`; of one trace of two turns when none is given."""
    held = list(traces) or [trace(session_id, masked=fields.get("masked") is not None)]
    sampled = sum(turn.end - turn.start for one in held for turn in one.turns)
    made = {
        "session_id": session_id,
        "task_id": "t",
        "sample": 0,
        "group_id": "t",
        "rollout_id": session_id,
        "builder": "prefix_merging",
        "status": "completed",
        "harness": "pi",
        "reward": 1.0,
        "rewards": {"tests": 1.0},
        "traces": held,
        "ledger": Ledger(sampled=sampled, bins={"trained": sampled}, entries=[]),
    }
    trajectory = Trajectory.model_validate(made | fields)
    return Session(trajectory, record_of(trajectory))


def record_of(trajectory: Trajectory) -> SessionRecord:
    return SessionRecord(
        session_id=trajectory.session_id, started_at=1000.0, harness=trajectory.harness, harness_version="1.2.3"
    )


def masked(session_id: str = "ses_m", *traces: Trace, **fields: Any) -> Session:
    """A session that ran out of time."""
    held = traces or (trace(session_id, masked=True, reward=None),)
    return session(session_id, *held, status="timeout", masked="the session timed out", reward=None, **fields)


def without_traces(session_id: str = "ses_0") -> Session:
    made = session(session_id)
    bare = made.trajectory.model_copy(update={"traces": [], "masked": "no call was captured", "reward": None})
    return Session(bare, made.record)
