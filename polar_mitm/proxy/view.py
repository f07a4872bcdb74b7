"""What stands on a call's flow: its record, for replay; a comment and a mark, for a person who looks at it."""

import logging
from collections.abc import Sequence

import orjson
from mitmproxy.flow import Flow
from mitmproxy.http import HTTPFlow

from polar_mitm.capture.encode import decode_call, encode
from polar_mitm.capture.record import SCHEMA, Call

logger = logging.getLogger(__name__)

RECORD = "polar"
"""In a flow's metadata: the call's record, as JSON."""
RECORD_SCHEMA = "polar_schema"
"""The schema version of that."""
LINE = "polar_line"
"""The number of the call's line in calls.jsonl, from 1; 0 when it could not be written there. Not before it is over."""
TOKENS = "polar_tokens"
"""The texts of the sampled tokens as the engine told them, a JSON list. For looking only."""


def annotate(
    flow: HTTPFlow, call: Call, token_bytes: Sequence[bytes] | None = None, *, line: int | None = None
) -> None:
    """Write the call onto its flow. To be called before the `response` hook; with the line once the call is over."""
    try:
        flow.metadata[RECORD] = encode(call).decode()
    except (TypeError, ValueError, RecursionError) as error:
        logger.error("polar: call %s is not on its flow, for it is not JSON: %s", call.identity.call_id, error)
        return
    flow.metadata[RECORD_SCHEMA] = SCHEMA
    if line is not None:
        flow.metadata[LINE] = line
    if token_bytes is not None:
        flow.metadata[TOKENS] = orjson.dumps([content.decode(errors="replace") for content in token_bytes]).decode()
    flow.comment = comment(call)
    flow.marked = mark(call)


def comment(call: Call, reward: float | None = None) -> str:
    """One line, the telling part first, for mitmweb's column is narrow.

    The turn of the conversation, tokens in and out, the mean logprob of what the model chose, what came; then the
    session, and its reward where it is known: a session is graded when its flows are saved already.
    """
    if call.error:
        return f"{call.error.fault}: {call.error.what}"
    response = call.response
    if not response:
        return call.origin.kind_reason if call.origin.kind == "retry" else "no answer"
    mean = f"{sum(response.chosen) / len(response.chosen):.2f}" if response.chosen else "-"
    came = ", ".join(tool["function"]["name"] for tool in response.tool_calls) or response.finish_reason
    which = f"turn {turn(call)}" if call.origin.kind == "turn" else call.origin.kind
    tokens = f"{len(call.prompt_ids)}→{len(response.response_ids)}"
    graded = "" if reward is None else f" · reward {reward:g}"
    return f"{which} {tokens} {mean} {came}{graded} · {call.identity.session_id}"


def recorded(flow: Flow) -> Call | None:
    """The call on a flow; None when it carries none. Raises ValueError when it can't be read."""
    if RECORD not in flow.metadata:
        return None
    version = flow.metadata.get(RECORD_SCHEMA, SCHEMA)
    if not isinstance(version, int) or version > SCHEMA:
        what = f"it has schema version {version}, and this polar reads up to {SCHEMA}"
        raise ValueError(f"{what} (install a newer polar-mitm)")
    return decode_call(str(flow.metadata[RECORD]).encode())


def built(call: Call) -> str:
    """How its prompt went to the engine."""
    if not call.engine or call.engine.tokens == "chat":
        return "as messages, which the engine rendered"
    if not call.built or call.built.from_call_id is None:
        why = call.built.why if call.built else ""
        return "as token ids, all of them rendered" + (f": {why}" if why else "")
    return f"as token ids, the first {call.built.ids:,} those of {call.built.from_call_id}, as they were sampled"


def turn(call: Call) -> int:
    """From 1: one more than the answers in the conversation so far."""
    return 1 + len([message for message in call.request.messages if message.get("role") == "assistant"])


def mark(call: Call) -> str:
    """An emoji name: red: failed; yellow: can't be trained on; blue: a scripted turn; green: all is well."""
    if call.error:
        return ":red_circle:"
    if not call.checks.valid:
        return ":yellow_circle:"
    return ":large_blue_circle:" if call.response and call.response.forced else ":green_circle:"
