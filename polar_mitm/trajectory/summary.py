"""Signs in the messages of where a conversation comes from: the tool call that began it, the summary it begins with."""

from collections.abc import Collection, Iterable, Iterator
from itertools import islice

import orjson

from polar_mitm.trajectory.messages import part_of, text_in
from polar_mitm.trajectory.seen import Seen, Session

TELLING = 12
"""Characters of a text that is not found in another one by chance."""
LOOKED_AT = 64
"""Calls among which a sub-agent's caller is looked for, the latest first."""


def caller_of(session: Session, call: Seen, callers: Iterable[Seen], followed: Collection[str]) -> Seen | None:
    """The call that asked for this sub-agent: its arguments hold the sub-agent's task.

    Without such a sign it is the only one that waits for its tools (no call in `followed`), None when several do.
    """
    latest = list(islice(callers, LOOKED_AT))
    task = next((text_in(message) for message in session.messages(call) if message.get("role") == "user"), "")
    named = [other for other in latest if any(_holds(task, text) for text in _arguments(other))]
    waiting = [other for other in latest if other.call_id not in followed]
    return named[0] if named else waiting[0] if len(waiting) == 1 else None


def quotes(session: Session, call: Seen, compaction: Seen) -> bool:
    """Whether a message of this conversation repeats most lines of the summary."""
    lines = [line for line in map(str.strip, compaction.text.splitlines()) if len(line) >= TELLING]
    if not lines:
        return False
    said = "\n".join(text_in(message) for message in session.messages(call) if message.get("role") != "assistant")
    return 2 * sum(line in said for line in lines) >= len(lines)


def _holds(task: str, text: str) -> bool:
    return len(text) >= TELLING and bool(task) and (text in task or task in text)


def _arguments(call: Seen) -> Iterator[str]:
    for tool_call in call.tool_calls:
        try:
            yield from _texts(orjson.loads(part_of(tool_call, "arguments") or "null"))
        except (TypeError, orjson.JSONDecodeError):
            continue


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value.strip()
        case dict():
            for inner in value.values():
                yield from _texts(inner)
        case list():
            for inner in value:
                yield from _texts(inner)
