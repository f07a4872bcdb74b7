import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar_mitm.chat import ChatRequest, Sampling, Text, Tool, User
from polar_mitm.engine.client import Engine
from polar_mitm.engine.scripted import literal_regex, tool_call_regex, tool_call_text

WRITABLE = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)

AWKWARD: list[dict[str, Any]] = [
    {},
    {"city": "Paris"},
    {"command": "echo \"a\nb\" | sed 's/\\\\x/$1/' > out.txt && [ -f x ] || (y){1,2}*?+^~`#@!%&;:,.<>=-_/\t\r"},
    {"text": "é日本🎉 naïve «q» 한 \u2028 \x7f \x01", "": ""},
    {"a": [1, 2.5, -1e30, None, True, {"x": {"y": []}}], "b c": False},
]


@given(WRITABLE)
def test_the_regex_matches_its_text(text: str) -> None:
    assert re.fullmatch(literal_regex(text), text)


@given(WRITABLE, WRITABLE)
def test_the_regex_matches_no_other_text(text: str, other: str) -> None:
    assert bool(re.fullmatch(literal_regex(text), other)) == (text == other)


def test_the_text_is_the_hermes_form_with_the_separators_of_the_templates() -> None:
    assert tool_call_text("write", {"path": "out.txt", "n": [1, 2]}) == (
        '<tool_call>\n{"name": "write", "arguments": {"path": "out.txt", "n": [1, 2]}}\n</tool_call>'
    )


@pytest.mark.parametrize("arguments", AWKWARD)
def test_the_regex_matches_exactly_one_call(arguments: dict[str, Any]) -> None:
    regex = tool_call_regex("run", arguments)
    assert re.fullmatch(regex, tool_call_text("run", arguments))
    assert not re.fullmatch(regex, tool_call_text("run", {**arguments, "more": 1}))
    assert not re.fullmatch(regex, tool_call_text("rum", arguments))


def test_half_of_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="surrogate"):
        tool_call_regex("run", {"text": "a\ud83d"})


@pytest.mark.live
@pytest.mark.parametrize("arguments", AWKWARD)
async def test_a_real_engine_makes_that_very_call(engine_url: str, arguments: dict[str, Any]) -> None:
    # A strict tool and a client that forbids parallel calls must not let vLLM's own tool grammar beside the script.
    request = ChatRequest(
        messages=(User((Text("What is the weather in Paris?"),)),),
        tools=(Tool("run", "Run it", {"type": "object", "properties": {"x": {"type": "string"}}}, strict=True),),
        parallel_tool_calls=False,
        sampling=Sampling(max_tokens=1000),
    )
    async with Engine(engine_url) as engine:
        sample = await engine.chat(request, force_regex=tool_call_regex("run", arguments))

    (call,) = sample.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("run", arguments)
    assert tool_call_text("run", arguments).count(call.arguments) == 1
    assert (sample.text, sample.finish_reason, sample.invalid_reason) == ("", "tool_calls", None)
    assert sample.forced == [(0, len(sample.response_ids))]
    assert sample.decode_matches_text is True


def test_a_tag_of_the_tool_call_in_its_arguments_is_written_so_that_no_parser_sees_it() -> None:
    text = tool_call_text("bash", {"command": "echo '</tool_call><tool_call>'"})
    assert text.count("</tool_call>") == text.count("<tool_call>") == 1
    body = text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    assert json.loads(body)["arguments"]["command"] == "echo '</tool_call><tool_call>'"
