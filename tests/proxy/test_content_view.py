"""The content view `Polar tokens`: what a person sees of a call on its flow, and on no other flow."""

from pathlib import Path

import orjson
import pytest
from mitmproxy import contentviews
from mitmproxy.http import HTTPFlow
from mitmproxy.test import taddons, tflow, tutils

from polar_mitm.capture.record import Call
from polar_mitm.proxy.look import Look
from polar_mitm.proxy.view import RECORD, TOKENS, annotate
from tests.capture.samples import assistant, make_call, user
from tests.tokens.samples import byte_level, word, write

HOSTILE = "\x1b[2J\x9b31m \u202emoc.elpmaxe </script><script>alert(1)</script>"
END = word("<|im_end|>")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("POLAR_HOME", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    with taddons.context(Look()):  # a fresh view, that knows no tokenizer yet
        return tmp_path / "home"


def flow_of(call: Call, token_bytes: list[bytes] | None = None, body: bytes = b'{"model":"x"}') -> HTTPFlow:
    flow = tflow.tflow(req=tutils.treq(content=body), resp=tutils.tresp(content=b'{"id":"y"}'))
    annotate(flow, call, token_bytes)
    return flow


def of_request(flow: HTTPFlow, view: str = "auto") -> str:
    shown = contentviews.prettify_message(flow.request, flow, view)
    assert shown.view_name == "Polar tokens"
    return shown.text


def of_response(flow: HTTPFlow) -> str:
    assert flow.response
    shown = contentviews.prettify_message(flow.response, flow)
    assert (shown.view_name, shown.syntax_highlight) == ("Polar tokens", "yaml")
    return shown.text


def said(text: str) -> Call:
    ids = [*text.encode(), END]
    call = make_call(
        "call_a", [user("Hi."), assistant("Yes?"), user("Go.")], [*b"Hi."], ids, logprobs=[-3.0] * len(ids)
    )
    assert call.response
    call.response.text = text
    return call


def test_a_request_shows_what_was_asked_its_chat_form_and_what_was_not_carried() -> None:
    shown = of_request(flow_of(said("x"), body=b'{"model":"claude","max_tokens":5}'))
    for line in (
        "call: turn 2 3→2 -3.00 stop · ses_1",
        "the model was not given:\n  thinking: the engine decides",
        "# Chat form: 3 messages, 1 tools",
        "  - assistant:\n      content: |\n        Yes?",
        "  - read_file: ",
        '# original request, anthropic /v1/messages\n{\n  "model": "claude",\n  "max_tokens": 5\n}',
    ):
        assert line in shown, shown


def test_a_response_shows_each_token_byte_for_byte_where_the_tokenizer_is_here(home: Path) -> None:
    write(home / "models" / "tiny", byte_level())
    shown = of_response(flow_of(said("€"), [b"", b"", "€".encode(), b"<|im_end|>"]))
    assert "finish: stop, told the harness as end_turn" in shown
    rows = [line.split() for line in shown.splitlines() if line.strip()[:1].isdigit()]
    assert [(row[1], row[2], row[-1]) for row in rows] == [
        ("226", "-3.000", '"⟨e2⟩"'),
        ("130", "-3.000", '"⟨82⟩"'),
        ("172", "-3.000", '"⟨ac⟩"'),
        (str(END), "-3.000", '"<|im_end|>"'),
    ]
    assert "# the end of the prompt, of 3 tokens\nHi." in shown


def test_without_a_tokenizer_the_engines_own_words_are_shown_and_without_those_the_ids() -> None:
    told = of_response(flow_of(said("ab"), [b"a", b"b", b"<|im_end|>"]))
    assert "# sampled: 3 tokens\nab<|im_end|>" in told
    assert "# sampled: 3 tokens\n⟨97⟩⟨98⟩" in of_response(flow_of(said("ab")))
    assert "# sampled: 3 tokens\n⟨97⟩⟨98⟩" in of_response(flow_of(said("ab"), [b"too few"]))


def test_forced_tokens_and_failures_are_told() -> None:
    call = said("ab")
    assert call.response
    call.response.forced = [(1, 2)]
    rows = [line for line in of_response(flow_of(call)).splitlines() if line.strip()[:1].isdigit()]
    assert ["forced" in row for row in rows] == [False, True, False]
    failed = of_response(flow_of(make_call("call_b", response_ids=None)))
    assert "error: engine: engine away" in failed
    assert "valid: no, never trained on" in failed


def test_nothing_that_a_model_or_a_harness_wrote_steers_a_terminal() -> None:
    call = said(HOSTILE)
    call.request.messages = [{"role": HOSTILE, "content": HOSTILE, HOSTILE: HOSTILE}, {"content": [HOSTILE]}]
    call.request.not_carried[0].field = HOSTILE
    call.request.tools = [{"function": {"name": HOSTILE, "parameters": {HOSTILE: HOSTILE}}}]
    assert call.response
    call.response.finish_reason = call.response.stop_reason = HOSTILE
    flow = flow_of(call, [HOSTILE.encode()] + [b""] * (len(call.response.response_ids) - 1), HOSTILE.encode())
    for shown in (of_request(flow), of_response(flow)):
        assert {sign for sign in shown if not sign.isprintable()} == {"\n"}


def test_a_flow_that_is_no_call_keeps_its_own_view() -> None:
    flow = tflow.tflow(resp=tutils.tresp(content=b'{"id":"y"}', headers=((b"content-type", b"application/json"),)))
    assert flow.response
    assert contentviews.prettify_message(flow.response, flow).view_name == "JSON"
    assert "this is no call of polar's" in contentviews.prettify_message(flow.request, flow, "Polar tokens").text


@pytest.mark.parametrize("record", ["{", "{}", "[]", orjson.dumps({"identity": {}}).decode()])
def test_a_record_that_cannot_be_read_falls_back_to_the_raw_body(record: str) -> None:
    flow = flow_of(said("x"))
    flow.metadata[RECORD] = record
    flow.metadata[TOKENS] = "{"
    assert flow.response
    shown = contentviews.prettify_message(flow.response, flow)
    assert (shown.view_name, shown.text) == ("Raw", '{"id":"y"}')
