"""Comparing conversations: digests of what was said, and whether a reply came back as it was sampled. Pure.

A history is written anew by its client for each request. What may differ without being another conversation: blanks
around a reply's text, the way its arguments are written, defaults among them, and its thoughts, which most APIs do not
take back.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Self

from polar_mitm.chat import Assistant, ChatRequest, Message, Part, System, Text, Tool, ToolCall, ToolResult, User
from polar_mitm.json_text import loads
from polar_mitm.providers.common import client_arguments


@dataclass(slots=True, frozen=True)
class Frame:
    """What a prompt begins with beside its messages, and its system text."""

    tools: bytes
    thinking: bytes
    system: bytes

    @classmethod
    def of(cls, chat: ChatRequest) -> Self:
        # `strict` is not shown to the model.
        tools = [[tool.name, tool.description, tool.parameters] for tool in chat.tools]
        thinking = chat.thinking
        system = (message.text for message in chat.messages if isinstance(message, System))
        return cls(_digest(json.dumps(tools)), _digest(repr((thinking.enabled, thinking.effort))), _digest(*system))

    @property
    def start(self) -> bytes:
        """The digest of a conversation without a message."""
        return self.tools + self.thinking


def extended(before: bytes, message: Message) -> bytes:
    """The digest of a conversation with one more message. Thoughts make no difference."""
    return _digest(*_fields(message), before=before)


def same_reply(sampled: Assistant, given: Assistant, *, repaired: bool = False) -> bool:
    """Whether a reply in a history is the one that was sampled.

    `repaired`: its arguments were mended for the client, which sends them back so.
    """
    calls = zip(sampled.tool_calls, given.tool_calls, strict=False)
    return (
        len(sampled.tool_calls) == len(given.tool_calls)
        and all(_same_call(one, other, repaired) for one, other in calls)
        and _same_words(sampled, given)
    )


def same_words(sampled: Assistant, given: Assistant) -> bool:
    return sampled.text.strip() == given.text.strip()


def same_value(one: str, other: str) -> bool:
    """Whether two texts of arguments are one JSON value. Neither the order of members nor the way a number is written
    makes a difference."""
    if one == other:
        return True
    try:
        return _same(loads(one), loads(other))
    except (ValueError, RecursionError):
        return False


def same_arguments(sampled: str, given: str, tool: Tool | None) -> bool:
    """Whether a call's arguments in a history are the sampled ones: the same value, but for members that the model left
    out and its client filled in with the default that the tool's schema gives."""
    if same_value(sampled, given):
        return True
    properties = tool.parameters.get("properties") if tool else None
    if not isinstance(properties, dict):
        return False
    try:
        model, client = loads(sampled), loads(given)
        if not isinstance(model, dict) or not isinstance(client, dict):
            return False
        added = {name: value for name, value in client.items() if name not in model}
        defaults = {name: schema["default"] for name, schema in properties.items() if "default" in schema}
        return _same(model, {name: value for name, value in client.items() if name in model}) and all(
            name in defaults and _same(defaults[name], value) for name, value in added.items()
        )
    except (ValueError, RecursionError, TypeError):
        return False


def _same_words(sampled: Assistant, given: Assistant) -> bool:
    if given.reasoning and given.reasoning.strip() != sampled.reasoning.strip():
        return False
    if same_words(sampled, given):
        return True
    # Where a client would take thoughts alone for a broken answer, it was given them as text.
    alone = not sampled.tool_calls and not sampled.text.strip() and not given.reasoning
    return alone and given.text.strip() == (sampled.reasoning + sampled.text).strip()


def _same_call(sampled: ToolCall, given: ToolCall, repaired: bool) -> bool:
    if (sampled.id, sampled.name) != (given.id, given.name):
        return False
    if repaired or same_value(sampled.arguments, given.arguments):
        return True
    return _same(client_arguments(sampled.arguments), client_arguments(given.arguments))


def _same(one: Any, other: Any) -> bool:
    """Equality of JSON values; to Python, True is 1 as well."""
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
        case list(), list():
            return len(one) == len(other) and all(map(_same, one, other))
        case (bool(), _) | (_, bool()):
            return one is other
        case _:
            return bool(one == other)


def _fields(message: Message) -> Iterable[str]:
    match message:
        case System(text):
            yield from ("system", text)
        case User(parts):
            yield "user"
            yield from _of_parts(parts)
        case ToolResult(call_id, parts):
            yield from ("tool", call_id)
            yield from _of_parts(parts)
        case Assistant(text, _, calls):
            yield from ("assistant", text.strip())
            for call in calls:
                yield from (call.id, call.name, call.arguments)


def _of_parts(parts: Iterable[Part]) -> Iterable[str]:
    for part in parts:
        yield from ("text", part.text) if isinstance(part, Text) else ("image", part.url)


def _digest(*fields: str, before: bytes = b"") -> bytes:
    digest = sha256(before)
    for field in fields:
        # Clients send halves of characters, where they cut a text.
        content = field.encode(errors="surrogatepass")
        digest.update(b"%d:" % len(content))
        digest.update(content)
    return digest.digest()
