"""What a session's `flows.mitm` holds: every flow of the session once, with its record, readable at any time."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from mitmproxy.contentviews import prettify_message

from polar_mitm.capture.record import Call
from polar_mitm.proxy import flows as flows_module
from tests.conftest import Staged
from tests.fakes.vllm import Reply
from tests.proxy.asks import ANTHROPIC, CHAT, JSON_ASKS, STREAM_ASKS, streamed
from tests.proxy.stage import Wire, read_flows, until


async def test_the_record_on_a_flow_is_the_record_in_the_log(stage: Staged) -> None:
    async with stage(Reply("Hi.", delay_s=0.1), grace_s=0.05, keepalive_s=0.05) as on:
        for ask in (*JSON_ASKS, *STREAM_ASKS):
            assert (await on.post(ask)).ok
        assert (await on.post_through(streamed(ANTHROPIC))).ok
        calls, flows = on.calls(), on.flows()
    assert len(calls) == len(flows) == 10
    assert [Call.model_validate_json(flow.metadata["polar"]) for flow in flows] == calls
    assert {flow.metadata["polar_session"] for flow in flows} == {on.session.id}
    assert all(flow.marked and flow.comment for flow in flows)


async def test_a_flow_shows_its_tokens_as_the_engine_told_them(stage: Staged) -> None:
    async with stage(Reply("Hi.", delay_s=0.1), grace_s=0.02, keepalive_s=0.05) as on:
        for ask in (CHAT, streamed(ANTHROPIC)):
            assert (await on.post(ask)).ok
        for flow in on.flows():
            assert flow.response
            shown = prettify_message(flow.response, flow)
            assert shown.view_name == "Polar tokens"
            assert "# sampled: 4 tokens\nHi." in shown.text


async def test_a_flow_holds_the_request_and_the_answer_as_they_went_over_the_wire(stage: Staged) -> None:
    async with stage(Reply("Hi.", delay_s=0.1), grace_s=0.02, keepalive_s=0.05) as on:
        for ask in (CHAT, streamed(CHAT)):
            got = await on.post(ask)
            flow = on.flows()[-1]
            assert flow.request.path == "/v1/chat/completions"
            assert flow.request.host_header == f"127.0.0.1:{on.proxy.base_url_port}"
            assert orjson.loads(flow.request.content or b"") == ask.body
            assert flow.response and flow.response.content == got.body
            assert flow.response.status_code == 200


async def test_other_requests_of_a_known_session_are_kept_too_and_those_of_strangers_nowhere(stage: Staged) -> None:
    async with stage() as on:
        through: dict[str, Any] = {"proxy": on.proxy_url(), "ssl": on.trust}
        await on.request("POST", "https://telemetry.invalid/v1/traces", json={"a": 1}, **through)
        await on.request("GET", f"http://127.0.0.1:{on.proxy.base_url_port}/v1/models")
        await on.post(CHAT, key="wrong")
        (flow,) = on.flows()
        assert (flow.request.pretty_url, flow.response and flow.response.status_code) == (
            "https://telemetry.invalid/v1/traces",
            404,
        )
        assert "polar" not in flow.metadata


async def test_sessions_keep_their_flows_apart(stage: Staged) -> None:
    async with stage() as on:
        other = on.open_session()
        await asyncio.gather(*(on.post(CHAT, session=session) for session in (on.session, other) for _ in range(4)))
        for session in (on.session, other):
            assert [flow.metadata["polar_session"] for flow in on.flows(session)] == [session.id] * 4


async def test_a_failed_call_and_an_aborted_one_have_their_flow_with_the_error_on_it(stage: Staged) -> None:
    async with stage(Reply(status=500, error="no luck"), Reply(delay_s=30)) as on:
        await on.post(CHAT)
        async with Wire(on.proxy.base_url_port) as wire:
            body = orjson.dumps(CHAT.body)
            head = f"POST /s/{on.session.id}/v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
            await wire.send(f"{head}Authorization: Bearer {on.session.token}\r\n\r\n".encode() + body)
            await until(lambda: on.fake.running == 1)
            wire.abort()
        await until(lambda: len(on.flows()) == 2)
        failed, left = on.flows()
        assert failed.response and failed.response.status_code == 502
        assert "engine: " in failed.comment and "no luck" in failed.comment
        assert left.error and "disconnected" in left.error.msg
        assert Call.model_validate_json(left.metadata["polar"]).delivery.status == "aborted"
        assert left.comment.endswith("client: the client left before the answer")


async def test_a_flow_that_does_not_fit_on_the_disk_leaves_the_file_readable(
    stage: Staged, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage() as on:
        assert (await on.post(CHAT)).ok
        append = flows_module._append

        def half(path: Path, flow: object, limit: int) -> bool:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(flows_module, "_append", half)
        assert (await on.post(CHAT)).ok
        monkeypatch.setattr(flows_module, "_append", append)
        assert (await on.post(CHAT)).ok
        assert len(on.flows()) == 2
        assert len(on.calls()) == 3
        assert "flows.mitm can't be written" in caplog.text
        assert on.session.log.session.poisoned is None  # the calls are all there


async def test_past_the_sessions_limit_no_flow_is_kept_and_the_session_says_so(stage: Staged) -> None:
    async with stage() as on:
        for _ in range(3):
            assert (await on.post(CHAT)).ok
        flows = on.session.log.folder.flows
        on.border.session_bytes = flows.stat().st_size + 10
        for _ in range(3):
            assert (await on.post(CHAT)).ok
        assert (len(on.flows()), len(on.calls())) == (3, 6)
        record = on.session.log.folder.load()
        assert record.poisoned is None  # the calls are all there
        assert [reason.partition(" ")[0] for reason in record.limited] == ["flows.mitm"]
        assert str(on.border.session_bytes) in record.limited[0]


def test_half_a_write_is_taken_back(tmp_path: Path) -> None:
    import resource

    from mitmproxy.test import tflow

    path = tmp_path / "flows.mitm"
    flows_module._append(path, tflow.tflow(), 10**9)
    size = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
    try:
        with pytest.raises(OSError, match=r"only 100 of \d+ bytes were written"):
            flows_module._append(path, tflow.tflow(), 10**9)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.stat().st_size == size
    flows_module._append(path, tflow.tflow(), 10**9)
    assert len(read_flows(path)) == 2
