"""Early bytes: silence within the grace, then headers and keep-alives, then the answer or the provider's error."""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import aiohttp
import anthropic
import orjson
import pytest

from polar_mitm.capture.record import Call
from polar_mitm.proxy.intercept import Intercept
from polar_mitm.proxy.loopback import Loopback, Waiting
from tests.conftest import Staged
from tests.fakes.vllm import Reply
from tests.proxy.asks import ANTHROPIC, CHAT, JSON_ASKS, STREAM_ASKS, Ask, streamed, with_tool
from tests.proxy.stage import Got, Wire, until

GRACE_S, KEEPALIVE_S = 0.3, 0.2
SLACK_S = 0.3


def released_by(hold: asyncio.Event, ask: Ask, count: int = 3) -> Callable[[Got], None]:
    """Lets the engine answer once the stream has been kept alive so often."""

    def watch(got: Got) -> None:
        if ask.keepalives(got.body) >= count:
            hold.set()

    return watch


def without_ids(body: bytes, call: Call) -> bytes:
    """The body with what differs from call to call taken out: its id, the second it began in, its events' numbers."""
    body = body.replace(call.identity.call_id.removeprefix("call_").encode(), b"ID")
    return re.sub(rb'("(?:created(?:_at)?|sequence_number)":)\d+', rb"\g<1>0", body)


def events(stream: bytes) -> list[Any]:
    """The data of each server-sent event."""
    return [orjson.loads(line.removeprefix(b"data: ")) for line in stream.split(b"\n") if line.startswith(b"data: ")]


def after_keepalives(ask: Ask, stream: bytes) -> bytes:
    """The rest of a stream whose beginning was said by keep-alives."""
    match ask.provider:
        case "openai-chat":
            return stream.replace(b'"role":"assistant",', b"", 1)
        case "openai-responses":
            return stream[len(ask.kept(stream)) :]
        case _:
            return stream


def ms(got: Got) -> list[int]:
    return [round(1000 * at) for at in got.at]


@pytest.mark.parametrize("ask", STREAM_ASKS, ids=str)
async def test_a_slow_stream_is_silent_then_kept_alive_then_the_same_bytes_as_a_fast_one(
    ask: Ask, stage: Staged
) -> None:
    tool_call, hold = ("run", '{"cmd": "ls"}'), asyncio.Event()
    fast, slow = (Reply("Hi.", tool_calls=[tool_call], reasoning="Hm.", hold=event) for event in (None, hold))
    async with stage(fast, slow, grace_s=GRACE_S, keepalive_s=KEEPALIVE_S) as on:
        quick = await on.post(ask)
        got = await on.post(ask, watch=released_by(hold, ask))
        first, second = on.calls()
        slack = SLACK_S + on.late_s

    assert (got.status, got.headers["content-type"]) == (200, ask.stream_type)
    assert GRACE_S - 0.01 <= got.headers_at < GRACE_S + slack, ms(got)
    answer = got.body[len(ask.kept(got.body)) :]
    assert without_ids(answer, second) == without_ids(after_keepalives(ask, quick.body), first)
    assert ask.keepalives(got.body) >= 3
    gaps = [later - earlier for earlier, later in zip([got.headers_at, *got.at], got.at, strict=False)]
    assert max(gaps) < KEEPALIVE_S + slack, ms(got)

    assert (second.delivery.status, second.delivery.bytes_sent) == ("delivered", len(answer))
    assert (second.checks.valid, second.error) == (True, None)
    assert second.response and first.response and second.response.response_ids == first.response.response_ids


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
async def test_a_call_that_is_not_streamed_just_waits(ask: Ask, stage: Staged) -> None:
    async with stage(Reply(delay_s=0.5), grace_s=0.1, keepalive_s=0.1) as on:
        got = await on.post(ask)
        assert got.status == 200
        assert got.headers_at >= 0.5
        assert got.headers["content-type"] == "application/json"
        assert orjson.loads(got.body)


