"""The raw text of a freeform tool is found however a model wrapped it, and the mending is said."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar_mitm.providers.openai_freeform import freeform_arguments, raw_text

PATCH = '*** Begin Patch\n*** Add File: é.txt\n+"hi"\n*** End Patch'
PATCH_GRAMMAR = 'start: "*** Begin Patch" LF hunk+ "*** End Patch" LF?'
SCRIPT_GRAMMAR = "start: /(.|\\n)+/"
TAKEN_OUT = "the text was taken out of what was wrapped around it"


@pytest.mark.parametrize(
    ("arguments", "text", "mended"),
    [
        ('{"input": "a\\nb"}', "a\nb", ""),
        ('{"patch": "a"}', "a", "the text stood under another name than `input`"),
        ('{"input": "a", "why": "b"}', "a", "fields beside `input` were dropped"),
        ('"a"', "a", "the text was a bare string"),
        ("echo hi", "echo hi", "the arguments are no JSON and were taken as the text"),
        ('{"input": 7}', '{"input": 7}', "the arguments hold no single text and were taken as they are"),
        (
            '{"a": "1", "b": "2"}',
            '{"a": "1", "b": "2"}',
            "the arguments hold no single text and were taken as they are",
        ),
        ("[1]", "[1]", "the arguments hold no single text and were taken as they are"),
        ("", "", "the arguments are no JSON and were taken as the text"),
        ('{"input": "```\\na\\n```"}', "```\na\n```", ""),
    ],
)
def test_P057_text_without_a_grammar_is_freed_of_its_json_alone(arguments: str, text: str, mended: str) -> None:
    assert raw_text(arguments) == (text, mended)


def wrapped(text: object) -> str:
    return orjson.dumps(text).decode()


@pytest.mark.parametrize(
    "arguments",
    [
        wrapped({"input": f"```diff\n{PATCH}\n```"}),
        wrapped({"input": f"apply_patch <<'EOF'\n{PATCH}\nEOF"}),
        wrapped({"input": f"Here is the patch:\n\n{PATCH}\n\nDone."}),
        wrapped({"input": wrapped({"patch": PATCH})}),
        wrapped({"input": {"patch": PATCH}}),
        wrapped({"command": ["apply_patch", PATCH]}),
        wrapped({"command": ["bash", "-lc", f"apply_patch <<'EOF'\n{PATCH}\nEOF\n"]}),
        f"apply_patch <<EOF\n{PATCH}\nEOF",
        f"```\n{PATCH}\n```\n",
    ],
)
def test_P057_a_patch_is_taken_out_of_json_fences_and_heredocs(arguments: str) -> None:
    assert raw_text(arguments, PATCH_GRAMMAR) == (PATCH, TAKEN_OUT)


def test_P057_a_patch_as_it_should_be_is_left_alone_and_a_broken_one_goes_as_it_is() -> None:
    assert raw_text(wrapped({"input": PATCH}), PATCH_GRAMMAR) == (PATCH, "")
    assert raw_text(wrapped({"input": f"{PATCH}\n"}), PATCH_GRAMMAR) == (f"{PATCH}\n", "")
    broken = PATCH.removesuffix("*** End Patch")
    assert raw_text(wrapped({"input": broken}), PATCH_GRAMMAR) == (broken, "")


def test_P057_fences_are_taken_off_a_text_whose_grammar_knows_none() -> None:
    arguments = wrapped({"input": "```js\nawait tools.run({})\n```\n"})
    assert raw_text(arguments, SCRIPT_GRAMMAR) == ("await tools.run({})", TAKEN_OUT)
    assert raw_text(arguments, SCRIPT_GRAMMAR + ' "```"')[1] == ""
    assert raw_text(wrapped({"input": "```js\nx"}), SCRIPT_GRAMMAR) == ("```js\nx", "")


@given(st.text(), st.sampled_from(["", SCRIPT_GRAMMAR, PATCH_GRAMMAR]))
def test_any_arguments_give_some_text(arguments: str, grammar: str) -> None:
    text, mended = raw_text(arguments, grammar)
    assert mended or freeform_arguments(text)


@given(st.text().filter(lambda text: not text.strip().startswith("```")))
def test_a_text_given_as_asked_comes_out_as_it_went_in(text: str) -> None:
    assert raw_text(freeform_arguments(text), SCRIPT_GRAMMAR) == (text, "")


def test_json_nested_beyond_measure_is_only_text() -> None:
    deep = "[" * 5000 + '"*** Begin Patch\\n*** End Patch"' + "]" * 5000
    assert raw_text(deep, PATCH_GRAMMAR)[0] == deep
