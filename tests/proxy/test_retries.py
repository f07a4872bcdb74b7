"""Retries that an SDK marks: one sample, one answer for all, and a record of each; what is no such retry is sampled."""

import asyncio
import gc
import re
import weakref
from dataclasses import replace
from typing import Any

import pytest

from polar_mitm.providers import Begun, Request
from polar_mitm.proxy import retries
from polar_mitm.proxy.exchange import Answer
from polar_mitm.proxy.retries import KEPT, Retries, Sampled, key_of, retry_count
from polar_mitm.proxy.shared import Shared
from tests.conftest import Staged
from tests.fakes.vllm import Reply
from tests.proxy.asks import ANTHROPIC, CHAT, JSON_ASKS, STREAM_ASKS, Ask, streamed, with_tool
from tests.proxy.stage import Stage, Wire, until
from tests.proxy.test_intercept import raw_post

FIRST = {"x-stainless-retry-count": "0"}
AGAIN = {"x-stainless-retry-count": "1"}


@pytest.mark.parametrize("ask", (*JSON_ASKS, *STREAM_ASKS), ids=str)
async def test_P155_a_retry_of_an_answered_call_gets_that_answer_and_is_not_sampled(ask: Ask, stage: Staged) -> None:
    async with stage(Reply("one"), Reply("two")) as on:
        first = await on.post(ask, headers=FIRST)
        again = await on.post(ask, headers=AGAIN)
        assert (again.status, again.body) == (first.status, first.body)
        assert again.headers["content-type"] == first.headers["content-type"]
        assert len(on.fake.requests) == 1
        sampled, retry = on.calls()
        assert (sampled.origin.kind, sampled.checks.valid) == ("turn", True)
        assert retry.origin.kind == "retry"
        name = sampled.identity.call_id
        assert retry.origin.kind_reason == f"repeats {name}: x-stainless-retry-count 1, an equal body"
        assert (retry.response, retry.error, retry.prompt_ids) == (None, None, [])
        assert (retry.checks.valid, retry.checks.invalid_reason) == (False, f"answered from {name}")
        assert (retry.delivery.status, retry.delivery.bytes_sent) == ("delivered", len(again.body))
        assert retry.request.messages == sampled.request.messages
        assert on.flows()[1].comment == retry.origin.kind_reason


@pytest.mark.parametrize(("ask", "grace_s"), [(CHAT, 10.0), (streamed(CHAT), 10.0), (streamed(ANTHROPIC), 0.05)])
async def test_P155_a_retry_of_a_call_under_way_waits_for_its_answer(ask: Ask, grace_s: float, stage: Staged) -> None:
    async with stage(Reply("one", delay_s=0.4), Reply("two"), grace_s=grace_s, keepalive_s=5) as on:
        first = asyncio.create_task(on.post(ask, headers=FIRST))
        await until(lambda: on.fake.running == 1)
        again = await asyncio.gather(*(on.post(ask, headers=AGAIN) for _ in range(3)))
        # How many keep-alives each of them was given is the clock's.
        assert len({re.sub(rb"event: ping\ndata: [^\n]*\n\n", b"", got.body) for got in [*again, await first]}) == 1
        assert len(on.fake.requests) == 1
        calls = on.calls()
        assert sorted(call.origin.kind for call in calls) == ["retry", "retry", "retry", "turn"]
        assert {call.delivery.status for call in calls} == {"delivered"}


async def test_P155_the_first_client_may_leave_while_its_retry_waits(stage: Staged) -> None:
    async with stage(Reply("one", delay_s=0.5), Reply("two")) as on:
        async with Wire(on.proxy.base_url_port) as wire:
            await wire.send(raw_post(CHAT, on))
            await until(lambda: on.fake.running == 1)
            again = asyncio.create_task(on.post(CHAT, headers=AGAIN))
            await asyncio.sleep(0.15)
            wire.abort()
        assert b"one" in (await again).body
        assert (len(on.fake.requests), on.fake.cancelled) == (1, 0)
        await until(lambda: len(on.calls()) == 2)
        sampled, retry = sorted(on.calls(), key=lambda call: call.origin.kind, reverse=True)
        # P157: the tokens are on the first call's record, and the retry's receipt says that they arrived.
        assert (sampled.origin.kind, sampled.delivery.status, sampled.error) == ("turn", "aborted", None)
        assert sampled.response and sampled.response.text == "one"
        assert sampled.checks.valid
        assert (retry.origin.kind, retry.delivery.status) == ("retry", "delivered")
        assert sampled.identity.call_id in retry.origin.kind_reason


async def test_when_the_retry_leaves_too_the_engine_stops(stage: Staged) -> None:
    async with stage(Reply(delay_s=30)) as on:
        async with Wire(on.proxy.base_url_port) as wire, Wire(on.proxy.base_url_port) as other:
            await wire.send(raw_post(CHAT, on))
            await until(lambda: on.fake.running == 1)
            await other.send(raw_post(replace(CHAT, headers=AGAIN), on))
            await asyncio.sleep(0.15)
            wire.abort()
            await asyncio.sleep(0.15)
            assert on.fake.cancelled == 0
            other.abort()
        assert await until(lambda: on.fake.cancelled == 1) < 1.0
        await until(lambda: len(on.calls()) == 2)
        calls = on.calls()
        assert sorted(call.origin.kind for call in calls) == ["retry", "turn"]
        for call in calls:
            assert (call.delivery.status, call.response) == ("aborted", None)
            assert call.error and call.error.kind == "client_left"


