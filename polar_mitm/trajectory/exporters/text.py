"""JSON of rows, for programs that are stricter than harnesses are."""

import json
from typing import Any

import orjson

from polar_mitm.capture.canonical import dumps


def line(row: dict[str, Any]) -> bytes:
    """One line of JSON. Lone surrogates (a harness cut an emoji in half) become U+FFFD: many readers refuse the line.

    Token ids are untouched by it: they were never made from this text.
    """
    try:
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        return json.dumps(whole(row), allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def packed(value: Any) -> str:
    """JSON text to stand in a column: byte for byte what it says, lone surrogates escaped."""
    return dumps(value).decode()


def whole(value: Any) -> Any:
    """The value with U+FFFD in place of lone surrogates, in keys too."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case list() | tuple():
            return [whole(item) for item in value]
        case dict():
            return {whole(key): whole(item) for key, item in value.items()}
        case _:
            return value
