import json
from typing import Any

import pytest

from polar_mitm.chat import CallError, ChatRequest, NotCarried, Sampling, Text, ToolCall, Usage, User
from polar_mitm.engine.body import Outgoing, compose
from polar_mitm.engine.sample import Sample, decode_matches, holds_to, read_completion, read_sample
from tests.engine.answers import Json, completion, entry, hello

END = entry(2, "<|im_end|>", -2.5)


def outgoing(force_regex: str | None = None, max_tokens: int | None = None) -> Outgoing:
    request = ChatRequest((User((Text("Hi"),)),), sampling=Sampling(max_tokens=max_tokens))
    return compose(request, model="tiny", overrides={}, force_regex=force_regex)


def read(body: Json, sent: Outgoing | None = None) -> Sample:
    return read_sample(read_completion(json.dumps(body).encode(), "http://e"), sent or outgoing(), 1000)


def test_ids_logprobs_and_bytes_are_those_of_the_engine() -> None:
    sample = read(completion(entry(5, "Hel", -0.25), entry(6, "lo", -1.5), END, content="Hello"))
    assert sample.prompt_ids == list(range(1, 17))
    assert (sample.response_ids, sample.logprobs) == ([5, 6, 2], [-0.25, -1.5, -2.5])
    assert sample.token_bytes == [b"Hel", b"lo", b"<|im_end|>"]
    assert (sample.text, sample.reasoning, sample.tool_calls) == ("Hello", "", ())
    assert sample.usage == Usage(16, 3, cached_tokens=7)
    assert (sample.finish_reason, sample.stop_reason, sample.forced) == ("stop", None, [])
    assert (sample.invalid_reason, sample.decode_matches_text) == (None, True)


def test_a_tool_call_keeps_the_arguments_as_sampled_and_the_engines_finish_reason() -> None:
    text = '<tool_call>{"name":"run","arguments":{"x":"é"}}</tool_call>'
    sample = read(completion(entry(5, text), END, tool_calls=[("run", '{"x": "é"}')], finish_reason="stop"))
    assert sample.tool_calls == (ToolCall("chatcmpl-tool-0", "run", '{"x":"é"}'),)
    assert (sample.text, sample.finish_reason, sample.decode_matches_text) == ("", "stop", True)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_is_read_under_both_of_its_names(field: str) -> None:
    body = completion(entry(5, "hmm</think>ok"), END, content="ok")
    body["choices"][0]["message"]["reasoning"] = None
    body["choices"][0]["message"][field] = "hmm"
    assert (read(body).reasoning, read(body).decode_matches_text) == ("hmm", True)


def without(path: str, value: Any = None) -> Json:
    body = hello()
    *steps, last = path.split("/")
    target: Any = body
    for step in steps:
        target = target[int(step) if step.isdecimal() else step]
    target[last] = value
    return body


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (without("prompt_token_ids"), "the engine gave no prompt token ids"),
        (without("prompt_token_ids", []), "the engine gave no prompt token ids"),
        (without("prompt_token_ids", ["1"]), "the engine gave no prompt token ids"),
        (without("choices/0/token_ids"), "the engine gave no response token ids"),
        (without("choices/0/token_ids", [5, 6]), "2 response ids but 3 log-probabilities"),
        (without("choices/0/token_ids", [5, 7, 2]), "response id 1 is 7, but its log-probability is that of 6"),
        (without("choices/0/logprobs"), "the engine gave no log-probabilities"),
        (without("choices/0/logprobs/content"), "the engine gave no log-probabilities"),
        (
            without("choices/0/logprobs/content", [{"token": "a", "logprob": None}]),
            "the engine gave no log-probabilities",
        ),
    ],
)
def test_missing_or_unequal_token_data_makes_the_sample_invalid_and_keeps_the_answer(body: Json, reason: str) -> None:
    sample = read(body)
    assert (sample.text, sample.finish_reason, sample.invalid_reason) == ("Hello", "stop", reason)


def test_engines_that_write_the_tokens_text_are_not_held_against_the_ids() -> None:
    body = hello()
    for token, text in zip(body["choices"][0]["logprobs"]["content"], ("Hel", "lo", "<|im_end|>"), strict=True):
        token["token"] = text
    assert read(body).invalid_reason is None


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{"message": 1}]}'])
def test_what_is_no_completion_is_an_engine_error_that_names_the_url(raw: bytes) -> None:
    with pytest.raises(CallError, match="http://e did not answer with a chat completion") as caught:
        read_completion(raw, "http://e")
    assert caught.value.kind == "engine"


def test_a_forced_answer_is_marked_to_its_last_token() -> None:
    assert read(hello(), outgoing("Hello")).forced == [(0, 3)]


def test_asking_for_more_than_the_window_holds_is_noted_with_the_numbers() -> None:
    sample = read(hello(), outgoing(max_tokens=32_000).within(1000))
    why = "clamped from 32000 to 984: the window is 1000 tokens and the prompt takes 16"
    assert sample.not_carried == (NotCarried("max_tokens", why),)
    assert sample.sampling_sent == {"max_tokens": 1000}
    assert read(hello(), outgoing(max_tokens=984)).not_carried == ()


def test_a_clamp_note_names_no_less_than_was_sampled_where_the_engine_counts_otherwise() -> None:
    sample = read_sample(read_completion(json.dumps(hello()).encode(), "http://e"), outgoing(max_tokens=100), 10)
    (note,) = sample.not_carried
    assert note.why == "clamped from 100 to 3: the window is 10 tokens and the prompt takes 16"


CALL = ToolCall("c", "run", '{"x": 1}')
SAMPLED_CALL = '<tool_call>{"name": "run", "arguments": {"x":1}}</tool_call>'


@pytest.mark.parametrize(
    ("sampled", "text", "reasoning", "calls", "matches"),
    [
        ("Hello<|im_end|>", "Hello", "", [], True),
        ("Hel<|endoftext|>lo<|im_end|>", "Hello", "", [], True),
        ("ab STOP", "ab ", "", [], True),
        ("Hello", "Hallo", "", [], False),
        ("hmm</think>ok", "ok", "hmm", [], True),
        ("hmm</think>ok", "ok", "other", [], False),
        (SAMPLED_CALL, "", "", [CALL], True),
        (SAMPLED_CALL, "", "", [ToolCall("c", "run", '{"x": 2}')], False),
        (SAMPLED_CALL, "", "", [CALL, CALL], False),
        ("[run(x=1)]", "", "", [CALL], None),
        (None, "Hello", "", [], None),
    ],
)
def test_the_sampled_bytes_must_hold_what_the_engine_reports(
    sampled: str | None, text: str, reasoning: str, calls: list[ToolCall], matches: bool | None
) -> None:
    assert decode_matches(sampled, text, reasoning, calls) is matches


@pytest.mark.parametrize(
    ("body", "holds"),
    [
        (completion(entry(5, "o"), entry(6, "k"), END, content="ok"), True),
        (completion(entry(5, "o"), entry(6, "k"), content="ok", finish_reason="length"), True),
        (completion(entry(5, "o"), content="o", finish_reason="length"), True),
        (completion(entry(5, "other"), END, content="other"), False),
        (completion(entry(5, "ok"), entry(6, " more"), END, content="ok more"), False),
        (completion(entry(5, SAMPLED_CALL), tool_calls=[("run", '{"x": 1}')], finish_reason="length"), False),
    ],
)
def test_an_answer_holds_to_its_script_or_is_cut_short_without_a_call(body: Json, holds: bool) -> None:
    assert holds_to("ok", read(body)) is holds
