"""How a session ended: by the harness's exit status and by its calls, never by words it printed.

Some harnesses print errors beside a good run, and some end with exit code 0 though no call of theirs was answered.
"""

from collections.abc import Sequence
from pathlib import Path

from polar_mitm.capture.record import Call
from polar_mitm.capture.session import Ending
from polar_mitm.sandboxes.base import Exit

NO_FAULT = ("client_left", "limit")
"""Kinds of errors of a last call that say nothing against the session: the client left, or its limit ended its turn."""

LAST_WORDS = 400
"""Characters of what the harness printed that go into the reason of a session that did not complete."""

LARGEST_OUTPUT = 32 * 1024 * 1024
"""Bytes, from the end, of a harness's output that its answer is looked for in."""


def judge(
    ended: Exit, calls: Sequence[Call], *, steps: int, last_words: str, calls_model: bool = True
) -> tuple[Ending, str | None]:
    """The session's status and why. `steps` is the number of turns that its script fixes.

    A harness that ends without one call could not run: that is an error, not a failed attempt. `calls_model` is False
    for what runs in a harness's place and needs no model.
    """
    if ended.timed_out:
        return "timeout", f"stopped after {ended.seconds:.0f} s"
    if ended.over_limit and ended.code != 0:
        return "failed", ended.over_limit
    said = f": {last_words[-LAST_WORDS:]}" if last_words else ""
    if not calls and not calls_model:
        return ("completed", None) if ended.code == 0 else ("failed", f"exit code {ended.code}{said}")
    if not calls:
        without = " without one model call" if ended.code == 0 else ""
        return "error", f"exit code {ended.code}{without}{said}"
    turns = [call for call in calls if call.origin.kind in ("turn", "retry")] or calls
    failure = turns[-1].error
    if ended.code != 0:
        called = f"; its last call failed: {failure.what}" if failure and failure.kind not in NO_FAULT else ""
        return "failed", f"exit code {ended.code}{said}{called}"
    if failure and failure.kind not in NO_FAULT:
        return "failed", f"exit code 0 after a call that failed: {failure.what}"
    taken = sum(1 for call in calls if call.response and call.response.forced and call.response.tool_calls)
    if taken < steps:
        return "failed", f"{taken} of the script's {steps} steps were taken: does the harness offer the tool?"
    return "completed", None


def printed(path: Path) -> str:
    """The end of what a program printed into a file, whatever bytes it is. Empty when there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LARGEST_OUTPUT))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
