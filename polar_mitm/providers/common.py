"""The few translations that several providers share. What only one provider does is in that provider's own file."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from polar_mitm.chat import Json, NotCarried, Text, ToolCall
from polar_mitm.json_text import loads
from polar_mitm.providers.base import Fate, Request
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
        value = loads(arguments)
    except ValueError:
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


INVALID_JSON = "INVALID_JSON"


def client_arguments(arguments: str) -> Json:
    """The object that a client gets as a call's arguments.

    Text that is no JSON object comes under a key of its own, the one that Anthropic's documents give for it: the
    harness checks it against the tool's schema and tells the model what was wrong, where an answer without a call
    would end its turn.
    """
    value = arguments_object(arguments)
    return {INVALID_JSON: arguments} if value is None else value


def folded_system(text: str) -> Text:
    """A system text from the middle of a conversation, as part of a user turn.

    Many chat templates take a system message only at the beginning. Moving it there would change the prompt's prefix,
    so it stays where it was said.
    """
    return Text(f"<system>\n{text}\n</system>")


def object_repairs(calls: Sequence[ToolCall]) -> tuple[str, ...]:
    """What `client_arguments` mended, where the API takes a call's arguments as an object."""
    return tuple(f"{call.name}: {mended}" for call in calls if (mended := _object_repair(call.arguments)))


def _object_repair(arguments: str) -> str:
    if arguments.strip() in NO_ARGUMENTS:
        return "a call without arguments was given an empty object"
    if arguments_object(arguments) is None:
        return f"the arguments are no JSON object; the client is given them under {INVALID_JSON}"
    try:
        json.loads(arguments, object_pairs_hook=_distinct)
    except _Repeated as repeated:
        return f"{str(repeated)!r} is written twice in one object; the last counts"
    return ""


class _Repeated(Exception):
    pass


def _distinct(members: list[tuple[str, object]]) -> None:
    """Raises _Repeated where two members of an object have one name."""
    names: set[str] = set()
    for name, _ in members:
        if name in names:
            raise _Repeated(name)
        names.add(name)


class Notes:
    """Counts what was not carried, by field and reason.

    List positions become `*`: a conversation that grows by a message a turn would otherwise grow the list with it.
    """

    def __init__(self) -> None:
        self._times: Counter[tuple[str, str]] = Counter()

    def add(self, field: str, why: str) -> None:
        self._times[_INDEX.sub("*", field), why] += 1

    def all(self) -> tuple[NotCarried, ...]:
        return tuple(NotCarried(field, why, times) for (field, why), times in self._times.items())


# What the engine's client settles, and notes where it could not: the same for every provider.
WHERE_FORCED = Fate(
    "emulated", "held to where a call is forced, else noted: vLLM's grammar for it would falsify the log-probabilities"
)
ONE_CALL = Fate(
    "emulated",
    "a grammar holds to it where a call is forced; elsewhere the first call alone is passed on, which the record says",
)
SEED = Fate("emulated", "never sent, and noted: samples of one task must differ")
BUDGET = Fate("emulated", "thinking is asked for; the budget is noted: vLLM would end the thinking with its own tokens")

UNKNOWN = Fate("ignored", "not a field that this API is known to have")


def settle(
    fields: Fields, fates: Mapping[str, Fate], idle: Mapping[str, Sequence[object]], notes: Notes, under: str = ""
) -> None:
    """Gives each field of this object the fate that the provider's table has for it.

    `under` is the table's name for this object, empty for the body. An ignored field is noted, unless its value is an
    idle one, which asks for nothing beyond what happens anyway; so is a field that the table does not know. Raises
    CallError for a refused one. What is carried or emulated is read elsewhere.
    """
    for name in fields.present():
        key = f"{under}.{name}" if under else name
        fate = fates.get(key, UNKNOWN)
        if fate.kind == "refused":
            raise fields.error(name, fate.why)
        if fate.kind == "ignored" and fields.get(name) not in idle.get(key, ()):
            notes.add(fields.at(name), fate.why)


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


def stop_strings(fields: Fields, name: str) -> tuple[str, ...]:
    """A list of strings, each of which ends the answer; empty when absent."""
    stops = fields.texts(name)
    if "" in stops:
        raise fields.error(name, "a stop string must not be empty")
    return stops
