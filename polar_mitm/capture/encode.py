"""Calls as JSON text: a line of `calls.jsonl`, and a call as a whole, as its flow bears it."""

import math
from typing import Any

from pydantic import ValidationError

from polar_mitm.capture.canonical import dumps, loads
from polar_mitm.capture.record import Call, CallLine


def encode(call: Call | CallLine) -> bytes:
    """JSON in UTF-8. What a log-probability may be and JSON has no number for is spelled out.

    Raises TypeError, ValueError and RecursionError for what is not JSON.
    """
    value: dict[str, Any] = call.model_dump(mode="json", by_alias=True)
    if call.response and not all(map(math.isfinite, call.response.logprobs)):
        value["response"]["logprobs"] = [_number(logprob) for logprob in call.response.logprobs]
    return dumps(value)


def decode_call(text: bytes) -> Call:
    """The inverse of `encode`. Raises ValueError."""
    try:
        return Call.model_validate(loads(text))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
