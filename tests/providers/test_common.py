"""What several providers share: argument texts, folded system texts, the list of what was not carried."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar_mitm.chat import CallError, NotCarried, Text, ToolCall
from polar_mitm.json_text import dumps, loads
from polar_mitm.providers.base import Fate, Request
from polar_mitm.providers.common import (
    INT64_MAX,
    Notes,
    arguments_object,
    arguments_text,
    bounded_integer,
    bounded_number,
    client_arguments,
    folded_system,
    header_ids,
    object_repairs,
    sent_arguments,
    settle,
    stop_strings,
)
from polar_mitm.providers.fields import Fields


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ('{"a": [1, "é"]}', {"a": [1, "é"]}),
        (' {"a":1}\n', {"a": 1}),
        ("", {}),
        ("null", {}),
        ("[]", None),
        ('"{}"', None),
        ('{"a": 1', None),
        ('{"a": NaN}', None),
        ('{"a": 1e400}', None),
        ('{"a": 36893488147419103233, "b": -9223372036854775809}', {"a": 2**65 + 1, "b": -(2**63) - 1}),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ('{"a": "\\ud800"}', None),
        ('{"a": ' + "[" * 250 + "]" * 250 + "}", None),
        ("[" * 100_000, None),
    ],
)
def test_arguments_stand_for_an_object_or_for_nothing(arguments: str, value: Any) -> None:
    assert arguments_object(arguments) == value


@given(st.text() | st.dictionaries(st.text(), st.integers() | st.floats() | st.text()).map(arguments_text))
def test_an_argument_object_can_always_be_written_as_json(arguments: str) -> None:
    value = arguments_object(arguments)
    assert value is None or loads(dumps({"input": value})) == {"input": value}


def test_argument_text_is_spaced_and_unescaped_as_models_write_it() -> None:
    assert arguments_text({"text": "hé", "lines": [1, 2.5, None], "x": {}}) == (
        '{"text": "hé", "lines": [1, 2.5, null], "x": {}}'
    )


@pytest.mark.parametrize(("arguments", "sent"), [("", "{}"), ("null", "{}"), (' {"a":1}', ' {"a":1}'), ("{", "{")])
def test_argument_text_is_sent_byte_for_byte_unless_it_says_nothing(arguments: str, sent: str) -> None:
    assert sent_arguments(arguments) == sent


def test_arguments_that_are_no_object_reach_a_client_under_a_key_of_their_own() -> None:
    assert client_arguments('{"a": 1}') == {"a": 1}
    assert client_arguments('{"a') == {"INVALID_JSON": '{"a'}


def test_what_a_client_gets_in_another_form_is_said_call_by_call() -> None:
    calls = (
        ToolCall("1", "a", '{"x": {"y": 1}, "y": 36893488147419103233}'),
        ToolCall("2", "b", ""),
        ToolCall("3", "c", '{"x"'),
        ToolCall("4", "d", '{"x": -1e400}'),
        ToolCall("5", "e", '{"x": [{"y": 1, "z": 2, "y": 1}]}'),
    )
    assert object_repairs(calls) == (
        "b: a call without arguments was given an empty object",
        "c: the arguments are no JSON object; the client is given them under INVALID_JSON",
        "d: the arguments are no JSON object; the client is given them under INVALID_JSON",
        "e: 'y' is written twice in one object; the last counts",
    )


FATES = {
    "a": Fate("carried"),
    "b": Fate("emulated", "otherwise"),
    "c": Fate("ignored", "no use"),
    "in.c": Fate("ignored", "no use inside"),
    "in.d": Fate("refused", "not here"),
}


def test_a_field_is_noted_if_the_table_ignores_or_does_not_know_it() -> None:
    notes = Notes()
    settle(Fields({"a": 1, "b": 1, "c": 1, "x": 1, "y": None}), FATES, {"c": (2, 3)}, notes)
    settle(Fields({"c": 1}, "l.3"), FATES, {}, notes, "in")
    assert notes.all() == (
        NotCarried("c", "no use"),
        NotCarried("x", "not a field that this API is known to have"),
        NotCarried("l.*.c", "no use inside"),
    )


def test_an_idle_value_of_an_ignored_field_is_not_noted() -> None:
    notes = Notes()
    settle(Fields({"c": [3]}), FATES, {"c": (2, [3])}, notes)
    assert notes.all() == ()


def test_a_field_that_the_table_refuses_is_refused_by_its_path() -> None:
    with pytest.raises(CallError, match=r"^l\.3\.d: not here$") as caught:
        settle(Fields({"d": 1}, "l.3"), FATES, {}, Notes(), "in")
    assert (caught.value.kind, caught.value.param) == ("invalid_request", "l.3.d")


def test_a_folded_system_text_is_wrapped_in_exactly_these_tags() -> None:
    assert folded_system("Be careful.") == Text("<system>\nBe careful.\n</system>")


def test_notes_count_each_field_and_reason_whatever_the_position() -> None:
    notes = Notes()
    notes.add("messages.3.content.12.x", "why")
    notes.add("messages.4.content.0.x", "why")
    notes.add("messages.4.content.0.x", "another why")
    notes.add("tools.web_search_20250305", "hosted")
    assert notes.all() == (
        NotCarried("messages.*.content.*.x", "why", times=2),
        NotCarried("messages.*.content.*.x", "another why"),
        NotCarried("tools.web_search_20250305", "hosted"),
    )


def test_only_the_named_headers_are_ids() -> None:
    request = Request("POST", "h", "/", headers={"x-session-id": "s", "authorization": "Bearer secret"})
    assert header_ids(request, ("x-session-id", "session-id")) == {"x-session-id": "s"}


def test_numbers_out_of_their_range_are_refused_by_name() -> None:
    fields = Fields({"n": 0, "big": INT64_MAX + 1, "t": 2.5})
    assert (bounded_integer(fields, "n", 0), bounded_integer(fields, "absent", 1)) == (0, None)
    for name, low in (("n", 1), ("big", 0)):
        with pytest.raises(CallError, match=rf"^{name}: must be at least {low} and fit into 64 bits$"):
            bounded_integer(fields, name, low)
    assert bounded_number(fields, "t", 0, 2.5) == 2.5
    with pytest.raises(CallError, match=r"^t: must be between 0 and 2$"):
        bounded_number(fields, "t", 0, 2)


def test_a_stop_string_must_say_something() -> None:
    assert stop_strings(Fields({"stop": ["a", "\n"]}), "stop") == ("a", "\n")
    assert stop_strings(Fields({}), "stop") == ()
    with pytest.raises(CallError, match="stop: a stop string must not be empty"):
        stop_strings(Fields({"stop": ["a", ""]}), "stop")
