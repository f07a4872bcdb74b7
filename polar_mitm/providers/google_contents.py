"""The conversation of a Google generateContent request, as Chat messages."""

import re
from base64 import b64decode
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from polar_mitm.chat import Assistant, Image, Message, Part, System, Text, ToolCall, ToolResult
from polar_mitm.providers.common import Notes, arguments_text
from polar_mitm.providers.google_fates import FATES, give_fates
from polar_mitm.providers.google_fields import ProtoFields
from polar_mitm.providers.turns import Turns

# The table's names for contents and parts.
CONTENT, PART = "contents.*", "contents.*.parts.*"

UNREADABLE_FILE = "[a file that this model cannot read was left out]"
LEFT_OUT = "[content that this model cannot read was left out]"

# Keys under which clients put the one text of a function's result.
RESULT_KEYS = ("output", "result", "error")


class _Waiting:
    """The model's latest calls that no result has answered yet, in the order they were made."""

    def __init__(self, calls: Iterable[ToolCall]) -> None:
        self.open = {call.id: call for call in calls}
        self._by_name: dict[str, deque[ToolCall]] = {"": deque(self.open.values())}
        for call in self.open.values():
            self._by_name.setdefault(call.name, deque()).append(call)

    def answered_by(self, response: ProtoFields) -> str:
        """The id of the call that this function response answers. Raises CallError when it answers none.

        By id where the client kept it. Else by order: the first open call of that name, so that two results of one
        function go to its two calls in turn.
        """
        call_id, name = response.text_or("id"), response.text_or("name")
        if call_id not in self.open:
            in_turn = self._by_name.get(name, deque())
            while in_turn and in_turn[0].id not in self.open:
                in_turn.popleft()
            if not in_turn:
                rule = "Please ensure that function response turn comes immediately after a function call turn"
                raise response.error("", f"no call of {name!r} is open. {rule}.")
            call_id = in_turn[0].id
        del self.open[call_id]
        return call_id


def messages_of(fields: ProtoFields, notes: Notes) -> tuple[Message, ...]:
    """The conversation. Adjacent contents of one side are one turn, as they are for Google.

    A content of the model's without anything in it is no turn.
    """
    contents = fields.repeated("contents")
    if not contents:
        raise fields.error("contents", "contents are required")
    conversation = Turns()
    conversation.add([System(text)] if (text := _system(fields, notes)) else [])
    calls: tuple[ToolCall, ...] = ()
    for from_model, adjacent in groupby(contents, key=_from_model):
        run = list(adjacent)
        if from_model:
            answer = _assistant(run, notes)
            calls = answer.tool_calls
            conversation.add([answer] if answer != Assistant() else [])
        else:
            results, parts = _user_turn(run, calls, notes)
            conversation.add(results)
            conversation.say(parts)
    messages = conversation.all()
    if not messages:
        raise fields.error("contents", "there is nothing in any content")
    if isinstance(messages[-1], Assistant):
        notes.add(fields.at("contents"), "the answer is a new message, it does not continue the model's last one")
    return messages


def _from_model(content: ProtoFields) -> bool:
    match content.text_or("role", "user").lower():
        case "model":
            return True
        case "user" | "function" | "tool":
            return False
        case role:
            raise content.error("role", f"unknown role {role!r}; it is one of user, model")


def _system(fields: ProtoFields, notes: Notes) -> str:
    if isinstance(instruction := fields.get("systemInstruction"), str):
        return instruction
    content = fields.child("systemInstruction")
    if not content:
        return ""
    give_fates(content, notes, "systemInstruction")
    texts = []
    for part in content.repeated("parts"):
        if part.has("text"):
            texts.append(part.text("text"))
        else:
            notes.add(part.path, "a system prompt has text only")
    return "\n\n".join(filter(None, texts))