@pytest.mark.parametrize("ask", STREAM_ASKS, ids=str)
async def test_a_failure_within_the_grace_has_its_true_status(ask: Ask, stage: Staged) -> None:
    async with stage(Reply(status=500, error="no luck", delay_s=0.1), grace_s=2) as on:
        got = await on.post(ask)
        assert got.status == (500 if ask.provider in ("anthropic", "google", "google-array") else 502)
        assert got.headers["content-type"] == "application/json"
        assert got.json["error"]["message"] == "the engine answered 500"
        (call,) = on.calls()
        assert call.error and call.error.status == got.status


ANTHROPIC_ERROR = b'{"type":"error","error":{"type":"api_error","message":"MESSAGE"},"request_id":"req_REQUEST"}'
OPENAI_ERROR = b'{"error":{"message":"MESSAGE","type":"server_error","param":null,"code":null}}'
GOOGLE_ERROR = b'{"error":{"code":500,"message":"MESSAGE","status":"INTERNAL"}}'
ERROR_EVENTS = {
    "anthropic": b"event: error\ndata: " + ANTHROPIC_ERROR + b"\n\n",
    "openai-chat": b"data: " + OPENAI_ERROR + b"\n\n",
    "google": b"data: " + GOOGLE_ERROR + b"\n\n",
    "google-array": b"[" + GOOGLE_ERROR + b"]",
}


@pytest.mark.parametrize("ask", STREAM_ASKS, ids=str)
async def test_a_failure_after_the_grace_is_the_providers_error_event_in_the_open_stream(
    ask: Ask, stage: Staged
) -> None:
    hold = asyncio.Event()
    async with stage(Reply(status=500, error="no luck", hold=hold), grace_s=0.1, keepalive_s=0.1) as on:
        got = await on.post(ask, watch=released_by(hold, ask))
        assert (got.status, got.headers["content-type"]) == (200, ask.stream_type)
        event = got.body[len(ask.kept(got.body)) :]
        (call,) = on.calls()
        assert call.error and (call.error.fault, call.error.status) == ("engine", None)
        assert "no luck" in call.error.what
        told = "the engine answered 500"
        if ask.provider == "openai-responses":
            (failed,) = events(event)
            assert (failed["type"], events(got.body)[0]["type"]) == ("response.failed", "response.created")
            assert failed["response"]["id"] == events(got.body)[0]["response"]["id"]
            assert failed["response"]["error"] == {"code": "server_error", "message": told}
        else:
            wanted = ERROR_EVENTS[ask.provider].replace(b"MESSAGE", told.encode())
            assert event == wanted.replace(b"REQUEST", call.identity.call_id.removeprefix("call_").encode())
        assert (call.delivery.status, call.delivery.bytes_sent) == ("delivered", len(event))


@pytest.mark.parametrize("ask", STREAM_ASKS, ids=str)
async def test_what_breaks_inside_polar_after_the_grace_ends_the_stream_with_the_providers_error(
    ask: Ask, stage: Staged
) -> None:
    hold = asyncio.Event()
    async with stage(Reply(hold=hold), grace_s=0.05, keepalive_s=0.05) as on:
        chat = on.engine.chat

        async def broken(*args: Any, **kwargs: Any) -> Any:
            await chat(*args, **kwargs)
            raise RuntimeError("a bug")

        on.engine.chat = broken  # type: ignore[method-assign]  # stands for a bug in any room
        got = await on.post(ask, watch=released_by(hold, ask))
        assert got.status == 200
        assert b"polar failed on this call; its log says why" in got.body
        assert b"a bug" not in got.body
        (call,) = on.calls()
        assert call.error and (call.error.fault, call.error.status) == ("polar", None)


async def test_an_engine_that_dies_while_keep_alives_flow_ends_the_stream_with_an_error(stage: Staged) -> None:
    async with stage(Reply(delay_s=20), grace_s=0.1, keepalive_s=0.1) as on:
        kept_alive = asyncio.Event()
        waiting = asyncio.create_task(on.post(streamed(CHAT), watch=released_by(kept_alive, CHAT)))
        await kept_alive.wait()
        await on.fake.stop()
        got = await waiting
        assert got.status == 200
        assert b'"type":"server_error"' in got.body
        assert b"[DONE]" not in got.body
        (call,) = on.calls()
        assert call.error and call.error.fault == "engine"


