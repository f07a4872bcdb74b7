"""The line that is shown of each call: what it holds, and that nothing in it steers a terminal."""

import logging
from collections.abc import Callable

import pytest

from polar_mitm.capture.record import Call, Failure
from polar_mitm.proxy.border import Border
from polar_mitm.proxy.lines import call_line, log_call
from tests.capture.samples import make_call
from tests.conftest import Staged
from tests.fakes.vllm import Reply
from tests.proxy.asks import ANTHROPIC, CHAT, JSON_ASKS, STREAM_ASKS, Ask

HOSTILE = "m\x1b[2J\r\n\x9b31m\u202eevil\x07 [red]b[/]"


def failed(fault: str, what: str) -> Call:
    call = make_call("call_1", response_ids=None)
    call.error = Failure(what=what, kind="engine", fault=fault, status=500)  # type: ignore[arg-type]
    return call


def test_a_line_says_who_what_how_much_how_it_ended_and_how_long_it_took() -> None:
    call = make_call("call_1")
    assert call_line(call, "gpt-9") == f"ses_1  {call.origin.provider}  gpt-9  turn  3→2  stop  1.0 s"


def test_a_failed_call_says_whose_fault_it_was() -> None:
    line = call_line(failed("engine", "http://127.0.0.1:8000 answered 500"), "")
    assert line.endswith("  -  turn  3→0  -  1.0 s  engine: http://127.0.0.1:8000 answered 500")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda call: setattr(call.delivery, "status", "partial"), "client: it left before the end (partial)"),
        (lambda call: setattr(call, "checks", failed("engine", "").checks), "invalid: "),
    ],
)
def test_a_call_that_was_not_delivered_or_is_not_valid_says_so(change: Callable[[Call], None], says: str) -> None:
    call = make_call("call_1")
    change(call)
    assert says in call_line(call, "m")


def test_what_a_client_or_an_engine_wrote_is_one_line_of_signs_that_steer_nothing() -> None:
    call = failed("client", HOSTILE * 50)
    line = call_line(call, HOSTILE * 50)
    assert line.isprintable()
    assert len(line) < 500
    assert "[red]b[/]" in line


@pytest.mark.parametrize(("fault", "level"), [("engine", "WARNING"), ("polar", "WARNING"), ("client", "INFO")])
def test_what_the_engine_or_polar_did_wrong_is_a_warning(
    fault: str, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        log_call(failed(fault, "why"), "m")
    (record,) = caplog.records
    assert (record.levelname, record.getMessage().endswith(f"  {fault}: why")) == (level, True)


@pytest.mark.parametrize("ask", (*JSON_ASKS, *STREAM_ASKS), ids=str)
async def test_each_call_is_told_of_once_with_the_model_that_was_asked_for(ask: Ask, stage: Staged) -> None:
    told: list[tuple[Call, str]] = []
    async with stage(Reply(delay_s=0.1), Reply(status=500, error="no luck"), grace_s=0.05) as on:
        on.border.on_call = lambda call, model: told.append((call, model))
        await on.post(ask)
        await on.post(ask)
        assert [call for call, _ in told] == on.calls()
        assert {model for _, model in told} == {ask.body.get("model", "gemini-9")}
        assert "no luck" in call_line(*told[1])


async def test_the_engines_own_words_are_in_polars_log(stage: Staged, caplog: pytest.LogCaptureFixture) -> None:
    assert Border().on_call is log_call
    async with stage(Reply(status=500, error="out of memory")) as on:
        await on.post(ANTHROPIC)
        assert f"{on.fake.url} answered 500: out of memory" in caplog.text
        assert on.session.token not in caplog.text


async def test_a_request_that_is_no_call_is_logged_without_what_steers_a_terminal(
    stage: Staged, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage() as on:
        await on.post(CHAT, data=b'{"model": "m", "messages": [{"role": "\\u001b[2J"}]}')
        assert "/v1/chat/completions" in caplog.text
        assert "\x1b" not in caplog.text