def _user_turn(
    run: Iterable[ProtoFields], calls: Sequence[ToolCall], notes: Notes
) -> tuple[list[ToolResult], list[Part]]:
    """The results of the calls before it, in the order of the calls, and the other parts, in their order.

    Many chat templates tell results apart by their order alone. A call without a result, and a result without a call,
    are refused as Google refuses them.
    """
    waiting = _Waiting(calls)
    results: dict[str, ToolResult] = {}
    parts: list[Part] = []
    run = list(run)
    for content in run:
        give_fates(content, notes, CONTENT)
        before, given = len(results) + len(parts), content.repeated("parts")
        for part in given:
            give_fates(part, notes, PART)
            if response := part.child("functionResponse"):
                give_fates(response, notes, f"{PART}.functionResponse")
                call_id = waiting.answered_by(response)
                results[call_id] = ToolResult(call_id, tuple(_result_parts(response, notes)))
            else:
                parts.extend(_parts(part, notes))
        if given and len(results) + len(parts) == before:
            parts.append(Text(LEFT_OUT))
    if waiting.open:
        rule = "the number of function response parts is equal to the number of function call parts"
        names = ", ".join(call.name for call in waiting.open.values())
        raise run[0].error("", f"no response to {names}. Please ensure that {rule} of the function call turn.")
    if not parts and not results:
        raise run[0].error("parts", "contents.parts must not be empty")
    return [results[call.id] for call in calls], parts


def _id_from(path: str) -> str:
    """An id for a call that has none of its own: its position, `call_2_0`, which later contents do not change."""
    return "_".join(["call", *re.findall(r"\d+", path)])


def _result_parts(response: ProtoFields, notes: Notes) -> Iterator[Part]:
    result = response.object("response")
    match result and [*result.items()]:
        case None:
            yield Text("")
        case [(key, str(text))] if key in RESULT_KEYS:
            yield Text(text)
        case _:
            yield Text(arguments_text(result or {}))
    for part in response.children("parts"):
        give_fates(part, notes, PART)
        yield from _parts(part, notes)


def _parts(part: ProtoFields, notes: Notes) -> Iterator[Part]:
    """A part of the user's side, or of a function's result."""
    if part.has("text"):
        yield Text(part.text("text"))
    elif blob := part.child("inlineData"):
        give_fates(blob, notes, f"{PART}.inlineData")
        kind, data = blob.text("mimeType"), blob.text("data")
        if kind.startswith("image/"):
            # Google's own SDK writes the URL-safe alphabet, which a data: URL has not.
            yield Image(f"data:{kind};base64,{data.translate(STANDARD_ALPHABET)}")
        elif (text := _data_text(kind, data)) is not None:
            yield Text(text)
        else:
            notes.add(part.at("inlineData"), f"{kind}: the model reads text and images only")
            yield Text(UNREADABLE_FILE)
    elif part.has("fileData"):
        yield Text(UNREADABLE_FILE)
    else:
        _other_part(part, notes)


def _data_text(kind: str, data: str) -> str | None:
    """The text of inline data of a text type; None for anything else."""
    if not kind.startswith("text/") and kind != "application/json":
        return None
    try:
        return b64decode(data.translate(STANDARD_ALPHABET), validate=True).decode()
    except ValueError:
        return None


STANDARD_ALPHABET = str.maketrans("-_", "+/")


def _other_part(part: ProtoFields, notes: Notes) -> None:
    """A part that says nothing to a model here: what its table row says of Google's server tools, and signatures."""
    if not any(FATES.get(f"{PART}.{name}") for name in part.present()):
        raise part.error("", "a part needs one of text, inlineData, functionCall, functionResponse")


def _assistant(run: Iterable[ProtoFields], notes: Notes) -> Assistant:
    text: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    ids: set[str] = set()
    for content in run:
        give_fates(content, notes, CONTENT)
        for part in content.repeated("parts"):
            give_fates(part, notes, PART)
            # A streamed answer comes back as the pieces it was streamed in, so pieces join without a seam.
            if call := part.child("functionCall"):
                give_fates(call, notes, f"{PART}.functionCall")
                call_id = call.text_or("id")
                if not call_id or call_id in ids:
                    call_id = _id_from(part.path)
                ids.add(call_id)
                calls.append(ToolCall(call_id, call.text("name"), arguments_text(call.object("args") or {})))
            elif part.has("text") and part.flag("thought"):
                reasoning.append(part.text("text"))
            elif part.has("text"):
                text.append(part.text("text"))
            elif part.has("inlineData") or part.has("fileData"):
                notes.add(part.path, "a chat model's own turns hold text and calls only")
            else:
                _other_part(part, notes)
    return Assistant("".join(text), "".join(reasoning), tuple(calls))