async def test_with_a_grace_of_nothing_headers_go_out_at_once(stage: Staged) -> None:
    async with stage(Reply(delay_s=0.6), grace_s=0, keepalive_s=5) as on:
        got = await on.post(streamed(ANTHROPIC))
        assert got.at[0] < 0.3 + on.late_s
        assert got.at[-1] >= 0.6


async def test_the_waiting_times_may_change_while_it_runs(stage: Staged) -> None:
    ask = streamed(ANTHROPIC)
    async with stage(Reply(delay_s=0.3), grace_s=0, keepalive_s=10) as on:
        assert ask.keepalives((await on.post(ask)).body) < 2
        on.border.keepalive_s = 0.1
        assert ask.keepalives((await on.post(ask)).body) >= 2
        on.border.grace_s = 10
        assert ask.keepalives((await on.post(ask)).body) == 0


async def test_many_slow_streams_follow_each_other_on_one_connection_without_delay(stage: Staged) -> None:
    """mitmproxy opens no more than five connections for a client: none may be left over from an earlier call."""
    async with stage(grace_s=0, keepalive_s=5) as on:
        on.fake.script = [Reply(delay_s=0.01)]
        connector = aiohttp.TCPConnector(limit=1)
        async with aiohttp.ClientSession(connector=connector) as http:
            ask = streamed(ANTHROPIC).with_key(on.session.token)
            seconds = []
            for _ in range(12):
                began = time.monotonic()
                async with http.post(on.base_url() + ask.target, json=ask.body, headers=ask.headers) as response:
                    assert "connection" not in response.headers
                    assert b"message_stop" in await response.read()
                seconds.append(time.monotonic() - began)
        assert len(on.calls()) == 12
        assert max(seconds) < 0.5 + on.late_s, seconds


async def test_twelve_slow_streams_at_once_do_not_wait_for_each_other(stage: Staged) -> None:
    async with stage(Reply(delay_s=0.5), grace_s=0.1, keepalive_s=0.2) as on:
        began = time.monotonic()
        answers = await asyncio.gather(*(on.post(streamed(ask)) for ask in JSON_ASKS for _ in range(3)))
        assert time.monotonic() - began < 1.5 + on.late_s
        assert all(got.status == 200 for got in answers)
        assert {call.delivery.status for call in on.calls()} == {"delivered"}


async def test_a_slow_stream_through_tls_keeps_its_host_in_the_saved_flow(stage: Staged) -> None:
    async with stage(Reply(delay_s=0.3), grace_s=0.05, keepalive_s=0.1) as on:
        got = await on.post_through(streamed(with_tool(ANTHROPIC)))
        assert got.status == 200
        assert ANTHROPIC.keepalives(got.body)
        (flow,) = on.flows()
        assert flow.request.pretty_url == "https://api.anthropic.com/v1/messages"
        assert flow.response and flow.response.content == got.body


async def test_the_loopback_serves_nobody_without_a_ticket(stage: Staged) -> None:
    async with stage(Reply(delay_s=0.2), grace_s=0, keepalive_s=5) as on:
        await on.post(streamed(CHAT))
        ((_, address),) = on.border.diverted.values()
        for headers in ({}, {"x-polar-ticket": "guessed"}):
            got = await on.request("POST", f"http://{address[0]}:{address[1]}/v1/messages", json={}, headers=headers)
            assert (got.status, got.body) == (403, b"polar: no ticket")


