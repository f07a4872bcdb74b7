"""The way of one call through the whole proxy: what the engine is sent, what is recorded, what the client gets."""

import asyncio
import re
import time
from dataclasses import replace
from typing import Any

import pytest

from polar_mitm.engine.scripted import tool_call_regex, tool_call_text
from polar_mitm.proxy.sessions import Step
from tests.conftest import Staged
from tests.fakes.vllm import EOS, Reply, ids_of, prompt_of
from tests.proxy.asks import (
    ANTHROPIC,
    CHAT,
    GOOGLE,
    JSON_ASKS,
    RESPONSES,
    STREAM_ASKS,
    TOOL,
    Ask,
    streamed,
    with_tool,
)
from tests.proxy.stage import Stage, until

LIST = '{"cmd": "ls"}'
CALLING = Reply("", tool_calls=[(TOOL, LIST)])

STOPPED = {"anthropic": "end_turn", "openai-chat": "stop", "openai-responses": "completed", "google": "STOP"}


def engine_error(provider: str) -> tuple[int, str]:
    """Status and error type with which a provider says that its model server failed."""
    return {"anthropic": (500, "api_error"), "google": (500, "INTERNAL")}.get(provider, (502, "server_error"))


def error_type(body: Any) -> str:
    return str(body["error"].get("type") or body["error"]["status"])


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
async def test_a_call_is_recorded_with_the_engines_own_tokens(ask: Ask, stage: Staged) -> None:
    before = time.time()
    async with stage(Reply("Hi.", reasoning="Hm.")) as on:
        session = on.open_session(
            identity={"task_id": "hello", "sample": 3, "harness": "pi", "harness_version": "1.2.3"},
            sampling={"temperature": 0.7},
        )
        got = await on.post(ask, session=session)
        assert got.status == 200
        (call,) = on.calls(session)

    assert on.fake.requests[0]["messages"] == [{"role": "user", "content": "Say hello."}]
    assert on.fake.requests[0]["stream"] is False
    assert on.fake.requests[0]["model"] == "fake"

    identity = call.identity
    assert (identity.session_id, identity.task_id, identity.sample) == (session.id, "hello", 3)
    assert (identity.harness, identity.harness_version, identity.attempt) == ("pi", "1.2.3", 1)
    assert before <= identity.started_at <= identity.finished_at <= time.time()
    assert (call.origin.provider, call.origin.streamed) == (ask.provider, False)
    assert call.origin.path == ask.target
    assert call.request.messages == on.fake.requests[0]["messages"]
    assert call.request.sampling_sent["temperature"] == 0.7
    assert call.engine and (call.engine.model, call.engine.engine_version) == ("fake", "0.0-fake")
    assert call.prompt_ids == prompt_of({"role": "user", "content": "Say hello."})
    assert call.response and call.response.response_ids == [*ids_of("<think>Hm.</think>Hi."), EOS]
    assert call.response.logprobs == [-0.5] * len(call.response.response_ids)
    assert (call.response.text, call.response.reasoning) == ("Hi.", "Hm.")
    assert (call.response.finish_reason, call.response.stop_reason) == ("stop", STOPPED[ask.provider])
    assert (call.checks.valid, call.checks.decode_matches_text) == (True, True)
    assert (call.delivery.status, call.delivery.bytes_sent) == ("delivered", len(got.body))
    assert call.error is None


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
async def test_tool_calls_have_one_id_in_the_answer_the_record_and_the_next_prompt(ask: Ask, stage: Staged) -> None:
    async with stage(CALLING) as on:
        got = await on.post(with_tool(ask))
        assert got.status == 200
        (call,) = on.calls()
        assert call.response
        expected = f"{call.identity.call_id}00"
        assert call.response.tool_calls == [
            {"id": expected, "type": "function", "function": {"name": TOOL, "arguments": LIST}}
        ]
        assert expected.encode() in got.body
        assert b"engine-0" not in got.body


