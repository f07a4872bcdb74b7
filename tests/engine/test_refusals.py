"""The texts are those of vLLM 0.32.0 as it gave them, and two of older releases."""

import json

import pytest

from polar_mitm.engine.refusals import Refusal, call_error, overflow, read_refusal

TOO_LONG = Refusal(
    400,
    "This model's maximum context length is 65536 tokens. However, your prompt contains at least 65537 input tokens, "
    "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
    "(parameter=input_tokens, value=65537)",
    "input_tokens",
)
TOO_MANY_CHARACTERS = Refusal(
    400,
    "This model's maximum context length is 8192 tokens. However, your prompt contains 999999 characters (more than "
    "81920 characters, which is the upper bound for 8192 input tokens). Please reduce the length of the input prompt.",
    "input_text",
)
ASKS_TOO_MUCH = Refusal(
    400,
    "max_tokens=128000 cannot be greater than max_model_len=65536. Please request fewer output tokens. "
    "(parameter=max_tokens, value=128000)",
    "max_tokens",
)
EXACTLY_FULL = Refusal(400, "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)", "max_tokens")
OLDER = Refusal(
    400,
    "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (1000 in the messages, "
    "8000 in the completion). Please reduce the length of the messages or completion.",
)
OLD = Refusal(
    400,
    "'max_tokens' or 'max_completion_tokens' is too large: 8000. This model's maximum context length is 8192 tokens "
    "and your request has 1000 input tokens (8000 > 8192 - 1000).",
)


def test_vllms_error_body_is_read() -> None:
    body = {"error": {"message": "no", "type": "BadRequestError", "param": "stop", "code": 400}}
    assert read_refusal(400, json.dumps(body).encode()) == Refusal(400, "no", "stop")
    assert read_refusal(404, b'{"detail":"Not Found"}') == Refusal(404, "Not Found")


def test_a_body_that_is_no_json_is_shown_shortened() -> None:
    assert read_refusal(502, b"<html>" + b"x" * 900).message == "<html>" + "x" * 494
    assert read_refusal(500, b"").message == "HTTP 500 without a text"
    assert read_refusal(500, b"[1]").message == "[1]"


@pytest.mark.parametrize("refusal", [TOO_LONG, TOO_MANY_CHARACTERS, EXACTLY_FULL])
def test_a_prompt_that_leaves_no_room_is_an_overflow(refusal: Refusal) -> None:
    assert refusal.overflows(100)
    assert refusal.overflows(None)
    assert refusal.room(100) is None


def test_an_answer_of_no_tokens_at_all_is_the_clients_own_mistake() -> None:
    assert not EXACTLY_FULL.overflows(0)


@pytest.mark.parametrize(
    ("refusal", "asked", "room"), [(ASKS_TOO_MUCH, 128_000, 65_536), (OLDER, 8000, 7192), (OLD, 8000, 7192)]
)
def test_asking_for_too_much_names_what_fits(refusal: Refusal, asked: int, room: int) -> None:
    assert refusal.room(asked) == room


def test_asking_for_less_is_no_use_where_that_was_not_the_fault() -> None:
    assert Refusal(400, "temperature must be in [0, 2], got 5.0.", "temperature").room(100) is None
    assert ASKS_TOO_MUCH.room(None) is None
    assert ASKS_TOO_MUCH.room(100) is None


def test_images_are_refused_by_a_text_model() -> None:
    assert Refusal(400, "tiny is not a multimodal model").refuses_images
    assert not TOO_LONG.refuses_images


@pytest.mark.parametrize(
    ("status", "message", "kind", "fault"),
    [
        (400, "temperature must be in [0, 2], got 5.0.", "invalid_request", "client"),
        (422, "field required", "invalid_request", "client"),
        (400, "EngineCore encountered an issue.", "engine", "engine"),
        (401, "Unauthorized", "no_model", "engine"),
        (404, "The model `x` does not exist.", "no_model", "engine"),
        (413, "too large", "too_large", "client"),
        (429, "slow down", "overloaded", "engine"),
        (503, "no more", "overloaded", "engine"),
        (500, "EngineCore encountered an issue. See stack trace (above) for the root cause.", "engine", "engine"),
        (502, "Bad Gateway", "engine", "engine"),
    ],
)
def test_the_status_says_whose_fault_it_is(status: int, message: str, kind: str, fault: str) -> None:
    error = call_error(Refusal(status, message, "p"), url="http://e", model="tiny")
    assert (error.kind, error.fault) == (kind, fault)
    assert message in error.detail
    assert "http://e" not in error.message


def test_a_missing_model_and_a_refused_key_name_the_url_and_the_mend_on_the_record_only() -> None:
    gone = call_error(Refusal(404, "no"), url="http://e", model="tiny")
    assert gone.detail.startswith("http://e does not serve 'tiny': no: was the engine restarted")
    assert gone.message == "the engine does not serve 'tiny'"
    assert "--api-key" in call_error(Refusal(401, "no"), url="http://e", model="tiny").detail


@pytest.mark.parametrize("prompt", [0, 500, 1000, 1001, 5000])
def test_an_overflow_never_names_a_number_that_fits(prompt: int) -> None:
    error = overflow(prompt, 1000)
    assert error.over and error.over[0] == max(prompt, 1001) and error.over[1] == 1000
    assert f"{error.over[0]} tokens long" in error.message


def test_an_overflow_of_an_unknown_window_names_no_number() -> None:
    error = overflow(5000, None)
    assert (error.message, error.over) == ("the prompt is longer than the model's window", None)


def test_the_bound_that_characters_are_held_against_is_no_count_of_the_prompt() -> None:
    assert TOO_MANY_CHARACTERS.prompt_tokens is None
    assert (TOO_LONG.prompt_tokens, OLD.prompt_tokens, OLDER.prompt_tokens) == (65537, 1000, 1000)


def test_how_many_stop_strings_the_engine_takes() -> None:
    said = """2 validation errors:
  {'type': 'string_type', 'loc': 'body.stop', 'msg': 'Input should be a valid string'}
  {'type': 'too_long', 'loc': 'body.stop', 'msg': 'List should have at most 4 items after validation, not 5'}"""
    assert Refusal(400, said).most_stops == 4
    assert Refusal(400, said.replace("body.stop", "body.tools")).most_stops is None
    assert Refusal(500, said).most_stops is None
