"""JSON text and content hashes of the call log. Not a schema: any JSON value goes through."""

import hashlib
import json
from typing import Any

import orjson

from polar_mitm import json_text

HASH_CHARACTERS = 32
"""128 bits of SHA-256: two of 2**40 different bodies collide with a chance below 2**-48."""


def dumps(value: object) -> bytes:
    """Compact UTF-8 JSON in the key order of `value`. Raises TypeError or ValueError for what JSON cannot hold."""
    try:
        return json_text.dumps(value)
    except ValueError:
        return _plain(value, sort_keys=False)


def loads(text: bytes) -> Any:
    """The inverse of `dumps`. Raises ValueError."""
    try:
        return json_text.loads(text)
    except ValueError:
        try:
            return json.loads(text)
        except RecursionError as error:
            raise ValueError("nested too deep") from error


def content_hash(body: dict[str, Any]) -> str:
    """The name of a message or tool: 32 hex characters that do not depend on the order of object keys."""
    try:
        text = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        text = _plain(body, sort_keys=True)
    return hashlib.sha256(text).hexdigest()[:HASH_CHARACTERS]


def _plain(value: object, *, sort_keys: bool) -> bytes:
    """The standard library's JSON, in ASCII: it keeps lone surrogates and integers over 64 bits, which orjson refuses.

    Harnesses send lone surrogates when they cut tool output in the middle of an emoji.
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":"), sort_keys=sort_keys).encode("ascii")
