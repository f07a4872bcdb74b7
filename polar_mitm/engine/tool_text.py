"""Tool calls as the model wrote them: the hermes form `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

vLLM's hermes parser reads that text into JSON and writes the arguments anew: sampled `{"city":"x"}` reaches the client
as `{"city": "x"}`. What is here finds the sampled text again, so that argument strings pass through byte for byte.
Pure functions on text. It is no parser for engines: what vLLM did not call a tool call is none here either.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from polar_mitm.chat import ToolCall

OPENING: Final = "<tool_call>"
_WHITESPACE: Final = " \t\n\r"
_DECODER: Final = json.JSONDecoder()


@dataclass(slots=True, frozen=True)
class SampledCall:
    """A tool call in the sampled text; `arguments` is the exact source text of the arguments value."""

    name: str
    arguments: str


def sampled_calls(text: str) -> Iterator[SampledCall]:
    """The well-formed calls in the text, in order. A malformed one is passed over."""
    start = text.find(OPENING)
    while start >= 0:
        body = start + len(OPENING)
        if call := _call_at(text, body):
            yield call
        start = text.find(OPENING, body)


def pair(calls: Sequence[ToolCall], text: str) -> list[SampledCall | None]:
    """For each call that the engine reports, in order, the sampled call it was read from; None where there is none."""
    remaining = list(sampled_calls(text))
    pairs: list[SampledCall | None] = []
    for call in calls:
        place = next((index for index, sampled in enumerate(remaining) if _same_call(call, sampled)), None)
        if place is None:
            pairs.append(None)
        else:
            pairs.append(remaining[place])
            del remaining[: place + 1]
    return pairs


def with_sampled_arguments(calls: Sequence[ToolCall], text: str) -> tuple[ToolCall, ...]:
    """The calls with their arguments as sampled; a call that the text does not hold keeps the engine's string."""
    return tuple(
        replace(call, arguments=sampled.arguments) if sampled else call
        for call, sampled in zip(calls, pair(calls, text), strict=True)
    )


def _same_call(call: ToolCall, sampled: SampledCall) -> bool:
    return call.name == sampled.name and _same_json(call.arguments, sampled.arguments)


def _same_json(one: str, other: str) -> bool:
    # Compared as canonical text, for Python takes 1, 1.0 and True to be equal.
    try:
        return _canonical(one) == _canonical(other)
    except (ValueError, RecursionError):
        return False


def _canonical(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True)


def _call_at(text: str, index: int) -> SampledCall | None:
    try:
        spans = _members(text, index)
        name: Any = json.loads(text[slice(*spans["name"])])
        arguments = text[slice(*spans["arguments"])]
    except (ValueError, KeyError, RecursionError):
        return None
    return SampledCall(name, arguments) if isinstance(name, str) else None


def _members(text: str, index: int) -> dict[str, tuple[int, int]]:
    """Where each member's value of the JSON object at `index` begins and ends. ValueError where there is no object."""
    index = _expect(text, index, "{")
    spans: dict[str, tuple[int, int]] = {}
    while True:
        key, index = _DECODER.raw_decode(text, _expect(text, index, '"') - 1)
        start = _past_whitespace(text, _expect(text, index, ":"))
        _, end = _DECODER.raw_decode(text, start)
        # The last of two equal keys counts, as in json.loads, which vLLM reads the call with.
        spans[key] = (start, end)
        index = _past_whitespace(text, end)
        if text[index : index + 1] != ",":
            _expect(text, index, "}")
            return spans
        index += 1


def _expect(text: str, index: int, sign: str) -> int:
    index = _past_whitespace(text, index)
    if text[index : index + 1] != sign:
        raise ValueError(f"{sign!r} expected at {index}")
    return index + 1


def _past_whitespace(text: str, index: int) -> int:
    while index < len(text) and text[index] in _WHITESPACE:
        index += 1
    return index
