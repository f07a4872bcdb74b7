"""Calls for the capture tests: one plain builder, and random sessions whose conversations branch, retry and break."""

import math
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from polar_mitm.capture.log import verify
from polar_mitm.capture.record import (
    Asked,
    Built,
    Call,
    Checks,
    Delivery,
    EngineInfo,
    Failure,
    Identity,
    Lost,
    Origin,
    Response,
)

SYSTEM = {"role": "system", "content": "Be brief."}
READ_FILE = {
    "type": "function",
    "function": {"name": "read_file", "description": "", "parameters": {"type": "object", "properties": {}}},
}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def make_call(
    name: str,
    messages: Sequence[dict[str, Any]] = (SYSTEM, user("Hi.")),
    prompt_ids: Sequence[int] = (1, 2, 3),
    response_ids: Sequence[int] | None = (4, 5),
    *,
    logprobs: Sequence[float] | None = None,
    tools: Sequence[dict[str, Any]] = (READ_FILE,),
    parent: str | None = None,
) -> Call:
    """A call that is valid unless ids or logprobs say otherwise. `response_ids=None`: the engine never answered."""
    response = None
    if response_ids is not None:
        response = Response(
            text="Hello.",
            response_ids=list(response_ids),
            logprobs=[-0.25] * len(response_ids) if logprobs is None else list(logprobs),
            finish_reason="stop",
            stop_reason="end_turn",
            weight_versions=[(0, len(response_ids), "step-1")],
        )
    call = Call(
        identity=Identity(session_id="ses_1", call_id=name, started_at=1.5, finished_at=2.5),
        parent_call_id=parent,
        origin=Origin(provider="anthropic", path="/v1/messages", streamed=True, harness_ids={"thread": "t1"}),
        request=Asked(
            messages=list(messages),
            tools=list(tools),
            sampling_asked={"temperature": 1.0},
            sampling_sent={"temperature": 1.0, "logprobs": 0},
            not_carried=[Lost(field="thinking", why="the engine decides")],
        ),
        engine=EngineInfo(model="tiny") if response else None,
        prompt_ids=list(prompt_ids),
        built=Built(from_call_id=parent, ids=2, broken="window", why="it is too long"),
        response=response,
        checks=Checks(valid=True, decode_matches_text=True),
        delivery=Delivery(status="delivered", bytes_sent=10) if response else Delivery(status="aborted"),
        error=None if response else Failure(what="engine away", kind="engine", fault="engine", status=500),
    )
    call.checks = verify(call)
    return call


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
few_ids = st.lists(st.integers(0, 3), max_size=8)
"""A small vocabulary, so that prompts share beginnings by chance as well."""


@st.composite
def sessions(draw: st.DrawFn, max_calls: int = 10) -> list[Call]:
    calls: list[Call] = []
    for number in range(draw(st.integers(1, max_calls))):
        earlier = draw(st.sampled_from(calls)) if calls else None
        messages, prompt_ids = draw(_requests(earlier))
        call = make_call(
            f"call_{number}", messages, prompt_ids, draw(few_ids), tools=[{"x": draw(json_values)}, READ_FILE]
        )
        _spoil(call, draw(st.sampled_from(["", "", "", "no answer", "short", "infinite", "negative", "huge"])))
        call.checks = verify(call)
        calls.append(call)
    return calls


@st.composite
def _requests(draw: st.DrawFn, earlier: Call | None) -> tuple[list[dict[str, Any]], list[int]]:
    said = [{"role": "user", "content": draw(json_values)}]
    if earlier is None:
        return [SYSTEM, *said], draw(few_ids)
    history, sampled = earlier.request.messages, earlier.response.response_ids if earlier.response else []
    answered = [*history, assistant(draw(st.sampled_from(["a", "b"])))]
    match draw(st.sampled_from(["root", "continue", "continue", "retry", "diverge", "cut"])):
        case "continue":
            return answered + said, earlier.prompt_ids + sampled + draw(few_ids)
        case "retry":
            return history, earlier.prompt_ids
        case "diverge":
            kept = draw(st.integers(0, len(earlier.prompt_ids)))
            return answered + said, earlier.prompt_ids[:kept] + draw(few_ids)
        case "cut":
            return history[: draw(st.integers(1, len(history)))], draw(few_ids)
    return [SYSTEM, *said], draw(few_ids)


def _spoil(call: Call, fault: str) -> None:
    response = call.response
    assert response
    if fault == "no answer":
        call.response = None
    elif fault == "short":
        response.logprobs = response.logprobs[:-1]
    elif fault == "infinite":
        response.logprobs = [-math.inf for _ in response.logprobs]
    elif fault == "negative":
        response.response_ids = [-1 - token for token in response.response_ids]
    elif fault == "huge":
        call.prompt_ids = [*call.prompt_ids, 2**40]
