"""Result rows as NeMo Gym writes them, a session a line, which NeMo RL and Gym's own tools read.

NeMo RL takes one contiguous chain: every item that carries tokens has a prompt that begins with all tokens before it.
It trains on every generated token, so an item here is a run of trained tokens and nothing else: tokens that a grammar
forced, or that were never delivered, stand in the next item's prompt. Chains that find no place are in `other_traces`.
"""

from collections.abc import Iterator
from typing import Any, Final

from polar_mitm.trajectory.exporters.base import Format, Row, Session, Tally, principal
from polar_mitm.trajectory.exporters.canonical import reward
from polar_mitm.trajectory.exporters.conversation import Said, conversation, text
from polar_mitm.trajectory.exporters.sinks import JsonLines
from polar_mitm.trajectory.trace import Trace

_FAILURE_KINDS: Final = {
    "timeout": "agent_timeout",
    "failed": "agent_run_error",
    "cancelled": "cancelled",
    "open": "session_lost",
}
"""Gym's words for the session's status. Others are `polar:<status>`."""


def rows(session: Session, tally: Tally) -> Iterator[Row]:
    """`mask_sample` says that the session is not to be trained on; its items then carry no tokens at all.

    `reward` is a number in Gym's schema. Where there is none it is 0.0, `mask_sample` is true, and why is beside it.
    """
    trajectory = session.trajectory
    main = principal(trajectory)
    said = conversation(main) if main else []
    first = next((place for place, one in enumerate(said) if one.turn), len(said))
    output = list(_output(main, said[first:])) if main else []
    delivered = sum(len(item.get("generation_token_ids", ())) for item in output)
    others = [_other(trace) for trace in trajectory.traces if trace is not main and trace.trained]
    scored = reward(session, main)
    why = trajectory.masked or ("no reward" if scored is None else None if delivered else "no trained token")
    tally.members[trajectory.group_id] += 1
    yield {
        "_ng_task_index": tally.group(trajectory.group_id),
        "_ng_rollout_index": tally.members[trajectory.group_id] - 1,
        "_ng_rollout_id": trajectory.rollout_id,
        "agent_ref": {"type": "responses_api_agents", "name": trajectory.harness or "polar"},
        "responses_create_params": {
            "input": [item for one in said[:first] for item in _items(one)],
            "tools": _tools(main),
            "model": main.model if main else None,
            "parallel_tool_calls": True,
        },
        "response": _response(session, main, output),
        "reward": scored if scored is not None else 0.0,
        "rewards": main.rewards if main and main.rewards else trajectory.rewards,
        "mask_sample": why is not None,
        "failure_kind": _failure_kind(session) if why else None,
        "failure_reason": why,
        "delivered_fraction": delivered / trajectory.ledger.sampled if trajectory.ledger.sampled else 0.0,
        "group_id": trajectory.group_id,
        "session_id": trajectory.session_id,
        "trace_id": main.trace_id if main else None,
        "status": trajectory.status,
        "advantage": main.advantage if main else None,
        "other_traces": others,
    }


def _failure_kind(session: Session) -> str:
    if session.record.poisoned:
        return "polar:poisoned"
    if session.record.evaluation_error:
        return "verifier_error"
    status = session.trajectory.status
    return _FAILURE_KINDS.get(status, "polar:untrained" if status == "completed" else f"polar:{status}")


def _response(session: Session, trace: Trace | None, output: list[Row]) -> Row:
    return {
        "id": f"resp_{trace.trace_id if trace else session.trajectory.session_id}",
        "object": "response",
        "created_at": int(trace.turns[0].started_at if trace else session.record.started_at),
        "model": (trace.model if trace else None) or "",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": _tools(trace),
    }


def _output(trace: Trace, said: list[Said]) -> Iterator[Row]:
    """The conversation from the first sampled message on. A turn's last item carries the last run of its tokens."""
    runs = list(_runs(trace.loss_mask))
    for one in said:
        items = _items(one)
        if one.turn is None:
            yield from items
            continue
        ended = [run for run in runs if one.turn.start < run[1] <= one.turn.end]
        for number, run in enumerate(ended[:-1]):
            yield _message("assistant", "", f"{one.turn.call_id}-{number}") | _tokens(trace, *run)
        if ended:
            items = items or [_message("assistant", "", one.turn.call_id)]
            items[-1] |= _tokens(trace, *ended[-1])
        yield from items


def _runs(mask: list[int]) -> Iterator[tuple[int, int]]:
    """Half-open spans of ones, each as long as it can be."""
    start: int | None = None
    for place, value in enumerate([*mask, 0]):
        if value and start is None:
            start = place
        elif not value and start is not None:
            yield start, place
            start = None


def _tokens(trace: Trace, start: int, end: int) -> Row:
    return {
        "prompt_token_ids": trace.prompt_ids + trace.response_ids[:start],
        "generation_token_ids": trace.response_ids[start:end],
        "generation_log_probs": trace.logprobs[start:end],
    }


def _items(one: Said) -> list[Row]:
    """A Chat message as items of the Responses API."""
    message = one.message
    name = one.turn.call_id if one.turn else "given"
    match message.get("role"):
        case "assistant":
            return list(_assistant(message, name))
        case "tool":
            output = text(message.get("content"))
            return [{"type": "function_call_output", "call_id": message.get("tool_call_id") or "", "output": output}]
        case role:
            role = role if role in ("system", "developer", "user") else "user"
            return [{"type": "message", "role": role, "content": text(message.get("content"))}]


def _assistant(message: dict[str, Any], name: str) -> Iterator[Row]:
    if reasoning := message.get("reasoning"):
        yield {"type": "reasoning", "id": f"rs_{name}", "summary": [{"type": "summary_text", "text": reasoning}]}
    calls = message.get("tool_calls") or []
    if (words := text(message.get("content"))) or not calls:
        yield _message("assistant", words, name)
    for call in calls:
        yield {
            "type": "function_call",
            "id": f"fc_{call['id']}",
            "call_id": call["id"],
            "name": call["function"]["name"],
            "arguments": call["function"]["arguments"],
            "status": "completed",
        }


def _message(role: str, words: str, name: str) -> Row:
    content = [{"type": "output_text", "text": words, "annotations": []}]
    return {"type": "message", "id": f"msg_{name}", "role": role, "status": "completed", "content": content}


def _tools(trace: Trace | None) -> list[Row]:
    return [
        {
            "type": "function",
            "name": tool["function"]["name"],
            "description": tool["function"].get("description", ""),
            "parameters": tool["function"].get("parameters") or {},
            "strict": bool(tool["function"].get("strict")),
        }
        for tool in (trace.tools if trace else [])
        if "function" in tool
    ]


def _other(trace: Trace) -> Row:
    fields = {"trace_id", "prompt_ids", "response_ids", "loss_mask", "logprobs", "reward", "weight", "advantage"}
    return trace.model_dump(include=fields | {"lineage"})


FORMAT = Format(
    name="nemo-gym",
    output="nemo-gym.jsonl",
    what="a result row a session, one contiguous chain",
    checked="loader-verified with nemo-gym's models and prefix check",
    rows=rows,
    sink=JsonLines,
)
