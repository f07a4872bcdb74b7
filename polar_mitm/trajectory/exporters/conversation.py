"""A trace as a conversation: which of its messages each turn sampled."""

from dataclasses import dataclass
from typing import Any

from polar_mitm.trajectory.trace import Trace, Turn

type Message = dict[str, Any]


@dataclass(slots=True, frozen=True)
class Said:
    """A message in Chat form, and the turn of this trace that sampled it, if one did."""

    message: Message
    turn: Turn | None = None


def conversation(trace: Trace) -> list[Said]:
    """The last call's messages and its reply, in order.

    Every turn continues the one before it, so the last turn is the reply and the others are the last assistant
    messages before it. A turn that is in no message, as when a harness joins two of its answers, gets an empty one.
    """
    messages = [*trace.messages, {"role": "assistant", "content": "", **trace.reply}]
    if not trace.turns:
        return [Said(message) for message in trace.messages]
    places = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
    shown = min(len(places), len(trace.turns))
    turns = dict(zip(places[-shown:], trace.turns[-shown:], strict=True))
    said = [Said(message, turns.get(place)) for place, message in enumerate(messages)]
    unseen = [Said({"role": "assistant", "content": ""}, turn) for turn in trace.turns[:-shown]]
    return [*said[: places[-shown]], *unseen, *said[places[-shown] :]]


def text(content: object) -> str:
    """A message's content as text; what is not text is named in brackets."""
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            return "\n".join(_part(part) for part in content)
        case _:
            return str(content)


def _part(part: object) -> str:
    match part:
        case str():
            return part
        case {"type": "text", "text": str(words)}:
            return words
        case {"type": str(kind)}:
            return f"[{kind}]"
        case _:
            return str(part)
