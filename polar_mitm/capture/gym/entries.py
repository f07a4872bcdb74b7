"""A call as the fields of Gym's `TokenEntry`, and back. Plain data: Gym is not imported.

An entry that Gym captured comes back exactly as it was; so does one that holds only the suffix of its prompt, though
the call here has all of it. A call that polar captured gives an entry with what Gym has fields for.
"""

from collections.abc import Mapping
from typing import Any, Final

from polar_mitm.capture.checks import verify
from polar_mitm.capture.record import Asked, Call, Checks, Delivery, EngineInfo, Failure, Identity, Origin, Response

type Fields = dict[str, Any]

PROVIDER: Final = "nemo-gym"
OURS: Final = (
    "rollout_id",
    "model_call_id",
    "model",
    "prompt_token_ids",
    "generation_token_ids",
    "generation_log_probs",
    "parent_call_id",
    "created_at",
)
"""Fields that the call record has a place of its own for."""


def to_call(fields: Fields, earlier: Mapping[str, Call]) -> Call:
    """`earlier` are the session's calls so far, by id. Raises ValueError for a suffix of a prompt that is not there."""
    parent, prompt = fields["parent_call_id"], fields["prompt_token_ids"]
    if fields["prompt_is_delta"]:
        if parent not in earlier:
            raise ValueError(f"its prompt continues call {parent}, which is not captured")
        prompt = _cumulative(earlier[parent]) + prompt
    call = Call(
        identity=_identity(fields["rollout_id"], fields["model_call_id"], fields["created_at"]),
        parent_call_id=parent,
        origin=Origin(provider=PROVIDER, path="", streamed=False),
        request=Asked(messages=[]),
        engine=EngineInfo(model=fields["model"]) if fields["model"] else None,
        prompt_ids=prompt,
        response=Response(
            text=_text(fields["output_items"]),
            response_ids=fields["generation_token_ids"],
            logprobs=fields["generation_log_probs"],
            finish_reason="unknown",
        ),
        checks=Checks(valid=True),
        delivery=Delivery(status="delivered"),
        imported={name: value for name, value in fields.items() if name not in OURS},
    )
    call.checks = verify(call)
    return call


def lost_call(rollout_id: str, model_call_id: str, now: float) -> Call:
    """Stands for a call that Gym could not capture."""
    failure = Failure(what="NeMo Gym could not capture this call", kind="not_captured", fault="engine")
    return Call(
        identity=_identity(rollout_id, f"lost-{model_call_id}", now),
        origin=Origin(provider=PROVIDER, path="", streamed=False),
        request=Asked(messages=[]),
        checks=Checks(valid=False, invalid_reason="it was not captured"),
        delivery=Delivery(status="delivered"),
        error=failure,
    )


def to_fields(call: Call, earlier: Mapping[str, Call]) -> Fields | None:
    """None for a call that is no entry: it was not sampled whole, or is a side request."""
    response = call.response
    if response is None or (call.imported is None and not (call.checks.valid and call.origin.kind == "turn")):
        return None
    fields = {
        "rollout_id": call.identity.session_id,
        "model_call_id": call.identity.call_id,
        "model": call.engine.model if call.engine else "",
        "prompt_token_ids": call.prompt_ids,
        "generation_token_ids": response.response_ids,
        "generation_log_probs": response.logprobs,
        "parent_call_id": call.parent_call_id,
        "created_at": call.identity.started_at,
    }
    if call.imported is None:
        return {**fields, **_captured_by_polar(call, response, earlier)}
    if call.imported["prompt_is_delta"]:
        parent = earlier[call.parent_call_id or ""]
        fields["prompt_token_ids"] = call.prompt_ids[len(_cumulative(parent)) :]
    return {**call.imported, **fields}


def _captured_by_polar(call: Call, response: Response, earlier: Mapping[str, Call]) -> Fields:
    """A parent is named only where its tokens are the beginning of this prompt: Gym then finds the same by itself."""
    proven = call.checks.prefix == "extends" and call.parent_call_id in earlier
    items = _items(response)
    return {
        "output_items": items,
        "token_item_index": len(items) - 1,
        "response_id": call.identity.call_id,
        "parent_call_id": call.parent_call_id if proven else None,
        "parent_resolution": "resolved" if proven else None,
        "prompt_is_delta": False,
    }


def _items(response: Response) -> list[Fields]:
    """The answer as items of the Responses API; at least one, for it bears the tokens."""
    calls = [
        {
            "type": "function_call",
            "call_id": call["id"],
            "name": call["function"]["name"],
            "arguments": call["function"]["arguments"],
        }
        for call in response.tool_calls
    ]
    if calls and not response.text:
        return calls
    return [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": response.text}]},
        *calls,
    ]


def _text(items: list[Fields]) -> str:
    contents = [item["content"] for item in items if isinstance(item.get("content"), list)]
    parts = [part for content in contents for part in content if isinstance(part, dict)]
    return "".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def _identity(rollout_id: str, call_id: str, at: float) -> Identity:
    return Identity(session_id=rollout_id, call_id=call_id, started_at=at, finished_at=at)


def _cumulative(call: Call) -> list[int]:
    return call.prompt_ids + (call.response.response_ids if call.response else [])
