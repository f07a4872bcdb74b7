"""JSON text read and written without loss: integers of any size, which orjson reads as floats and does not write.

It knows no schema and does no I/O. Numbers with a fraction or an exponent are 64-bit floats, as they are to nearly
every JSON reader; of two members of one name the last counts.
"""

import json
import re
from typing import Any, Final

import orjson

_MARKS: Final = bytes(0x30 if 0x30 <= byte <= 0x39 else byte if byte == 0x2E else 0x20 for byte in range(256))
"""Digits to 0, all but the point to blanks. To translate and find costs about as much as orjson does, and a regular
expression for the digits 15 times as much."""
_LONG: Final = b"0" * 19
"""The shortest integers outside 64 bits, negative ones, have 19 digits."""
_LONG_DIGITS: Final = re.compile(rb"[0-9]{19,}")


def loads(text: bytes | str) -> Any:
    """The value of a JSON text in UTF-8. Raises ValueError.

    Strict: NaN, a float that is out of range, half of a surrogate pair and an integer of more than 4300 digits are
    errors.
    """
    content = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    marks = content.translate(_MARKS)
    if b" " + _LONG not in marks and not marks.startswith(_LONG):
        return orjson.loads(content)
    try:
        # What the stdlib reads and JSON has not is refused here first.
        orjson.loads(content)
    except orjson.JSONDecodeError:
        # To orjson an integer of 309 digits is out of range too.
        orjson.loads(_LONG_DIGITS.sub(b"1", content))
    try:
        return json.loads(content, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def dumps(value: object, *, indent: bool = False) -> bytes:
    """UTF-8 JSON in the key order of `value`, compact or indented by two.

    Raises TypeError or ValueError for what it cannot hold: no value of JSON's, half of a surrogate pair.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else None)
    except TypeError:
        form: dict[str, Any] = {"indent": 2} if indent else {"separators": (",", ":")}
        return json.dumps(value, ensure_ascii=False, allow_nan=False, **form).encode()


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"a number is out of range: {text:.40}")
    return value
