"""Calls that the engine works on for long: nothing between it and the client gives up before it, or falls silent."""

import asyncio
import inspect
from itertools import pairwise

import pytest

from polar_mitm.engine.client import Engine
from polar_mitm.proxy.border import Border
from polar_mitm.proxy.fence import DEFAULTS
from polar_mitm.proxy.retries import KEPT_S
from tests.conftest import Staged
from tests.fakes.vllm import Reply
from tests.proxy.asks import STREAM_ASKS, Ask
from tests.proxy.stage import Got

TWENTY_MINUTES = 20 * 60.0
SCALE = 1000
"""The clock of the test below: one of its seconds stands for so many."""


@pytest.mark.parametrize("ask", STREAM_ASKS, ids=str)
async def test_P136_a_call_of_twenty_minutes_is_kept_alive_throughout(ask: Ask, stage: Staged) -> None:
    keepalive_s, wanted = 10 / SCALE, int(TWENTY_MINUTES / 10)
    hold = asyncio.Event()

    def watch(got: Got) -> None:
        if ask.keepalives(got.body) >= wanted:
            hold.set()

    async with stage(Reply(hold=hold), grace_s=10 / SCALE, keepalive_s=keepalive_s) as on:
        got = await on.post(ask, watch=watch)
        assert got.status == 200
        assert b"Hello." in got.body
        gaps = [later - earlier for earlier, later in pairwise([got.headers_at, *got.at])]
        assert max(gaps) < keepalive_s + 0.5 + on.late_s
        assert on.calls()[0].delivery.status == "delivered"


def test_a_stream_is_never_silent_for_more_than_ten_seconds_by_default() -> None:
    assert (Border().grace_s, Border().keepalive_s) == (10.0, 10.0)


async def test_nothing_between_client_and_engine_ends_a_call_that_the_engine_may_still_answer(stage: Staged) -> None:
    limit_s = inspect.signature(Engine).parameters["timeout_s"].default
    assert limit_s >= 3 * TWENTY_MINUTES
    # mitmproxy's watchdog cuts connections that are idle for so long, as one that is not streamed is.
    assert DEFAULTS["tcp_timeout"] > limit_s
    async with stage() as on:
        assert on.proxy._master
        assert on.proxy._master.options.tcp_timeout == DEFAULTS["tcp_timeout"]
        http = on.engine._transport._session
        assert http
        assert (http.timeout.total, http.timeout.sock_read) == (None, None)
    assert KEPT_S >= 600  # the SDKs' own limit, after which they retry
