"""What is a model call and what is not, in what form it may arrive, and what becomes of a client that leaves."""

import asyncio
import gzip
import json
import random
import resource
import shutil
import ssl
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson
import pytest
from mitmproxy.net import encoding
from mitmproxy.test import tflow
from mitmproxy.utils import human

from polar_mitm.capture.record import Call
from polar_mitm.proxy import fence
from polar_mitm.proxy.body import LARGEST_BODY
from polar_mitm.proxy.border import Border
from polar_mitm.proxy.intercept import Intercept
from tests.conftest import Sentinel, Staged
from tests.fakes.vllm import Reply
from tests.proxy.asks import ANTHROPIC, CHAT, GOOGLE, JSON_ASKS, RESPONSES, STREAM_ASKS, Ask, streamed
from tests.proxy.stage import LIMIT_S, Got, Stage, Wire, basic, until

CODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": lambda data: encoding.encode(data, "br"),
    "zstd": lambda data: encoding.encode(data, "zstd"),
    "identity": bytes,
    "GZIP": gzip.compress,
}


def status_of(body: Any) -> Any:
    """What a provider calls the kind of an error."""
    error = body["error"]
    return error.get("status") or error["type"]


INVALID = {
    "anthropic": "invalid_request_error",
    "openai-chat": "invalid_request_error",
    "openai-responses": "invalid_request_error",
    "google": "INVALID_ARGUMENT",
}


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
async def test_a_body_that_cannot_be_read_is_a_400_in_the_providers_shape(ask: Ask, stage: Staged) -> None:
    bad: list[tuple[bytes, dict[str, str]]] = [
        (b"{not json", {}),
        (b"", {}),
        (b"[1, 2]", {}),
        (b'"text"', {}),
        (b'{"model": "\xff\xfe"}', {}),
        (b"{} {}", {}),
        (gzip.compress(b"{}")[:-6], {"content-encoding": "gzip"}),
        (b"no gzip at all", {"content-encoding": "gzip"}),
        (b"no brotli", {"content-encoding": "br"}),
        (b"no zstd", {"content-encoding": "zstd"}),
        (b"{}", {}),
    ]
    async with stage() as on:
        for data, headers in bad:
            got = await on.post(ask, data=data, headers=headers)
            assert (got.status, status_of(got.json)) == (400, INVALID[ask.provider]), (data, got.body)
        assert on.fake.requests == []
        assert on.calls() == []
        assert (await on.post(ask)).status == 200


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
async def test_an_unknown_content_coding_is_a_415_that_names_it(ask: Ask, stage: Staged) -> None:
    async with stage() as on:
        for coding in ("snappy", "gzip, lzw"):
            got = await on.post(ask, headers={"content-encoding": coding})
            assert (got.status, status_of(got.json)) == (415, INVALID[ask.provider])
            assert repr(coding.rpartition(", ")[2]) in got.json["error"]["message"]


@pytest.mark.parametrize("coding", CODERS)
async def test_a_body_in_every_known_coding_is_read(coding: str, stage: Staged) -> None:
    async with stage(Reply(), Reply(delay_s=0.2), grace_s=0.05, keepalive_s=0.05) as on:
        for ask in (CHAT, streamed(ANTHROPIC)):  # the second one goes through the loopback
            data = CODERS[coding](orjson.dumps(ask.body))
            got = await on.post(ask, data=data, headers={"content-encoding": coding})
            assert got.status == 200, got.body
            assert b"Hello." in got.body
        assert [call.request.messages for call in on.calls()] == [[{"role": "user", "content": "Say hello."}]] * 2


NOT_FOUND: list[tuple[Ask, str, Any]] = [
    (ANTHROPIC, "/v1/messages/batches", "not_found_error"),
    (CHAT, "/v1/embeddings", "invalid_request_error"),
    (RESPONSES, "/v1/responses/resp_1/nothing", "invalid_request_error"),
    (GOOGLE, "/v1beta/models/gemini-9:embedContent", "NOT_FOUND"),
]


