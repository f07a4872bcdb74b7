import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar_mitm.chat import ToolCall
from polar_mitm.engine.tool_text import SampledCall, pair, sampled_calls, with_sampled_arguments

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(max_size=6), VALUES, max_size=4)
GAPS = st.text(alphabet=" \t\n\r", max_size=3)


def as_vllm_reports(name: str, arguments: dict[str, Any]) -> ToolCall:
    return ToolCall("call-1", name, json.dumps(arguments, ensure_ascii=False))


@st.composite
def loosely_written(draw: st.DrawFn, arguments: dict[str, Any]) -> str:
    """The same object with other white space and other escapes than vLLM would write."""
    ascii_only = draw(st.booleans())
    members = [
        draw(GAPS)
        + json.dumps(key, ensure_ascii=ascii_only)
        + draw(GAPS)
        + ":"
        + draw(GAPS)
        + json.dumps(value, ensure_ascii=ascii_only, indent=draw(st.sampled_from([None, 1])))
        + draw(GAPS)
        for key, value in arguments.items()
    ]
    return "{" + (",".join(members) or draw(GAPS)) + "}"


@given(st.data(), ARGUMENTS)
def test_the_sampled_text_of_the_arguments_is_given_back_byte_for_byte(
    data: st.DataObject, arguments: dict[str, Any]
) -> None:
    source = data.draw(loosely_written(arguments))
    gap = data.draw(GAPS)
    members = [f'"name"{gap}: "run"', f'"arguments":{gap}{source}']
    if data.draw(st.booleans()):
        members.reverse()
    text = f"Let me see.<tool_call>{gap}{{{gap}{', '.join(members)}{gap}}}{gap}</tool_call><|im_end|>"

    (call,) = with_sampled_arguments([as_vllm_reports("run", arguments)], text)

    assert call == ToolCall("call-1", "run", source)


def test_arguments_stay_the_engines_own_where_the_text_says_another_value() -> None:
    text = '<tool_call>{"name":"run","arguments":{"x":1}}</tool_call>'
    for reported in ('{"x": 2}', '{"x": 1.0}', '{"x": true}', '{"x": 1, "y": 1}', "{broken"):
        call = ToolCall("c", "run", reported)
        assert with_sampled_arguments([call], text) == (call,)


def test_a_call_of_another_name_is_not_taken_for_it() -> None:
    call = ToolCall("c", "walk", '{"x": 1}')
    assert with_sampled_arguments([call], '<tool_call>{"name":"run","arguments":{"x":1}}</tool_call>') == (call,)


def test_several_calls_keep_their_order_and_each_its_own_text() -> None:
    text = (
        '<tool_call>{"name":"run","arguments":{"x":1}}</tool_call>\n'
        '<tool_call>{"name":"run","arguments":{ "x":1 }}</tool_call>'
        '<tool_call>{"name":"stop","arguments":{}}'
    )
    calls = [ToolCall("a", "run", '{"x": 1}'), ToolCall("b", "run", '{"x": 1}'), ToolCall("c", "stop", "{}")]
    assert [call.arguments for call in with_sampled_arguments(calls, text)] == ['{"x":1}', '{ "x":1 }', "{}"]


def test_a_closing_tag_inside_a_string_does_not_end_the_call() -> None:
    text = '<tool_call>{"name":"write","arguments":{"text":"a</tool_call>b"}}</tool_call>'
    assert list(sampled_calls(text)) == [SampledCall("write", '{"text":"a</tool_call>b"}')]


def test_the_last_of_two_equal_keys_counts_as_it_does_for_vllm() -> None:
    text = '<tool_call>{"name":"a","arguments":{},"name":"b","arguments":{"x":[]}}</tool_call>'
    assert list(sampled_calls(text)) == [SampledCall("b", '{"x":[]}')]


@pytest.mark.parametrize(
    "inside",
    ["", "{", '{"name":"run"}', '{"name":"run","arguments":{"x":}}', '{"name":1,"arguments":{}}', "[1]", "null",
     '{"name":"run","arguments":{"x":' + "[" * 100_000, '{"name" "run"}', '{"name":"run" "arguments":{}}'],
)  # fmt: skip
def test_malformed_calls_are_passed_over(inside: str) -> None:
    good = '<tool_call>{"name":"run","arguments":{}}</tool_call>'
    assert list(sampled_calls(f"<tool_call>{inside}</tool_call>{good}")) == [SampledCall("run", "{}")]


def test_a_call_that_the_text_does_not_hold_has_no_partner() -> None:
    assert pair([ToolCall("c", "run", "{}")], "no call here") == [None]