BROKEN = '{"cmd": "ls'


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
async def test_P032_what_was_mended_for_the_client_is_on_the_record_beside_what_was_sampled(
    ask: Ask, stage: Staged
) -> None:
    async with stage(Reply("", tool_calls=[(TOOL, BROKEN)]), CALLING) as on:
        for asked in (with_tool(ask), with_tool(ask)):
            assert (await on.post(asked)).status == 200
        broken, whole = on.calls()
        assert broken.response and whole.response
        assert broken.response.tool_calls[0]["function"]["arguments"] == BROKEN
        assert broken.checks.valid
        assert whole.response.repairs == []
        # OpenAI's clients take the argument text as it is, whatever it holds.
        assert bool(broken.response.repairs) == (ask.provider in ("anthropic", "google"))


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Reply("x", finish_reason="stop"), "stop"),
        (Reply("x", finish_reason="length"), "length"),
        (Reply("x", finish_reason="tool_calls"), "stop"),
        (Reply("x", finish_reason="something new"), "stop"),
        (CALLING, "tool_calls"),
    ],
)
async def test_the_client_is_told_of_tool_calls_exactly_when_there_are_any(
    reply: Reply, told: str, stage: Staged
) -> None:
    async with stage(reply) as on:
        got = await on.post(with_tool(CHAT))
        (call,) = on.calls()
        assert call.response and call.response.stop_reason == told
        assert got.json["choices"][0]["finish_reason"] == told


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
async def test_half_an_answer_that_the_engine_gave_up_is_an_error_and_its_tokens_are_kept(
    ask: Ask, stage: Staged
) -> None:
    async with stage(Reply("Half an", finish_reason="abort")) as on:
        got = await on.post(ask)
        assert (got.status, error_type(got.json)) == engine_error(ask.provider)
        (call,) = on.calls()
        assert call.error and call.error.fault == "engine"
        assert call.response and call.response.response_ids == ids_of("Half an")
        assert (call.response.finish_reason, call.response.stop_reason) == ("abort", None)


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
@pytest.mark.parametrize(
    ("reply", "what"),
    [
        (Reply(status=500, error="CUDA out of memory"), "answered 500: CUDA out of memory"),
        (Reply(drop=True), "gave no answer: "),
        (Reply(raw=b"<html>"), "did not answer with a "),
        (Reply(raw=b'{"choices": []}'), "completion: choices: "),
    ],
    ids=["status", "drop", "no-json", "no-choice"],
)
async def test_a_failing_engine_is_the_providers_5xx_and_the_next_call_works(
    ask: Ask, reply: Reply, what: str, stage: Staged
) -> None:
    async with stage(reply, Reply()) as on:
        failed = await on.post(ask)
        status, kind = engine_error(ask.provider)
        assert (failed.status, error_type(failed.json)) == (status, kind)
        assert (await on.post(ask)).status == 200
        first, second = on.calls()
        assert first.error and (first.error.fault, first.error.kind, first.error.status) == ("engine", "engine", status)
        assert what in first.error.what
        assert str(on.fake.port) not in str(failed.json)
        assert first.response is None
        assert (first.checks.valid, first.checks.invalid_reason) == (False, "the engine gave no answer")
        # The client was told, so the error was delivered.
        assert (first.delivery.status, first.delivery.bytes_sent) == ("delivered", len(failed.body))
        assert second.error is None and second.checks.valid


@pytest.mark.parametrize(
    ("reply", "kind", "fault", "status"),
    [
        (Reply(status=413, error="too much"), "too_large", "client", 413),
        (Reply(status=400, error="messages: what?"), "invalid_request", "client", 400),
        (Reply(status=404, error="no such model"), "no_model", "engine", 404),
        (Reply(status=401, error="who?"), "no_model", "engine", 404),
    ],
    ids=lambda value: value.status if isinstance(value, Reply) else None,
)
async def test_an_engines_refusal_is_told_and_recorded_by_whose_fault_it_is(
    reply: Reply, kind: str, fault: str, status: int, stage: Staged
) -> None:
    async with stage(reply) as on:
        assert (await on.post(CHAT)).status == status
        (call,) = on.calls()
        assert call.error and (call.error.kind, call.error.fault, call.error.status) == (kind, fault, status)


@pytest.mark.parametrize("ask", (*JSON_ASKS, *STREAM_ASKS), ids=str)
@pytest.mark.parametrize("status", [429, 503])
async def test_an_overloaded_engine_costs_the_client_time_and_no_error(ask: Ask, status: int, stage: Staged) -> None:
    async with stage(Reply(status=status, error="busy"), Reply(), grace_s=0.1, keepalive_s=0.1) as on:
        got = await on.post(ask)
        assert got.status == 200
        assert b"Hello." in got.body
        if ask in STREAM_ASKS:
            assert ask.keepalives(got.body)
            assert got.headers_at < 0.4
        (call,) = on.calls()
        assert (call.error, call.checks.valid) == (None, True)
        assert len(on.fake.requests) == 2


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
async def test_an_engine_that_stops_listening_and_comes_back_costs_only_the_calls_between(
    ask: Ask, stage: Staged
) -> None:
    async with stage() as on:
        assert (await on.post(ask)).status == 200
        await on.fake.stop()
        gone = await on.post(ask)
        assert (gone.status, error_type(gone.json)) == engine_error(ask.provider)
        # Where the engine is, is the operator's to know: it is on the record, and in no answer.
        assert gone.json["error"]["message"] == "the engine gave no answer"
        error = on.calls()[-1].error
        assert error and error.what.startswith(f"{on.fake.url}/v1/chat/completions")
        assert " gave no answer: " in error.what
        await on.fake.start()
        assert (await on.post(ask)).status == 200
        assert [call.error and call.error.fault for call in on.calls()] == [None, "engine", None]