@pytest.mark.parametrize(
    ("ask", "path", "kind"), NOT_FOUND, ids=lambda value: str(value) if isinstance(value, Ask) else ""
)
async def test_an_unknown_path_on_a_model_host_is_a_404_in_its_shape(
    ask: Ask, path: str, kind: str, stage: Staged
) -> None:
    async with stage() as on:
        through = await on.request("POST", f"https://{ask.host}{path}", json={}, proxy=on.proxy_url(), ssl=on.trust)
        assert (through.status, status_of(through.json)) == (404, kind)
        assert f"polar serves no POST {path}" in through.json["error"]["message"]
        plain = await on.request("GET", on.base_url() + path, headers=ask.with_key("k").headers)
        assert (plain.status, status_of(plain.json)) == (404, kind)


async def test_an_unknown_host_is_a_fast_404_that_says_so(stage: Staged) -> None:
    async with stage() as on:
        for scheme in ("http", "https"):
            url = f"{scheme}://telemetry.invalid/v1/traces"
            got = await on.request("POST", url, json={}, proxy=on.proxy_url(), ssl=on.trust)
            assert got.status == 404
            assert got.json == {
                "error": {"message": "polar: telemetry.invalid is no model API, and nothing leaves this machine"}
            }
            assert got.headers_at < 1.0 + on.late_s
        assert on.calls() == []


async def test_health_is_told_on_both_ports_without_a_key(stage: Staged) -> None:
    async with stage() as on:
        proxy = f"http://127.0.0.1:{on.proxy.port}"
        for url, through in (
            (f"http://127.0.0.1:{on.proxy.base_url_port}/healthz", None),
            ("http://polar.local/healthz", proxy),
            ("http://polar.local/", proxy),
        ):
            got = await on.request("GET", url, proxy=through)
            assert (got.status, got.json) == (200, {"status": "ok"})


async def test_a_model_path_with_a_prefix_on_any_host_is_a_call(stage: Staged) -> None:
    async with stage() as on:
        got = await on.request(
            "POST",
            "https://my.gateway.invalid/llm/v1/chat/completions?x=1",
            json=CHAT.body,
            proxy=on.proxy_url(),
            ssl=on.trust,
        )
        assert got.status == 200
        assert on.calls()[0].origin.path == "/llm/v1/chat/completions"


def chunked(ask: Ask, trailers: bytes, *lines: str) -> bytes:
    """The request with its body in chunks of seven bytes, and then these trailers."""
    body = orjson.dumps(ask.body)
    chunks = b"".join(
        b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (body[at : at + 7] for at in range(0, len(body), 7))
    )
    head = "\r\n".join([f"POST {ask.target} HTTP/1.1", f"Host: {ask.host}", "Transfer-Encoding: chunked", *lines])
    return head.encode() + b"\r\n\r\n" + chunks + b"0\r\n" + trailers + b"\r\n"


@pytest.mark.parametrize("ask", [CHAT, streamed(CHAT)], ids=["json", "stream"])
async def test_a_chunked_body_is_read_and_its_trailers_are_dropped(
    ask: Ask, stage: Staged, caplog: pytest.LogCaptureFixture
) -> None:
    sent = chunked(ask, b"X-Checksum: 1234\r\nX-Other: a\r\n", "Trailer: X-Checksum")
    async with stage(Reply(delay_s=0.1), grace_s=0.05) as on, Wire(on.proxy.port) as wire:
        await wire.tunnel(ask.host, on.session, on.trust)
        await wire.send(sent)
        if ask is CHAT:
            assert (await wire.response())[0] == 200
            await wire.send(sent)  # the connection is as good as before
            assert (await wire.response())[0] == 200
        else:
            await until(lambda: on.calls())
        for call in on.calls():
            assert (call.error, call.request.messages[0]["content"]) == (None, "Say hello.")
        assert len(on.calls()) == (2 if ask is CHAT else 1)
        assert "crashed" not in caplog.text