async def test_a_call_that_nobody_waits_for_any_more_is_forgotten_with_its_ticket(stage: Staged) -> None:
    async with stage(Reply(delay_s=30), grace_s=0.05, keepalive_s=0.05) as on:
        loopback, release = Loopback(on.border), asyncio.Event()
        admit = loopback.admit

        async def slowly(waiting: Waiting) -> tuple[str, tuple[str, int]]:
            ticket = await admit(waiting)
            await release.wait()  # a moment that can't be met by chance: the client leaves before it is diverted
            return ticket

        loopback.admit = slowly  # type: ignore[method-assign]
        intercept = next(addon for addon in on.proxy.addons if isinstance(addon, Intercept))
        intercept.loopback = loopback
        waiting = asyncio.create_task(on.post(streamed(CHAT)))
        await until(lambda: loopback._tickets)
        waiting.cancel()
        await until(lambda: on.fake.cancelled)
        release.set()
        await until(lambda: on.calls())
        await until(lambda: not loopback._tickets)


async def test_a_clients_own_ticket_opens_nothing(stage: Staged) -> None:
    async with stage(Reply(delay_s=0.2), grace_s=0, keepalive_s=5) as on:
        got = await on.post(streamed(CHAT), headers={"x-polar-ticket": "mine"})
        assert got.status == 200
        assert b"[DONE]" in got.body
        got = await on.post(CHAT, headers={"x-polar-ticket": "mine"})
        assert got.status == 200
        assert [call.delivery.bytes_sent > 0 for call in on.calls()] == [True, True]


async def test_the_official_sdk_reads_a_stream_that_was_kept_alive_and_raises_its_error_event(stage: Staged) -> None:
    slow_failure = Reply(status=500, error="no luck", delay_s=0.3)
    async with stage(Reply("Hi.", delay_s=0.3), slow_failure, grace_s=0.05, keepalive_s=0.05) as on:
        client = anthropic.AsyncAnthropic(base_url=on.base_url(), api_key=on.session.token, max_retries=0)
        for outcome in ("Hi.", "the engine answered 500"):
            try:
                async with client.messages.stream(
                    model="claude-9", max_tokens=9, messages=[{"role": "user", "content": "x"}]
                ) as events:
                    assert await events.get_final_text() == outcome
            except anthropic.APIStatusError as error:
                assert outcome in error.message
        # The SDK raises at the error event, a moment before the stream ends and the call is recorded.
        await until(lambda: len(on.calls()) == 2)


async def test_a_wire_that_half_reads_nothing_holds_up_no_one_else(stage: Staged) -> None:
    async with stage(Reply(delay_s=0.2), grace_s=0.05, keepalive_s=0.05) as on, Wire(on.proxy.base_url_port) as wire:
        ask = streamed(CHAT).with_key(on.session.token)
        body = orjson.dumps(ask.body)
        head = f"POST /s/{on.session.id}{ask.target} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
        await wire.send(head.encode() + f"Authorization: Bearer {on.session.token}\r\n\r\n".encode() + body)
        assert (await on.post(CHAT)).status == 200


async def test_a_slow_stream_may_have_headers_and_a_query_of_any_length(stage: Staged) -> None:
    async with stage(Reply(delay_s=0.2), grace_s=0.02, keepalive_s=0.05) as on:
        long = replace(streamed(ANTHROPIC), target=f"{ANTHROPIC.target}?beta={'x' * 20_000}")
        got = await on.post(long, headers={f"x-metadata-{n}": "y" * 20_000 for n in range(5)})
        assert (got.status, b"message_stop" in got.body) == (200, True), got.body[:500]


async def test_a_slow_stream_to_an_http_1_0_client_ends_with_its_connection(stage: Staged) -> None:
    async with stage(Reply(delay_s=0.2), grace_s=0.02, keepalive_s=0.05) as on, Wire(on.proxy.base_url_port) as wire:
        ask = streamed(CHAT)
        body = orjson.dumps(ask.body)
        head = f"POST /s/{on.session.id}{ask.target} HTTP/1.0\r\nContent-Length: {len(body)}\r\n"
        await wire.send(f"{head}Authorization: Bearer {on.session.token}\r\n\r\n".encode() + body)
        answer = await wire.rest()
        assert answer.startswith(b"HTTP/1.0 200") or answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"data: [DONE]\n\n")
        assert on.calls()[0].delivery.status == "delivered"
