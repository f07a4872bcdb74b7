"""JSON text: whatever integers it holds, they are read and written as they are."""

import json
import math
import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar_mitm.json_text import dumps, loads

INTEGERS = [2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**308, 10**400, -(10**400), 10**4299]


@pytest.mark.parametrize("number", INTEGERS)
@pytest.mark.parametrize("form", ["%d", "[%d]", '{"a":%d}', '{"a": [1.5, %d\n]}', '{"a": -0.5, "b": %d}'])
def test_an_integer_of_any_size_is_read_exactly(number: int, form: str) -> None:
    value = loads(form % number)
    while isinstance(value, dict | list):
        value = list(value.values() if isinstance(value, dict) else value)[-1]
    assert value == number and isinstance(value, int)
    assert loads((form % number).encode()) == loads(form % number)


@pytest.mark.parametrize("number", INTEGERS)
def test_an_integer_of_any_size_is_written_exactly(number: int) -> None:
    assert dumps({"é": [number, 1.5]}) == f'{{"é":[{number},1.5]}}'.encode()
    assert dumps({"a": [number]}, indent=True) == f'{{\n  "a": [\n    {number}\n  ]\n}}'.encode()


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(2**70), 2**70) | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(values.filter(lambda value: "inf" not in json.dumps(value).lower()))
def test_what_is_written_is_read_back(value: Any) -> None:
    again = loads(dumps(value))
    assert again == value and repr(again) == repr(value)


@given(st.text() | values.map(json.dumps) | st.binary())
def test_it_reads_what_orjson_reads_and_refuses_what_orjson_refuses(text: Any) -> None:
    try:
        value = loads(text)
    except ValueError:
        with pytest.raises(ValueError):
            orjson.loads(text)
    else:
        # An integer out of 64 bits is a float to orjson.
        has_large = any(len(word) > 18 for word in _numbers(text))
        assert has_large or repr(value) == repr(orjson.loads(text))


def _numbers(text: str | bytes) -> list[str]:
    return re.findall("[0-9]+", text.decode() if isinstance(text, bytes) else text)


BIG = str(2**64 + 1)


@pytest.mark.parametrize(
    "text",
    [
        "1e400",
        "[-1e400, " + BIG + "]",
        "NaN",
        "[Infinity, " + BIG + "]",
        '["\\ud800", ' + BIG + "]",
        "[" + "1" * 400 + ".0, " + BIG + "]",
        "[" + BIG + "],",
        "[0" + BIG + "]",
        "[" + "1" * 5000 + "]",
        "[" * 5000 + BIG + "]" * 5000,
        "",
        "\ud800",
        BIG + "\ud800",
        b"\xff",
        b"[" + BIG.encode() + b', "\xff"]',
    ],
)
def test_what_is_no_json_or_out_of_range_is_refused_beside_a_large_integer_too(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        loads(text)


def test_floats_and_the_sign_of_zero_stay_and_the_last_of_two_members_counts() -> None:
    assert math.copysign(1, loads("-0.0")) == -1 and dumps(-0.0) == b"-0.0"
    assert repr(loads("[1e5, 1.0, 0.1234567890123456789012]")) == "[100000.0, 1.0, 0.12345678901234568]"
    assert loads(f'{{"a": 1, "a": {BIG}}}') == {"a": 2**64 + 1}


def test_half_of_a_surrogate_pair_and_what_is_no_json_value_are_not_written() -> None:
    for value in ("\ud800", {"a": ["\ud83d", 2**70]}, object(), {1: object()}):
        with pytest.raises((TypeError, ValueError)):
            dumps(value)