async def leaving(on: Stage, ask: Ask) -> None:
    """Send the request, and leave while the engine works on it."""
    async with Wire(on.proxy.base_url_port) as wire:
        await wire.send(raw_post(ask, on))
        await until(lambda: on.fake.running == 1)
        wire.abort()


@pytest.mark.parametrize("grace_s", [10.0, 0.05])
async def test_P155_a_client_that_is_too_impatient_finds_its_call_under_way_again(
    grace_s: float, stage: Staged
) -> None:
    hold = asyncio.Event()
    marked = streamed(CHAT) if grace_s < 1 else CHAT
    async with stage(Reply("one", hold=hold), Reply("two"), grace_s=grace_s, keepalive_s=0.05) as on:
        await leaving(on, replace(marked, headers=FIRST))
        await leaving(on, replace(marked, headers=AGAIN))
        assert not on.calls()
        again = asyncio.create_task(on.post(marked, headers={"x-stainless-retry-count": "2"}))
        await asyncio.sleep(0.1)
        hold.set()
        assert b"one" in (await again).body
        assert (len(on.fake.requests), on.fake.cancelled) == (1, 0)
        await until(lambda: len(on.calls()) == 3)
        calls = on.calls()
        assert sorted(call.origin.kind for call in calls) == ["retry", "retry", "turn"]
        assert sorted(call.delivery.status for call in calls) == ["aborted", "aborted", "delivered"]
        (sampled,) = [call for call in calls if call.response]
        assert sampled.origin.kind == "turn"


async def test_a_call_that_nobody_comes_back_for_is_ended(stage: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "LINGER_S", 0.5)
    async with stage(Reply(delay_s=30)) as on:
        await leaving(on, replace(CHAT, headers=FIRST))
        await until(lambda: on.fake.cancelled == 1)
        await until(lambda: len(on.calls()) == 1)
        (call,) = on.calls()
        assert (call.delivery.status, call.response) == ("aborted", None)
        assert call.error
        assert call.error.kind == "client_left"


async def test_the_answer_to_a_client_that_left_is_there_for_its_retry(stage: Staged) -> None:
    async with stage(Reply("one", delay_s=0.3), Reply("two")) as on:
        await leaving(on, replace(CHAT, headers=FIRST))
        await until(lambda: len(on.calls()) == 1)
        assert b"one" in (await on.post(CHAT, headers=AGAIN)).body
        assert len(on.fake.requests) == 1
        first, retry = on.calls()
        assert (first.delivery.status, first.error, first.checks.valid) == ("aborted", None, True)
        assert retry.origin.kind == "retry"


async def test_nothing_lingers_once_the_harness_has_ended(stage: Staged) -> None:
    async with stage(Reply(delay_s=30)) as on:
        await leaving(on, replace(CHAT, headers=FIRST))
        await asyncio.sleep(0.2)
        assert on.fake.cancelled == 0
        on.session.over.set()
        await until(lambda: on.fake.cancelled == 1)
        await until(lambda: len(on.calls()) == 1)


async def test_nothing_lingers_once_polar_ends(stage: Staged) -> None:
    async with stage(Reply(delay_s=30)) as on:
        await leaving(on, replace(CHAT, headers=FIRST))
        await asyncio.sleep(0.2)
    (call,) = on.calls()
    assert call.delivery.status == "aborted"


async def test_a_retry_of_a_call_whose_client_left_is_sampled(stage: Staged) -> None:
    async with stage(Reply(delay_s=30), Reply("two")) as on:
        async with Wire(on.proxy.base_url_port) as wire:
            await wire.send(raw_post(CHAT, on))
            await until(lambda: on.fake.running == 1)
            wire.abort()
        await until(lambda: on.fake.cancelled == 1)
        assert b"two" in (await on.post(CHAT, headers=AGAIN)).body
        left, retried = on.calls()
        assert (left.origin.kind, retried.origin.kind) == ("turn", "turn")
        assert retried.origin.kind_reason.endswith("; x-stainless-retry-count 1, but no equal call left a sample")


async def test_a_retry_of_a_call_that_failed_is_sampled(stage: Staged) -> None:
    async with stage(Reply(status=500, error="no"), Reply("two")) as on:
        assert (await on.post(CHAT, headers=FIRST)).status == 502
        assert b"two" in (await on.post(CHAT, headers=AGAIN)).body
        assert len(on.fake.requests) == 2


async def test_a_retry_that_waits_for_a_call_that_fails_gets_its_error_and_says_so(stage: Staged) -> None:
    async with stage(Reply(status=500, error="no", delay_s=0.3)) as on:
        first = asyncio.create_task(on.post(CHAT))
        await until(lambda: on.fake.running == 1)
        again = await on.post(CHAT, headers=AGAIN)
        assert (again.status, again.body) == (502, (await first).body)
        for call in on.calls():
            assert call.error and (call.error.fault, call.error.status) == ("engine", 502)


