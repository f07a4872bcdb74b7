"""Whether a call can be trained on: the ids and log-probabilities are all there. What it is worth is not asked here."""

import math

from polar_mitm.capture.record import Call, Checks

LARGEST_ID = 2**31 - 1
"""Token ids are int32 in every trainer's format."""


def verify(call: Call) -> Checks:
    """The call's checks with `valid` and `invalid_reason` computed from its ids and log-probabilities.

    The other fields of `call.checks` stay as they are. Never raises.
    """
    reason = _invalid_reason(call)
    return call.checks.model_copy(update={"valid": reason is None, "invalid_reason": reason})


def _invalid_reason(call: Call) -> str | None:
    response = call.response
    if response is None:
        return f"no answer: {call.error.what}" if call.error else "no answer"
    ids, logprobs = response.response_ids, response.logprobs
    if not call.prompt_ids:
        return "no prompt ids"
    if not ids:
        return "no response ids"
    if len(logprobs) != len(ids):
        return f"{len(logprobs)} logprobs for {len(ids)} response ids"
    for name, values in (("prompt", call.prompt_ids), ("response", ids)):
        if min(values) < 0 or max(values) > LARGEST_ID:
            return f"a {name} id is outside 0..{LARGEST_ID}"
    for place, logprob in enumerate(logprobs):
        if not math.isfinite(logprob) or logprob > 0:
            return f"the logprob of response id {place} is {logprob}"
    for start, end in response.forced:
        if not 0 <= start <= end <= len(ids):
            return f"the forced span {start}..{end} is outside the {len(ids)} response ids"
    return _fault_of_versions(response.weight_versions, len(ids))


def _fault_of_versions(spans: list[tuple[int, int, str]], length: int) -> str | None:
    """Where the engine says which weights sampled what, it says so of each id once."""
    at = 0
    for start, end, version in spans:
        if start != at or end < start:
            return f"the span {start}..{end} of the weights {version} does not begin where the one before ends, at {at}"
        at = end
    if spans and at != length:
        return f"the spans of weights end at {at}, and there are {length} response ids"
    return None