async def test_trailers_that_are_no_headers_are_a_400_or_the_end_of_the_connection_and_no_call(
    stage: Staged, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage() as on, Wire(on.proxy.port) as wire:
        await wire.tunnel(CHAT.host, on.session, on.trust)
        await wire.send(chunked(CHAT, b"no header at all\r\n"))
        assert b"200 OK" not in await wire.rest()
        assert on.calls() == []
        assert "crashed" not in caplog.text


@pytest.mark.parametrize("ask", [CHAT, streamed(CHAT)], ids=["json", "stream"])
async def test_a_client_that_closes_its_sending_side_counts_as_gone(ask: Ask, stage: Staged) -> None:
    """No harness and no SDK does; docs/proxy.md says it."""
    async with stage(Reply(delay_s=30), grace_s=0.1, keepalive_s=0.1) as on, Wire(on.proxy.port) as wire:
        body = orjson.dumps(ask.body)
        head = f"POST http://{ask.host}{ask.target} HTTP/1.1\r\nHost: {ask.host}\r\nContent-Length: {len(body)}\r\n"
        await wire.send(f"{head}Proxy-Authorization: {basic(on.session)}\r\n\r\n".encode() + body)
        await until(lambda: on.fake.running == 1)
        wire.writer.write_eof()
        assert b"Hello." not in await wire.rest()
        await until(lambda: on.calls())
        (call,) = on.calls()
        assert call.delivery.status in ("aborted", "partial")
        assert on.fake.cancelled == 1


@pytest.mark.parametrize(
    "head",
    ["Content-Length: 200000000", "Transfer-Encoding: chunked"],
    ids=["told", "not told"],
)
async def test_a_body_beyond_all_measure_is_a_413_before_it_is_all_gathered(head: str, stage: Staged) -> None:
    async with stage(body_size_limit="1m") as on, Wire(on.proxy.base_url_port) as wire:
        await wire.send(f"POST /s/{on.session.id}/v1/messages HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n".encode())
        if "chunked" in head:
            with suppress(ConnectionError):
                for _ in range(20):
                    await wire.send(b"186a0\r\n" + b"x" * 100_000 + b"\r\n")
        assert (await wire.response())[0] == 413
        assert on.calls() == []


def test_at_most_twice_the_largest_body_is_gathered() -> None:
    assert human.parse_size(fence.DEFAULTS["body_size_limit"]) == 2 * LARGEST_BODY


TOO_LARGE = {"anthropic": "request_too_large", "google": "INVALID_ARGUMENT"}


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
async def test_a_session_whose_log_is_full_is_served_no_more_and_says_why(ask: Ask, stage: Staged) -> None:
    async with stage() as on:
        other = on.open_session()
        assert (await on.post(ask.saying("hello " * 400))).ok
        on.border.session_bytes = 1200
        for _ in range(2):
            got = await on.post(ask)
            assert (got.status, status_of(got.json)) == (413, TOO_LARGE.get(ask.provider, "invalid_request_error"))
            assert "the session's limit of 1200 bytes" in got.json["error"]["message"]
        assert (await on.post(ask, session=other)).ok
        assert len(on.fake.requests) == 2
        assert len(on.calls()) == 1
        limited = on.session.log.folder.load().limited
        assert [reason.partition(" ")[0] for reason in limited] == ["calls.jsonl", "flows.mitm"]
        assert on.session.log.session.poisoned is None


UPGRADE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: api.openai.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


async def test_P046_P048_a_websocket_is_refused_with_a_426_on_both_ways_in_and_is_no_call(stage: Staged) -> None:
    async with stage() as on:
        async with Wire(on.proxy.base_url_port) as wire:
            await wire.send(UPGRADE)
            status, headers, body = await wire.response()
            assert (status, headers["connection"]) == (426, "close")
            assert json.loads(body) == {"error": {"message": "polar: use HTTPS, not a websocket"}}
            assert await wire.rest() == b""
        async with Wire(on.proxy.port) as wire:
            await wire.tunnel("api.openai.com", on.session, on.trust)
            await wire.send(UPGRADE)
            assert (await wire.response())[0] == 426
        assert on.calls() == []


async def test_http2_is_not_offered(stage: Staged) -> None:
    """A waiting hook does not see that an h2 stream was reset, and so could not stop the engine."""
    async with stage() as on, Wire(on.proxy.port) as wire:
        on.trust.set_alpn_protocols(["h2", "http/1.1"])
        await wire.tunnel("api.openai.com", on.session, on.trust)
        assert wire.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"


async def test_a_client_that_does_not_trust_the_ca_is_told_of_in_the_log(
    stage: Staged, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage() as on, Wire(on.proxy.port) as wire:
        with pytest.raises(ssl.SSLCertVerificationError):
            await wire.tunnel("api.openai.com", on.session, ssl.create_default_context())
        await until(lambda: "a client broke off TLS to api.openai.com: does it trust polar's CA" in caplog.text)


async def test_a_saved_flow_is_left_as_it_is() -> None:
    intercept = Intercept(Border())
    flow = tflow.tflow(resp=True)
    before = flow.get_state()
    await intercept.requestheaders(flow)
    await intercept.request(flow)
    await intercept.response(flow)
    assert flow.get_state() == before


# The forms that HTTP allows


def raw_post(ask: Ask, on: Stage, *lines: str, body: bytes | None = None) -> bytes:
    """The request as bytes; `lines` are further header lines, and say the body's length."""
    sent = ask.with_key(on.session.token)
    data = orjson.dumps(ask.body) if body is None else body
    if not lines:
        lines = (f"Content-Length: {len(data)}",)
    head = [f"POST /s/{on.session.id}{sent.target} HTTP/1.1", "Host: 127.0.0.1", *lines]
    head += [f"{name}: {value}" for name, value in sent.headers.items()]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


async def test_an_answer_to_head_has_no_body_and_leaves_the_connection_usable(stage: Staged) -> None:
    async with stage() as on, Wire(on.proxy.base_url_port) as wire:
        for path, status in (("/", 404), ("/healthz", 200)):
            await wire.send(f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            got, headers, _ = await wire.response(head=True)
            assert got == status
            assert int(headers["content-length"]) > 0
        await wire.send(raw_post(CHAT, on))
        assert (await wire.response())[0] == 200


async def test_two_requests_sent_at_once_are_answered_in_order(stage: Staged) -> None:
    async with stage(Reply("one", delay_s=0.2), Reply("two")) as on, Wire(on.proxy.base_url_port) as wire:
        await wire.send(raw_post(CHAT, on) + raw_post(ANTHROPIC, on))
        first, second = await wire.response(), await wire.response()
        assert b'"content":"one"' in first[2]
        assert b'"text":"two"' in second[2]
        assert [call.delivery.status for call in on.calls()] == ["delivered"] * 2


async def test_a_client_that_expects_100_continue_gets_it_and_its_answer(stage: Staged) -> None:
    async with stage() as on, Wire(on.proxy.base_url_port) as wire:
        whole = raw_post(CHAT, on, "Expect: 100-continue", f"Content-Length: {len(orjson.dumps(CHAT.body))}")
        head, _, body = whole.partition(b"\r\n\r\n")
        await wire.send(head + b"\r\n\r\n")
        assert (await wire.response())[0] == 100
        await wire.send(body)
        assert (await wire.response())[0] == 200


@pytest.mark.parametrize("grace_s", [10.0, 0.05], ids=["hook", "loopback"])
async def test_a_chunked_request_is_read(grace_s: float, stage: Staged) -> None:
    ask = streamed(CHAT)
    data = orjson.dumps(ask.body)
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (data[:10], data[10:])) + b"0\r\n\r\n"
    async with stage(Reply(delay_s=0.1), grace_s=grace_s, keepalive_s=0.05) as on, Wire(on.proxy.base_url_port) as wire:
        await wire.send(raw_post(ask, on, "Transfer-Encoding: chunked", "Connection: close", body=chunks))
        assert b"Hello." in await wire.rest()
        assert on.calls()[0].delivery.status == "delivered"


@pytest.mark.parametrize("ask", [CHAT, streamed(CHAT)], ids=["hook", "loopback"])
async def test_a_body_of_five_megabytes_arrives_whole(ask: Ask, stage: Staged) -> None:
    text = "x" * 5_000_000
    # The stand-in's tokens are bytes: as a prompt of token ids they would be forty times what a model makes of them.
    async with stage(Reply(token_ids=False, delay_s=0.2), grace_s=0.05, tokens="chat") as on:
        got = await on.post(ask.saying(text))
        assert got.status == 200
        (call,) = on.calls()
        assert call.request.messages[0]["content"] == text


@pytest.mark.parametrize("ask", [CHAT, streamed(CHAT)], ids=["hook", "loopback"])
async def test_an_answer_of_two_megabytes_arrives_whole(ask: Ask, stage: Staged) -> None:
    text = "x" * 2_000_000
    async with stage(Reply(text, token_ids=False, logprobs=False, delay_s=0.2), grace_s=0.05, keepalive_s=5) as on:
        got = await on.post(ask)
        assert text.encode() in got.body
        (call,) = on.calls()
        assert call.delivery.status == "delivered"
        sent = len(got.body) - (len(ask.kept(got.body)) if ask is not CHAT else 0)
        assert call.delivery.bytes_sent == sent


async def test_broken_http_is_a_400_and_harms_nobody_else(stage: Staged, sentinel: Sentinel) -> None:
    async with stage() as on:
        for data in (
            b"nonsense\r\n\r\n",
            b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
            b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
            b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ):
            async with Wire(on.proxy.base_url_port) as wire:
                await wire.send(data)
                answer = await wire.rest()
                assert answer == b"" or answer.startswith(b"HTTP/1.1 400"), answer
        assert (await on.post(CHAT)).status == 200


# Clients that leave


async def aborted(on: Stage, *, asked: bool) -> Call:
    """The record of the call whose client left; `asked` says that the engine had begun on it."""
    if asked:
        assert await until(lambda: on.fake.cancelled == 1) < 1.0 + on.late_s
    await until(on.calls)
    (call,) = on.calls()
    return call


@pytest.mark.parametrize("through", ["base-url", "tls"])
@pytest.mark.parametrize(
    ("ask", "grace_s"),
    [(CHAT, 10.0), (streamed(ANTHROPIC), 10.0), (streamed(ANTHROPIC), 0.05)],
    ids=["json", "in-grace", "keep-alives"],
)
async def test_a_client_that_leaves_cancels_the_engines_work_within_a_second(
    ask: Ask, grace_s: float, through: str, stage: Staged
) -> None:
    async with stage(Reply(delay_s=30), grace_s=grace_s, keepalive_s=0.05) as on:
        async with Wire(on.proxy.base_url_port if through == "base-url" else on.proxy.port) as wire:
            if through == "tls":
                await wire.tunnel(ask.host, on.session, on.trust)
            await wire.send(raw_post(ask, on))
            await until(lambda: on.fake.running == 1)
            if grace_s < 1:
                await wire.reader.readuntil(b"ping")
            wire.abort()
        call = await aborted(on, asked=True)
        assert (call.delivery.status, call.delivery.bytes_sent) == ("aborted", 0)
        assert call.error and (call.error.fault, call.error.kind, call.error.status) == ("client", "client_left", None)
        assert call.response is None
        # The proxy still serves, and one flow tells of it.
        assert (await on.request("GET", f"http://127.0.0.1:{on.proxy.base_url_port}/healthz")).status == 200
        await until(on.flows)
        assert len(on.flows()) == 1


async def test_a_client_that_closes_its_side_after_sending_has_left(stage: Staged) -> None:
    """mitmproxy takes a half-closed client for a gone one; the call must end, not linger."""
    async with stage(Reply(delay_s=30)) as on, Wire(on.proxy.base_url_port) as wire:
        await wire.send(raw_post(CHAT, on))
        await until(lambda: on.fake.running == 1)
        wire.writer.write_eof()
        assert await wire.rest() == b""
        call = await aborted(on, asked=True)
        assert call.delivery.status == "aborted"


async def test_a_client_that_leaves_amid_a_long_answer_is_partial(stage: Staged) -> None:
    text = "x" * 3_000_000
    ask = streamed(CHAT)
    async with stage(Reply(text, token_ids=False, logprobs=False, delay_s=0.2), grace_s=0.05, keepalive_s=5) as on:
        async with Wire(on.proxy.base_url_port) as wire:
            await wire.send(raw_post(ask, on))
            await wire.reader.readuntil(b"xxx")
            wire.abort()
        call = await aborted(on, asked=False)
        assert call.delivery.status == "partial"
        assert 0 < call.delivery.bytes_sent < 3_000_000
        assert call.error is None
        assert call.response and call.response.text == text


async def test_an_answer_that_is_there_when_the_client_is_gone_was_not_delivered(stage: Staged) -> None:
    async with stage(Reply("late")) as on:
        answered = asyncio.Event()
        chat = on.engine.chat

        async def answer_to_no_one(*args: Any, **kwargs: Any) -> Any:
            sample = await chat(*args, **kwargs)
            answered.set()
            with suppress(asyncio.CancelledError):  # too late for that: the answer is there
                await asyncio.sleep(LIMIT_S)
            return sample

        on.engine.chat = answer_to_no_one  # type: ignore[method-assign]  # a moment that can't be met by chance
        async with Wire(on.proxy.base_url_port) as wire:
            await wire.send(raw_post(CHAT, on))
            await answered.wait()
            wire.abort()
        call = await aborted(on, asked=False)
        assert (call.delivery.status, call.delivery.bytes_sent) == ("aborted", 0)
        assert call.response and call.response.text == "late"
        assert call.error is None


async def test_after_a_call_whose_client_left_the_next_client_is_served(stage: Staged) -> None:
    async with stage(Reply(delay_s=30), Reply()) as on:
        async with Wire(on.proxy.base_url_port) as wire:
            await wire.send(raw_post(CHAT, on))
            await until(lambda: on.fake.running == 1)
            wire.abort()
        assert (await on.post(CHAT)).status == 200
        assert [call.delivery.status for call in on.calls()] == ["aborted", "delivered"]


async def test_a_session_that_closes_amid_a_call_still_gets_its_record(stage: Staged) -> None:
    async with stage(Reply(delay_s=30)) as on:
        async with Wire(on.proxy.base_url_port) as wire:
            await wire.send(raw_post(CHAT, on))
            await until(lambda: on.fake.running == 1)
            on.border.sessions.remove(on.session)
            on.session.log.close("timeout")
            wire.abort()
        call = await aborted(on, asked=True)
        assert call.delivery.status == "aborted"
        await until(lambda: on.session.log.folder.load().calls == 1)
        record = on.session.log.folder.load()
        assert (record.status, record.poisoned) == ("timeout", None)


@pytest.mark.parametrize(("ask", "grace_s"), [(CHAT, 10.0), (streamed(CHAT), 0.05)], ids=["hook", "loopback"])
async def test_a_proxy_that_ends_amid_a_call_records_it_as_aborted_once(
    ask: Ask, grace_s: float, stage: Staged
) -> None:
    async with stage(Reply(delay_s=30), grace_s=grace_s, keepalive_s=0.05) as on:
        waiting = asyncio.create_task(on.post(ask))
        await until(lambda: on.fake.running == 1)
        await asyncio.sleep(0.1)
        await asyncio.wait_for(on.proxy.stop(), 3)
        await asyncio.wait([waiting], timeout=LIMIT_S)
        assert waiting.done()
        if (error := waiting.exception()) is None:
            assert waiting.result().status in (200, 499)
        else:
            assert (
                "disconnect" in str(error).lower() or "payload" in str(error).lower() or "closed" in str(error).lower()
            )
        assert await until(lambda: on.fake.cancelled == 1) < 1.0 + on.late_s
        (call,) = on.calls()
        assert call.delivery.status == "aborted"


async def test_clients_that_leave_at_any_moment_lose_no_record_and_double_none(stage: Staged) -> None:
    chance = random.Random(7)
    asks = [CHAT, streamed(CHAT), streamed(ANTHROPIC)]
    async with stage(grace_s=0.1, keepalive_s=0.02) as on:
        on.fake.script = [Reply(delay_s=chance.uniform(0, 0.3)) for _ in range(200)]

        async def leaving(number: int) -> bool:
            """Whether the whole answer came before this client lost its patience; every second one has no end of it."""
            patience = LIMIT_S if number % 2 else chance.uniform(0, 0.3)
            ask = asks[number % len(asks)].saying(f"number {number}")
            async with Wire(on.proxy.base_url_port) as wire:
                await wire.send(
                    raw_post(ask, on, "Connection: close", f"Content-Length: {len(orjson.dumps(ask.body))}")
                )
                try:
                    await asyncio.wait_for(wire.reader.read(-1), patience)
                except TimeoutError:
                    wire.abort()
                    return False
                return True

        served = await asyncio.gather(*map(leaving, range(60)))
        await until(lambda: on.fake.running == 0)
        sent = {body["messages"][0]["content"] for body in on.fake.requests}
        await until(lambda: sent <= {call.request.messages[0]["content"] for call in on.calls()})
        calls = {call.request.messages[0]["content"]: call for call in on.calls()}
        assert len(calls) == len(on.calls())
        for number, whole in enumerate(served):
            if whole:
                assert calls[f"number {number}"].delivery.status == "delivered"
        assert {"delivered", "aborted"} <= {call.delivery.status for call in calls.values()}
        await until(lambda: len(on.flows()) == len(calls))


# What is stored, and where


CARRIERS: list[tuple[str, Callable[[str], dict[str, Any]]]] = [
    ("x-api-key", lambda key: {"headers": {"X-Api-Key": key}}),
    ("bearer", lambda key: {"headers": {"Authorization": f"Bearer {key}"}}),
    ("x-goog-api-key", lambda key: {"headers": {"x-goog-api-key": key}}),
    ("api-key", lambda key: {"headers": {"Api-Key": key}}),
    ("query", lambda key: {"params": {"key": key}}),
]


async def test_no_secret_is_in_any_file_of_the_session(stage: Staged) -> None:
    async with stage(Reply(delay_s=0.1), grace_s=0.02, keepalive_s=0.05) as on:
        token = on.session.token
        url = f"http://127.0.0.1:{on.proxy.base_url_port}"
        foreign = "sk-foreign-key"
        for ask in (CHAT, streamed(CHAT)):
            for _, carry in CARRIERS:
                got = await on.request("POST", url + ask.target, json=ask.body, **carry(token))
                assert got.status == 200
            others = {
                "Cookie": f"auth={foreign}",
                "Referer": f"https://page.invalid/?key={foreign}",
                "X-Auth-Token": foreign,
                "Apikey": foreign,
            }
            got = await on.post_through(ask.with_key(foreign), headers=others)
            assert got.status == 200
            plain = await on.request(
                "POST",
                f"http://api.openai.com{ask.target}?key={foreign}&access_token={foreign}",
                json=ask.body,
                proxy=on.proxy_url(),
            )
            assert plain.status == 200
        assert len(on.calls()) == len(on.flows()) == 14
        on.session.log.close("completed")
        files = [path for path in on.session.log.folder.path.rglob("*") if path.is_file()]
        assert {"calls.jsonl", "session.json", "flows.mitm"} <= {path.name for path in files}
        for path in files:
            data = path.read_bytes()
            assert token.encode() not in data, path
            assert foreign.encode() not in data, path
            assert b"x-polar-ticket" not in data, path
            assert b"Basic " not in data, path


async def test_thirty_two_calls_at_once_are_each_recorded_once(stage: Staged) -> None:
    async with stage(Reply(delay_s=0.3), grace_s=0.1, keepalive_s=0.1) as on:
        asks = [(CHAT if number % 2 else streamed(ANTHROPIC)).saying(f"number {number}") for number in range(32)]
        answers = await asyncio.gather(*(on.post(ask, headers={"connection": "close"}) for ask in asks))
        assert {got.status for got in answers} == {200}
        calls = on.calls()
        said = sorted(int(call.request.messages[0]["content"].split()[1]) for call in calls)
        assert said == list(range(32))
        assert len({call.identity.call_id for call in calls}) == 32
        assert {call.delivery.status for call in calls} == {"delivered"}
        assert min(call.delivery.bytes_sent for call in calls) > 0
        assert len(on.flows()) == 32


async def test_a_full_disk_poisons_the_session_and_fails_no_call(stage: Staged) -> None:
    async with stage() as on:
        assert (await on.post(CHAT)).status == 200
        size = on.session.log.folder.calls.stat().st_size
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
        try:
            got = await on.post(CHAT.saying("z" * 5000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert got.status == 200
        assert b"Hello." in got.body
        assert (await on.post(CHAT)).status == 200
        assert len(on.calls()) == 2
        assert len(on.flows()) >= 1  # readable: nothing torn in it
        poisoned = on.session.log.folder.load().poisoned
        assert poisoned and "was not recorded" in poisoned


async def test_a_session_folder_that_is_gone_fails_no_call(stage: Staged) -> None:
    async with stage() as on:
        assert (await on.post(CHAT)).status == 200
        shutil.rmtree(on.session.log.folder.path)
        for ask in (CHAT, streamed(CHAT)):
            got = await on.post(ask)
            assert got.status == 200
            assert b"Hello." in got.body
        assert on.session.log.session.poisoned


@pytest.mark.parametrize("ask", STREAM_ASKS, ids=str)
async def test_a_stream_has_its_providers_content_type_within_the_grace_too(ask: Ask, stage: Staged) -> None:
    async with stage() as on:
        got: Got = await on.post(ask)
        assert (got.status, got.headers["content-type"]) == (200, ask.stream_type)
        assert on.calls()[0].origin.streamed is True
        assert sys.getsizeof(got.body) > 0


async def test_a_session_header_that_is_no_utf8_is_recorded_with_its_bad_bytes_replaced(stage: Staged) -> None:
    async with stage() as on, Wire(on.proxy.base_url_port) as wire:
        await wire.send(raw_post(CHAT, on).replace(b"Host:", b"X-Session-Id: a\xffb\r\nHost:", 1))
        assert (await wire.response())[0] == 200
        await until(lambda: len(on.calls()) == 1)
        assert on.calls()[0].origin.harness_ids == {"x-session-id": "a\ufffdb"}


async def test_thousands_of_headers_and_query_fields_hold_nobody_up(stage: Staged) -> None:
    """Read in one pass: by mitmproxy's own mappings this took minutes, in which every other call stood still."""
    async with stage() as on, Wire(on.proxy.base_url_port) as wire:
        query = "&".join(f"q{n}=1" for n in range(8000))
        lines = "".join(f"X-Filler-{n}: 1\r\n" for n in range(4000))
        request = raw_post(CHAT, on).replace(b" HTTP/1.1", f"?{query} HTTP/1.1".encode(), 1)
        await wire.send(request.replace(b"Host:", f"{lines}Host:".encode(), 1))
        assert (await wire.response())[0] == 200
