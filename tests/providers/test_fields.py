"""Typed reading of a client's JSON: the type that was asked for, or an error that names the path."""

from typing import Any

import pytest

from polar_mitm.chat import CallError
from polar_mitm.providers.fields import MAX_DEPTH, Fields, deeper_than

BODY: dict[str, Any] = {
    "text": "hi",
    "flag": False,
    "integer": 3,
    "whole": 64.0,
    "number": 0.5,
    "nothing": None,
    "words": ["a", "b"],
    "object": {"inner": [{"deep": 1}, {"deep": "x"}]},
}
FIELDS = Fields.of_body(BODY)


def test_each_accessor_gives_the_value_it_names() -> None:
    assert FIELDS.text("text") == FIELDS.text_or("text", "else") == "hi"
    assert FIELDS.flag("flag") is False
    assert (FIELDS.integer("integer"), FIELDS.integer("whole")) == (3, 64)
    assert (FIELDS.number("number"), FIELDS.number("integer")) == (0.5, 3.0)
    assert FIELDS.texts("words") == ("a", "b")
    assert FIELDS.object("object") == BODY["object"]
    assert FIELDS.required("object") == FIELDS.child("object")


def test_an_absent_field_and_a_null_one_are_the_same() -> None:
    for name in ("nothing", "absent"):
        assert not FIELDS.has(name)
        assert FIELDS.text_or(name, "else") == "else"
        assert [FIELDS.flag(name), FIELDS.integer(name), FIELDS.number(name), FIELDS.object(name)] == [None] * 4
        assert (FIELDS.child(name), FIELDS.list(name), FIELDS.texts(name), [*FIELDS.children(name)]) == (
            None,
            [],
            (),
            [],
        )
        with pytest.raises(CallError, match=f"^{name}: field required$"):
            FIELDS.text(name)
        with pytest.raises(CallError, match=f"^{name}: field required$"):
            FIELDS.required(name)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: FIELDS.text("integer"), "integer: expected a string, got a number"),
        (lambda: FIELDS.text_or("words"), "words: expected a string, got a list"),
        (lambda: FIELDS.flag("text"), "text: expected a boolean, got a string"),
        (lambda: FIELDS.integer("number"), "number: expected an integer, got a number"),
        (lambda: FIELDS.integer("flag"), "flag: expected an integer, got a boolean"),
        (lambda: FIELDS.number("flag"), "flag: expected a number, got a boolean"),
        (lambda: FIELDS.list("object"), "object: expected a list, got an object"),
        (lambda: FIELDS.child("words"), "words: expected an object, got a list"),
        (lambda: [*FIELDS.children("words")], "words.0: expected an object, got a string"),
        (lambda: Fields({"l": ["a", None]}).texts("l"), "l.1: expected a string, got null"),
        (lambda: Fields({"n": 10**400}).number("n"), "n: the number is too large"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_name(read: Any, message: str) -> None:
    with pytest.raises(CallError) as caught:
        read()
    assert (caught.value.kind, caught.value.message) == ("invalid_request", message)
    assert caught.value.param == message.split(":")[0]


def test_a_path_grows_with_every_step_down() -> None:
    inner = [*FIELDS.required("object").children("inner")]
    assert [fields.path for fields in inner] == ["object.inner.0", "object.inner.1"]
    with pytest.raises(CallError, match=r"^object\.inner\.1\.deep: expected an integer, got a string$"):
        inner[1].integer("deep")


def test_others_are_the_fields_that_are_there_and_were_not_named() -> None:
    assert FIELDS.others(("text", "flag", "integer", "whole")) == ("number", "words", "object")


@pytest.mark.parametrize(("body", "word"), [([], "a list"), (None, "null"), ("x", "a string"), (1, "a number")])
def test_a_body_that_is_no_object_is_refused(body: Any, word: str) -> None:
    with pytest.raises(CallError) as caught:
        Fields.of_body(body)
    assert caught.value.message == f"the request body must be a JSON object, not {word}"
    assert caught.value.param is None


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = {"x": value} if level % 2 else [value]
    return value


def test_depth_is_counted_in_lists_and_objects() -> None:
    assert not deeper_than(1, 0)
    assert [deeper_than([[]], levels) for levels in (0, 1, 2)] == [True, True, False]
    assert not deeper_than(nested(MAX_DEPTH), MAX_DEPTH)
    assert deeper_than(nested(MAX_DEPTH + 1), MAX_DEPTH)
    assert deeper_than(nested(100_000), MAX_DEPTH)