async def test_an_engine_that_dies_in_the_middle_of_a_call_fails_that_call_alone(stage: Staged) -> None:
    async with stage(Reply(delay_s=5), Reply()) as on:
        waiting = asyncio.create_task(on.post(CHAT))
        await until(lambda: on.fake.running == 1)
        await on.fake.stop()
        assert (await waiting).status == 502
        await on.fake.start()
        assert (await on.post(CHAT)).status == 200
        assert [call.error and call.error.fault for call in on.calls()] == ["engine", None]


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(token_ids=False), "the engine gave no prompt token ids"),
        (Reply(logprobs=False), "the engine gave no log-probabilities"),
    ],
    ids=["no-ids", "no-logprobs"],
)
async def test_an_answer_without_token_data_reaches_the_client_and_its_record_is_invalid(
    ask: Ask, reply: Reply, reason: str, stage: Staged
) -> None:
    async with stage(reply) as on:
        got = await on.post(ask)
        assert got.status == 200
        assert b"Hello." in got.body
        (call,) = on.calls()
        assert (call.checks.valid, call.checks.invalid_reason) == (False, reason)
        assert call.response and call.response.text == "Hello."
        assert call.delivery.status == "delivered"
        assert call.error is None


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
async def test_what_breaks_inside_polar_is_the_providers_500_and_recorded_as_polars_fault(
    ask: Ask, stage: Staged, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage() as on:
        session = on.open_session(sampling={"messages": []})  # no sampling field: the engine's client raises ValueError
        for asked in (ask, streamed(ask)):
            got = await on.post(asked, session=session)
            assert got.status == 500
            assert got.json["error"]["message"] == "polar failed on this call; its log says why"
        for call in on.calls(session):
            assert call.error and (call.error.fault, call.error.kind, call.error.status) == ("polar", "internal", 500)
        assert len(on.calls(session)) == 2
        assert "not a sampling field: messages" in caplog.text


async def test_the_sessions_sampling_wins_over_the_clients(stage: Staged) -> None:
    async with stage() as on:
        session = on.open_session(sampling={"temperature": 1.0, "max_tokens": 7})
        ask = replace(CHAT, body={**CHAT.body, "temperature": 0.0, "top_p": 0.5})
        assert (await on.post(ask, session=session)).status == 200
        sent = on.fake.requests[0]
        assert (sent["temperature"], sent["max_tokens"], sent["top_p"]) == (1.0, 7, 0.5)
        (call,) = on.calls(session)
        assert call.request.sampling_asked == {"temperature": 0.0, "top_p": 0.5}
        assert call.request.sampling_sent == {"temperature": 1.0, "max_tokens": 7, "top_p": 0.5}
        assert "temperature" in [lost.field for lost in call.request.not_carried]


async def test_the_ids_a_harness_sends_are_on_the_record(stage: Staged) -> None:
    async with stage() as on:
        ask = replace(ANTHROPIC, headers={**ANTHROPIC.headers, "X-Claude-Code-Session-Id": "abc", "x-other": "no"})
        assert (await on.post(ask)).status == 200
        assert on.calls()[0].origin.harness_ids == {"x-claude-code-session-id": "abc"}


# Scripted sessions

SCRIPT = (Step(TOOL, {"cmd": "ls"}), Step(TOOL, {"cmd": "cat (a|b)\n"}))


def forced(name: str, arguments: str) -> Reply:
    return Reply("", tool_calls=[(name, arguments)])


def turns(ask: Ask, done: int) -> Ask:
    """The request after so many tool calls and their results, in OpenAI Chat form."""
    messages: list[dict[str, Any]] = list(ask.body["messages"])
    for number in range(done):
        call = {"id": f"c{number}", "type": "function", "function": {"name": TOOL, "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": "done"})
    return replace(ask, body={**ask.body, "messages": messages})


def sent_regex(on: Stage) -> str | None:
    outputs = on.fake.requests[-1].get("structured_outputs")
    return outputs and outputs["regex"]


async def test_a_script_makes_the_engine_write_its_steps_in_order_and_then_only_talk(stage: Staged) -> None:
    first, second = '{"cmd": "ls"}', '{"cmd": "cat (a|b)\\n"}'
    async with stage(forced(TOOL, first), forced(TOOL, first), forced(TOOL, second), Reply("Done.")) as on:
        session = on.open_session(script=SCRIPT)
        ask = with_tool(CHAT)
        # A retried request is the same turn.
        for done, arguments in ((0, first), (0, first), (1, second)):
            got = await on.post(turns(ask, done), session=session)
            assert got.status == 200, got.body
            assert got.json["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == arguments
            regex = sent_regex(on)
            assert regex and re.fullmatch(
                regex, f'<tool_call>\n{{"name": "{TOOL}", "arguments": {arguments}}}\n</tool_call>'
            )
            assert regex == tool_call_regex(TOOL, dict(SCRIPT[done].arguments))
            assert on.fake.requests[-1]["tool_choice"] == "auto"
        got = await on.post(turns(ask, 2), session=session)
        assert got.json["choices"][0]["message"]["content"] == "Done."
        assert (sent_regex(on), on.fake.requests[-1]["tool_choice"]) == (None, "none")
        calls = on.calls(session)
        for call in calls[:3]:
            assert call.response and call.response.forced == [(0, len(call.response.response_ids))]
        assert calls[3].response and calls[3].response.forced == []


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
async def test_a_script_forces_every_providers_requests(ask: Ask, stage: Staged) -> None:
    async with stage(forced(TOOL, LIST)) as on:
        session = on.open_session(script=SCRIPT)
        assert (await on.post(with_tool(ask), session=session)).status == 200
        assert sent_regex(on) == tool_call_regex(TOOL, {"cmd": "ls"})


async def test_a_request_that_does_not_offer_the_steps_tool_is_not_forced(stage: Staged) -> None:
    async with stage(Reply("A title.")) as on:
        session = on.open_session(script=SCRIPT)
        assert (await on.post(CHAT, session=session)).status == 200
        assert sent_regex(on) is None
        assert "tool_choice" not in on.fake.requests[-1]
        assert (await on.post(with_tool(CHAT, "other"), session=session)).status == 200
        assert (sent_regex(on), on.fake.requests[-1]["tool_choice"]) == (None, "none")


async def test_an_engine_that_leaves_the_script_fails_the_call_before_a_harness_runs_anything(stage: Staged) -> None:
    async with stage(forced(TOOL, '{"cmd": "reboot"}')) as on:
        session = on.open_session(script=SCRIPT)
        got = await on.post(with_tool(CHAT), session=session)
        assert got.status == 502
        assert b"reboot" not in got.body
        (call,) = on.calls(session)
        assert call.error and call.error.fault == "engine"


async def test_an_engine_that_reads_no_call_in_the_scripted_text_fails_the_call_with_the_mend(stage: Staged) -> None:
    """As vLLM does when its tool parser is another: the text is there, and its tokens, but no call."""
    written = tool_call_text(SCRIPT[0].tool, dict(SCRIPT[0].arguments))
    async with stage(Reply(written)) as on:
        session = on.open_session(script=SCRIPT)
        got = await on.post(with_tool(CHAT), session=session)
        assert (got.status, b"--tool-call-parser hermes" in got.body) == (502, True)
        (call,) = on.calls(session)
        assert call.response and call.response.response_ids
        assert call.error and call.error.fault == "engine"


@pytest.mark.parametrize("ask", [CHAT, RESPONSES, GOOGLE], ids=str)
async def test_what_was_asked_and_not_carried_is_on_the_record(ask: Ask, stage: Staged) -> None:
    extra: dict[str, Any] = {
        "openai-chat": {"user": "me", "seed": 1},
        "openai-responses": {"store": True, "max_tool_calls": 2},
        "google": {"safetySettings": [{"category": "x"}]},
    }
    async with stage() as on:
        assert (await on.post(replace(ask, body={**ask.body, **extra[ask.provider]}))).status == 200
        (call,) = on.calls()
        assert {*extra[ask.provider]} <= {lost.field for lost in call.request.not_carried}
        assert all(lost.why for lost in call.request.not_carried)