@pytest.mark.parametrize(
    ("changed", "headers"),
    [
        (CHAT, {}),
        (CHAT, FIRST),
        (CHAT, {"x-stainless-retry-count": "many"}),
        (CHAT.saying("Say more."), AGAIN),
        (with_tool(CHAT), AGAIN),
        (replace(CHAT, target="/v1/chat/completions?x=1"), AGAIN),
        (replace(CHAT, target="/other/chat/completions"), AGAIN),
    ],
    ids=["unmarked", "first", "no number", "other text", "other tools", "other query", "other path"],
)
async def test_what_is_not_marked_or_not_equal_is_sampled(changed: Ask, headers: dict[str, str], stage: Staged) -> None:
    async with stage(Reply("one"), Reply("two")) as on:
        assert b"one" in (await on.post(CHAT, headers=FIRST)).body
        assert b"two" in (await on.post(changed, headers=headers)).body
        assert "retry" not in [call.origin.kind for call in on.calls()]


async def test_a_retry_is_answered_from_the_latest_equal_call(stage: Staged) -> None:
    async with stage(Reply("one"), Reply("two")) as on:
        await on.post(CHAT)
        await on.post(CHAT)
        assert b"two" in (await on.post(CHAT, headers=AGAIN)).body


async def test_another_sessions_call_answers_no_retry(stage: Staged) -> None:
    async with stage(Reply("one"), Reply("two")) as on:
        other = on.open_session()
        await on.post(CHAT)
        assert b"two" in (await on.post(CHAT, session=other, headers=AGAIN)).body


# What is kept, and for how long


def test_a_retry_count_is_a_number_above_nothing() -> None:
    counts = {"0": 0, "1": 1, "12": 12, "": 0, "-1": 0, "1.5": 0, "x": 0, "9" * 500: 0, "\u0663": 0}
    assert {text: retry_count({"x-stainless-retry-count": text}) for text in counts} == counts
    assert retry_count({}) == 0


def test_a_key_is_the_path_the_query_and_the_body() -> None:
    request = Request("POST", "h", "/p", query={"a": "1", "b": "2"})
    same = Request("POST", "elsewhere", "/p", query={"b": "2", "a": "1"}, headers={"x": "y"})
    assert key_of(request, b"{}") == key_of(same, b"{}")
    others = [key_of(replace(request, **change), body) for change, body in CHANGES]
    assert len({key_of(request, b"{}"), *others}) == len(others) + 1


CHANGES: list[tuple[dict[str, Any], bytes]] = [
    ({"path": "/q"}, b"{}"),
    ({"query": {}}, b"{}"),
    ({}, b"{} "),
]


def sampled(status: int = 200, delay_s: float = 0.0) -> Sampled:
    async def work() -> Answer:
        await asyncio.sleep(delay_s)
        return Answer(status, "", b"")

    return Sampled("call_1", Begun("1", 1), Shared(work(), "call_1"))


async def test_only_so_many_answers_are_kept_and_those_under_way_longest() -> None:
    kept, running = Retries(), sampled(delay_s=5)
    kept.add(b"running", running)
    for number in range(2 * KEPT):
        done = sampled()
        await done.shared.result()
        kept.add(b"%d" % number, done)
    now = asyncio.get_running_loop().time()
    found = [number for number in range(2 * KEPT) if kept.find(b"%d" % number, now)]
    assert found == list(range(KEPT + 1, 2 * KEPT))
    assert kept.find(b"running", now) is running
    running.shared.task.cancel()
    assert kept.find(b"running", now) is None


async def test_an_answer_is_kept_for_so_long_after_it_came_however_long_that_took() -> None:
    kept, one = Retries(), sampled()
    kept.add(b"one", one)
    long_after = asyncio.get_running_loop().time() + 10 * retries.KEPT_S
    assert kept.find(b"one", long_after) is one
    await one.shared.result()
    await asyncio.sleep(0)
    ended_at = one.shared.ended_at
    assert ended_at is not None
    assert kept.find(b"one", ended_at + retries.KEPT_S - 1) is one
    assert kept.find(b"one", ended_at + retries.KEPT_S + 1) is None


async def test_an_error_is_no_answer_to_repeat() -> None:
    kept, failed = Retries(), sampled(status=502)
    kept.add(b"one", failed)
    await failed.shared.result()
    assert kept.find(b"one", 0.0) is None


async def test_a_session_that_is_over_leaves_the_memory_with_its_answers(stage: Staged) -> None:
    async with stage(Reply("one"), Reply("two")) as on:
        session = on.open_session()
        for ask in (CHAT, streamed(ANTHROPIC)):
            assert (await on.post(ask, session=session, headers=FIRST)).status == 200
        on.border.sessions.remove(session)
        session.log.close("completed")
        on.sessions.remove(session)
        seen = weakref.ref(session)
        del session
        await on.post(CHAT)  # the connection's last session is another one now

        def gone() -> bool:
            gc.collect()
            return seen() is None

        await until(gone)
