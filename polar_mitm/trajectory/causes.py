"""What two requests of one conversation differ in, as the cause of a break. Pure, on Chat messages and tools."""

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from polar_mitm.json_text import loads
from polar_mitm.trajectory.messages import calls_in, part_of, text_in
from polar_mitm.trajectory.seen import Seen
from polar_mitm.trajectory.trace import Cause

type Message = dict[str, Any]
type Finding = tuple[Cause, str]
"""A cause, and one sentence: what was seen that names it."""

ROTATING = 3
"""Lines of a system text that may differ for it to be the same text with a line that changes (a date, a count)."""
SHOWN = 60
"""Characters of a text that are quoted."""

_CHANGING = re.compile(r"[0-9a-f]{8,}|\d+")
_THINK = re.compile(r"<think>.*?</think>\s*", re.DOTALL)


def of_tools(before: Sequence[Message], after: Sequence[Message]) -> Finding:
    """Of two lists of tools that are not the same."""
    old, new = _names(before), _names(after)
    added = [name for name in new if name not in old]
    gone = [name for name in old if name not in new]
    if added or gone:
        parts = [f"{len(names)} {how} ({_some(names)})" for how, names in (("added", added), ("gone", gone)) if names]
        return "tools_changed", f"the list of tools changed: {', '.join(parts)}"
    if old != new:
        return "tools_changed", "the order of the tools changed"
    changed = [name for name, one, two in zip(old, before, after, strict=True) if one != two]
    return "tools_changed", f"the definition of {_some(changed)} changed"


def of_system(old: Message, new: Message, before: Sequence[Message], after: Sequence[Message]) -> Finding:
    """Of two messages in one place, of which one at least is a system message; with all messages of both requests."""
    if old.get("role") != new.get("role"):
        if old in after and new in before:
            return "system_changed", "a system message moved to another place"
        return "system_changed", f"a system message was {'put in' if new.get('role') == 'system' else 'taken out'}"
    one, two = text_in(old).splitlines(), text_in(new).splitlines()
    pairs = [(left, right) for left, right in zip_longest(one, two, fillvalue="") if left != right]
    if pairs and len(one) == len(two) and len(pairs) <= ROTATING:
        same_shape = all(_CHANGING.sub("0", left) == _CHANGING.sub("0", right) for left, right in pairs)
        if same_shape or len(pairs) * 4 <= len(one):
            return "rotating_line", f"in the system text {_quote(pairs[0][0])} became {_quote(pairs[0][1])}"
    return "system_changed", f"the system text has {len(one)} and {len(two)} lines, of which {len(pairs)} differ"


def of_message(name: str, old: Message, new: Message) -> Finding:
    """Of two messages of one role that stand in the same place; `name` says which."""
    if _images(old) or _images(new):
        return "image", f"the images of {name} changed: {_images(old)} before, {_images(new)} now"
    if old.get("role") == "assistant":
        calls, came_back = calls_in(old), calls_in(new)
        return (
            _of_answer(name, text_in(old), _thinking(old), calls, new)
            or _of_calls(name, calls, came_back)
            or (
                "unknown",
                f"{name} says the same in another form",
            )
        )
    return _of_text(name, text_in(old), text_in(new))


def of_answer(parent: Seen, answer: Message) -> Finding:
    """What became of the parent's answer on its way back."""
    found = _of_answer("the answer", parent.text, parent.reasoning, parent.tool_calls, answer)
    if found:
        return found
    if parent.reasoning:
        return "reasoning_stripped", "the thinking came back, and the template does not render it as it was sampled"
    if parent.tool_calls:
        return "arguments_rerendered", "the arguments came back as they were, and the template renders them otherwise"
    return "retokenised", "the text came back as it was, and is cut into other tokens than were sampled"


def _of_answer(name: str, text: str, thinking: str, calls: Sequence[Message], answer: Message) -> Finding | None:
    kept, now = _thinking(answer), text_in(answer)
    if thinking and kept != thinking:
        return "reasoning_stripped", f"the thinking of {name} {'came back changed' if kept else 'was left out'}"
    if now != text:
        if "<think>" in text and _THINK.sub("", text).strip() == now.strip():
            return "reasoning_stripped", f"the thinking inside {name} was left out"
        return _of_text(name, text, now)
    return _of_calls(name, calls, calls_in(answer))


def _of_calls(name: str, old: Sequence[Message], new: Sequence[Message]) -> Finding | None:
    if len(old) != len(new):
        return "message_edited", f"{name} made {len(old)} tool calls, and came back with {len(new)}"
    for one, two in zip(old, new, strict=True):
        if part_of(one, "name") != part_of(two, "name"):
            return "message_edited", f"the call of {part_of(one, 'name')} came back as one of {part_of(two, 'name')}"
        left, right = part_of(one, "arguments"), part_of(two, "arguments")
        if left != right:
            same = _json(left) == _json(right)
            how = "are the same JSON in another text" if same else "came back with other values"
            return "arguments_rerendered", f"the arguments of {part_of(one, 'name')} {how}"
    return None


def _of_text(name: str, old: str, new: str) -> Finding:
    if old.strip() == new.strip():
        return "message_edited", f"{name} lost or gained blanks at its ends"
    if len(new) < len(old) and (old.startswith(new.rstrip(". \n…")) or len(new) * 4 < len(old)):
        return "truncation", f"{name} was cut from {len(old)} to {len(new)} characters"
    place = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    return "message_edited", f"from character {place} on {name} was {_quote(old[place:])} and is {_quote(new[place:])}"


def _thinking(message: Message) -> str:
    return str(message.get("reasoning") or message.get("reasoning_content") or "")


def _names(tools: Sequence[Message]) -> list[str]:
    return [str((tool.get("function") or {}).get("name")) for tool in tools]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _images(message: Message) -> int:
    content = message.get("content")
    return sum(part.get("type") == "image_url" for part in content) if isinstance(content, list) else 0


def _json(text: object) -> object:
    try:
        return loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


def _quote(text: str) -> str:
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "...")
