"""Chat messages as harnesses send them, in whatever form: their text, their tool calls, whose answer they are."""

from collections.abc import Iterator
from typing import Any

from polar_mitm.trajectory.seen import Seen


def text_in(message: dict[str, Any]) -> str:
    """The message's text, parts joined by newlines."""
    content = message.get("content")
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def calls_in(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The tool calls of a message."""
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def mint_of(message: dict[str, Any]) -> Iterator[str]:
    """The calls that the ids of the message's tool calls were minted by: polar appends two digits to the call's id."""
    for call in calls_in(message):
        if isinstance(name := call.get("id"), str):
            yield name[:-2]


def same_answer(message: dict[str, Any], call: Seen) -> bool:
    """Whether the message says what the call's response said: text, tools and arguments, whatever the ids."""
    told = [(part_of(made, "name"), part_of(made, "arguments")) for made in calls_in(message)]
    made = [(part_of(made, "name"), part_of(made, "arguments")) for made in call.tool_calls]
    return (message.get("content") or "") == call.text and told == made


def answers(message: dict[str, Any], call: Seen) -> bool:
    """Whether the message is that call's answer: by the ids of its tool calls, or else by its text."""
    if calls_in(message) or not call.text:
        return call.call_id in mint_of(message)
    return message.get("role") == "assistant" and same_answer(message, call)


def part_of(tool_call: dict[str, Any], name: str) -> Any:
    """`name` or `arguments` of a tool call; None when it has none."""
    function = tool_call.get("function")
    return function.get(name) if isinstance(function, dict) else None
