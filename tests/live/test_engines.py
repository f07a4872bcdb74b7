"""Changes of the weights on the real engine, and its place beside one that dies."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from polar_mitm.chat import ChatRequest, Text, User
from polar_mitm.engine.client import Engine
from polar_mitm.engine.control import UNNAMED
from polar_mitm.engine.pool import EnginePool, Trail
from tests.fakes.vllm import FakeVllm, Reply
from tests.needs import need
from tests.proxy.stage import until

pytestmark = pytest.mark.live
LIMIT_S = 120.0
MOST = 150
LONG = {"min_tokens": MOST, "max_tokens": MOST}
HELLO = ChatRequest((User((Text("Tell me of the sea. " * 60),)),))


@pytest.fixture(autouse=True)
async def unnamed(engine_url: str) -> AsyncIterator[None]:
    """The engine's weights have no name, before and after."""
    async with Engine(engine_url) as engine:
        if await engine.control.offered():
            await engine.control.rename(UNNAMED)
    yield
    async with Engine(engine_url) as engine:
        if await engine.control.offered():
            await engine.control.rename(UNNAMED)


async def test_a_change_on_a_real_engine_pauses_probes_and_names_the_version_of_each_call(engine_url: str) -> None:
    async with EnginePool.of([engine_url], policy_version="step-0") as engines:
        seat, policy = engines.seat("ses_1"), engines.policy
        trainable = await engines.members[0].engine.control.offered()
        before = await seat.chat(HELLO, tokens="exact", overrides={"max_tokens": 8})
        running = asyncio.create_task(seat.chat(HELLO, tokens="exact", overrides=LONG))
        await until(lambda: engines.members[0].engine._running)
        await policy.pause("drain", LIMIT_S)
        held = asyncio.create_task(seat.chat(HELLO, tokens="exact", overrides={"max_tokens": 8}))
        await until(lambda: policy.gate.held)
        await policy.load("step-1", None, LIMIT_S)
        await policy.resume("step-1")
        after = await held
        versions = [sample.policy_version for sample in (before, await running, after)]
        assert versions == ["step-0", "step-0", "step-1"]
        assert after.weight_versions == [(0, len(after.response_ids), "step-1")]
        # No prefix of older weights is taken for one: the cache was emptied, or the prompt has a salt of its own.
        assert before.prompt_ids == after.prompt_ids
        assert (after.usage.cached_tokens, after.invalid_reason) == (0, None)
        assert engines.members[0].salted is not trainable


@pytest.mark.parametrize("tokens", ["exact", "chat"])
async def test_a_call_that_is_aborted_keeps_what_it_had_sampled(engine_url: str, tokens: str) -> None:
    async with EnginePool.of([engine_url], policy_version="step-0") as engines:
        trail = Trail()
        call = asyncio.create_task(
            engines.seat("ses_1").chat(HELLO, tokens=tokens, overrides=LONG, trail=trail)  # type: ignore[arg-type]
        )
        await until(lambda: engines.members[0].engine._running)
        await asyncio.sleep(0.5)
        await engines.policy.pause("abort", LIMIT_S)
        await engines.policy.resume(None)
        sample = await call
        assert (len(sample.response_ids), sample.finish_reason) == (MOST, "length")
        for partial in trail.broken_off:
            assert (partial.finish_reason, partial.invalid_reason) == ("abort", None)
            assert len(partial.logprobs) == len(partial.response_ids) < MOST
        assert trail.tried


async def test_new_weights_go_into_a_call_that_is_kept(engine_url: str, tmp_path: Path) -> None:
    async with Engine(engine_url) as engine:
        need([] if await engine.control.offered() else ["the engine is not in development mode; the tests' own one is"])
        weights = orjson.loads((await engine._transport.get("/v1/models")).raw)["data"][0]["root"]
    copy = tmp_path / "weights"
    shutil.copytree(weights, copy)
    async with EnginePool.of([engine_url], policy_version="step-0") as engines:
        policy = engines.policy
        await policy.pause("drain", LIMIT_S)
        await policy.load("step-0", str(copy), LIMIT_S)
        await policy.resume("step-0")
        call = asyncio.create_task(engines.seat("ses_1").chat(HELLO, tokens="exact", overrides=LONG))
        await until(lambda: engines.members[0].engine._running)
        await asyncio.sleep(0.5)
        await policy.pause("keep", LIMIT_S)
        await policy.load("step-1", weights, LIMIT_S)
        await policy.resume("step-1")
        sample = await call
        assert (len(sample.response_ids), sample.invalid_reason) == (MOST, None)
        ends = [0, *(end for _, end, _ in sample.weight_versions)]
        assert [start for start, _, _ in sample.weight_versions] == ends[:-1]
        assert (ends[-1], sample.weight_versions[-1][2]) == (MOST, "step-1")


async def test_a_real_engine_answers_the_calls_of_one_that_died(engine_url: str) -> None:
    async with FakeVllm(Reply(delay_s=600)) as dying:
        dying.model = "tiny"
        async with EnginePool.of([dying.url, engine_url]) as engines:
            seat, trail = engines.seat("ses_1"), Trail()
            call = asyncio.create_task(seat.chat(HELLO, tokens="exact", overrides={"max_tokens": 8}, trail=trail))
            await until(lambda: dying.running)
            await dying.stop()
            sample = await call
            assert (sample.engine and sample.engine.url, [t.url for t in trail.tried]) == (engine_url, [dying.url])
            assert sample.invalid_reason is None
