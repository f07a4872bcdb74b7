"""One line a call, for whoever watches a terminal; and what makes the text of others safe to show there."""

import logging
from typing import Final

from polar_mitm.capture.record import Call

logger = logging.getLogger(__name__)

LONGEST_NAME: Final = 60
LONGEST_ERROR: Final = 300
"""Characters. The record has all of it."""


def printable(text: str) -> str:
    """Harnesses and models write part of what is shown here: no escape sequence of theirs reaches the terminal."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "\ufffd" for sign in text)


def call_line(call: Call, model: str, *, session: bool = True) -> str:
    """Session unless it is left out, provider, model as asked, kind, tokens in and out, finish, seconds, and the error
    if there is one."""
    response = call.response
    fields = [
        *([call.identity.session_id] if session else []),
        call.origin.provider,
        _short(model, LONGEST_NAME) or "-",
        call.origin.kind,
        f"{len(call.prompt_ids)}→{len(response.response_ids) if response else 0}",
        _short(response.finish_reason, LONGEST_NAME) if response else "-",
        f"{call.identity.finished_at - call.identity.started_at:.1f} s",
    ]
    if call.error:
        fields.append(f"{call.error.fault}: {_short(call.error.what, LONGEST_ERROR)}")
    elif call.delivery.status != "delivered":
        fields.append(f"client: it left before the end ({call.delivery.status})")
    elif not call.checks.valid and call.origin.kind != "retry":
        fields.append(f"invalid: {_short(call.checks.invalid_reason or '', LONGEST_ERROR)}")
    return "  ".join(fields)


def log_call(call: Call, model: str) -> None:
    """Log the line: as a warning what the engine or polar did wrong, since a client is told little of it."""
    wrong = call.error is not None and call.error.fault != "client"
    logger.log(logging.WARNING if wrong else logging.INFO, "polar: %s", call_line(call, model))


def _short(text: str, limit: int) -> str:
    line = " ".join(printable(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
