"""Signs in the messages of where a conversation comes from: the tool call that began it, the summary it begins with."""

from collections.abc import Iterable, Iterator
from itertools import islice

import orjson

from polar_mitm.trajectory.messages import mint_of, part_of, text_in
from polar_mitm.trajectory.seen import Seen, Session

TELLING = 12
"""Characters of a text that is not found in another one by chance."""
LOOKED_AT = 64
"""Calls among which a sub-agent's caller is looked for, the latest first."""


def caller_of(session: Session, call: Seen, callers: Iterable[Seen]) -> Seen | None:
    """The latest of the callers that asked for this sub-agent: its arguments hold the sub-agent's task.

    None when no arguments do. That a call waits for its tools says nothing: some harnesses do not wait for sub-agents.
    """
    told = [text_in(message) for message in session.messages(call) if message.get("role") == "user"]
    latest = islice(callers, LOOKED_AT)
    return next((other for other in latest if any(_holds(told, text) for text in _arguments(other))), None)


def quotes(session: Session, call: Seen, compaction: Seen) -> bool:
    """Whether a message of this conversation repeats most lines of the summary, or an assistant's message is it:
    opencode lets the summary answer a question that nobody asked."""
    lines = [line for line in map(str.strip, compaction.text.splitlines()) if len(line) >= TELLING]
    if not lines:
        return False
    messages = session.messages(call)
    said = "\n".join(text_in(message) for message in messages if message.get("role") != "assistant")
    if 2 * sum(line in said for line in lines) >= len(lines):
        return True
    answers = (text_in(message).strip() for message in messages if message.get("role") == "assistant")
    return compaction.text.strip() in answers


def summed_up(session: Session, compaction: Seen, turns: Iterable[Seen]) -> Seen | None:
    """The latest of the turns that this compaction's request tells of: what one said or did stands there."""
    messages = [message for message in session.messages(compaction) if message.get("role") != "system"]
    told = [text_in(message) for message in messages]
    minted = {name for message in messages for name in mint_of(message)}
    for turn in islice(turns, LOOKED_AT):
        said = [text for text in (turn.text.strip(), *_arguments(turn)) if len(text) >= TELLING]
        if turn.call_id in minted or any(text in one for text in said for one in told):
            return turn
    return None


def _holds(told: Iterable[str], text: str) -> bool:
    return len(text) >= TELLING and any(text in one or (len(one) >= TELLING and one in text) for one in told)


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
