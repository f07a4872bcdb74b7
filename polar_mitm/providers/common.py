"""The few translations that several providers share. What only one provider does is in that provider's own file."""

import json

import orjson

from polar_mitm.chat import Json, Text, ToolCall
from polar_mitm.providers.fields import MAX_DEPTH, deeper_than

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


def raw_call(call: ToolCall) -> str:
    """A call whose arguments are no JSON object, as text to show: such APIs have no place for it in a tool call."""
    return f"{call.name}({call.arguments})"


def folded_system(text: str) -> Text:
    """A system text from the middle of a conversation, as part of a user turn.

    Many chat templates take a system message only at the beginning. Moving it there would change the prompt's prefix,
    so it stays where it was said.
    """
    return Text(f"<system>\n{text}\n</system>")
