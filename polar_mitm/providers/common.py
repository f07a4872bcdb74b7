"""The few translations that several providers share. What only one provider does is in that provider's own file."""

import json
import re
from collections.abc import Sequence

import orjson

from polar_mitm.chat import Json, NotCarried, Text, ToolCall
from polar_mitm.providers.base import Request
from polar_mitm.providers.fields import MAX_DEPTH, Fields, deeper_than

# Engines keep seeds and token counts in 64 signed bits; a larger number would fail there, far from the field at fault.
INT64_MAX = 2**63 - 1

_INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)")

# What models write for a call without arguments.
NO_ARGUMENTS = ("", "null")


def arguments_object(arguments: str) -> Json | None:
    """The object that a call's argument text stands for; None when it is no JSON object, or one too deep to send on."""
    if arguments.strip() in NO_ARGUMENTS:
        return {}
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) and not deeper_than(value, MAX_DEPTH) else None


def arguments_text(value: Json) -> str:
    """Argument text for a call that a client's history holds as an object.

    Spaced and unescaped, the form models themselves write a call in, so that a replayed call renders as it was sampled.
    """
    return json.dumps(value, ensure_ascii=False)


def sent_arguments(arguments: str) -> str:
    """The argument text as a client gets it: byte for byte, except that a call without arguments says so in JSON."""
    return "{}" if arguments.strip() in NO_ARGUMENTS else arguments


def raw_call(call: ToolCall) -> str:
    """A call whose arguments are no JSON object, as text to show: such APIs have no place for it in a tool call."""
    return f"{call.name} {call.arguments}"


def folded_system(text: str) -> Text:
    """A system text from the middle of a conversation, as part of a user turn.

    Many chat templates take a system message only at the beginning. Moving it there would change the prompt's prefix,
    so it stays where it was said.
    """
    return Text(f"<system>\n{text}\n</system>")


class Notes:
    """Collects what was not carried, each field once.

    List positions become `*`: a conversation that grows by a message a turn would otherwise grow the list with it.
    """

    def __init__(self) -> None:
        self._whys: dict[str, str] = {}

    def add(self, field: str, why: str) -> None:
        self._whys.setdefault(_INDEX.sub("*", field), why)

    def all(self) -> tuple[NotCarried, ...]:
        return tuple(NotCarried(field, why) for field, why in self._whys.items())


def header_ids(request: Request, names: Sequence[str]) -> dict[str, str]:
    """The ids a harness put into the request's headers, by header name."""
    return {name: request.headers[name] for name in names if name in request.headers}


def bounded_integer(fields: Fields, name: str, low: int) -> int | None:
    value = fields.integer(name)
    if value is not None and not low <= value <= INT64_MAX:
        raise fields.error(name, f"must be at least {low} and fit into 64 bits")
    return value


def bounded_number(fields: Fields, name: str, low: float, high: float) -> float | None:
    value = fields.number(name)
    if value is not None and not low <= value <= high:
        raise fields.error(name, f"must be between {low:g} and {high:g}")
    return value
