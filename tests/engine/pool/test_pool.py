"""Several engines as one: places, health, and what becomes of a call whose engine dies."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from aiohttp import web

from polar_mitm.chat import CallError, ChatRequest, Text, User
from polar_mitm.engine.capabilities import EngineUnfit, EngineUnreachable
from polar_mitm.engine.client import EngineLost
from polar_mitm.engine.pool import EnginePool, Trail, pool
from tests.fakes.trainable import Trainable
from tests.fakes.vllm import GENERATE, FakeVllm, Reply
from tests.proxy.stage import until

HELLO = ChatRequest((User((Text("Say hello."),)),))


def asking(text: str) -> ChatRequest:
    return ChatRequest((User((Text(text),)),))


@asynccontextmanager
async def serving(*fakes: FakeVllm) -> AsyncIterator[EnginePool]:
    async with AsyncExitStack() as stack:
        for fake in fakes:
            await stack.enter_async_context(fake)
        yield await stack.enter_async_context(EnginePool.of([fake.url for fake in fakes]))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are looked at all the time."""
    monkeypatch.setattr(pool, "WATCH_S", 0.02)


async def test_new_sessions_go_to_the_engine_with_most_room_and_stay_there() -> None:
    fakes = FakeVllm(), FakeVllm()
    async with serving(*fakes) as engines:
        seats = [engines.seat(f"s{number}") for number in range(4)]
        for _ in range(3):
            samples = [await seat.chat(HELLO) for seat in seats]
            assert [sample.engine.url for sample in samples if sample.engine] == [fakes[n % 2].url for n in range(4)]
        assert [len(fake.requests) for fake in fakes] == [6, 6]
        seats[0].close()
        seats[2].close()
        assert engines.seat("s4").url == fakes[0].url


async def test_samples_of_one_group_share_an_engine_until_it_has_much_more_than_the_others() -> None:
    async with serving(FakeVllm(), FakeVllm()) as engines:
        first, second = (member.url for member in engines.members)
        together = [engines.seat(f"a{number}", "a").url for number in range(pool.GROUP_SLACK + 1)]
        assert together == [first] * (pool.GROUP_SLACK + 1)
        assert engines.seat("a-more", "a").url == second
        assert engines.seat("b", "b").url == second


async def test_a_proxy_for_anyone_gives_each_conversation_its_place() -> None:
    async with serving(FakeVllm(), FakeVllm()) as engines:
        seat = engines.seat("anyone", shared=True)
        held = asyncio.Event()
        for member in engines.members:
            member.engine.chat = _watched(member.engine.chat, held)  # type: ignore[method-assign]
        calls = [asyncio.create_task(seat.chat(asking(text))) for text in "abcd"]
        await until(lambda: [len(member.flights) for member in engines.members] == [2, 2])
        held.set()
        places = [(await call).engine for call in calls]
        again = [(await seat.chat(asking(text))).engine for text in "abcd"]
        assert places == again


def _watched(chat: Callable[..., object], held: asyncio.Event) -> Callable[..., object]:
    async def watched(*args: object, **kwargs: object) -> object:
        await held.wait()
        return await chat(*args, **kwargs)  # type: ignore[misc]

    return watched


async def test_a_call_whose_engine_dies_is_sampled_anew_at_another_and_says_so() -> None:
    dying = FakeVllm(Reply(delay_s=60))
    async with serving(dying, FakeVllm(Reply("From the other."))) as engines:
        seat, trail = engines.seat("s"), Trail()
        call = asyncio.create_task(seat.chat(HELLO, trail=trail))
        await until(lambda: dying.running)
        await dying.stop()
        sample = await call
        assert (sample.text, sample.engine and sample.engine.url) == ("From the other.", engines.members[1].url)
        assert [tried.url for tried in trail.tried] == [dying.url]
        assert "gave no answer" in trail.tried[0].why
        assert (engines.members[0].state, engines.members[0].lost) == ("down", 1)
        assert seat.url == engines.members[1].url
        assert (await seat.chat(HELLO)).text == "From the other."


class Forgetful(FakeVllm):
    """It dies when it has sampled, before it has read what."""

    async def _derender(self, request: web.Request) -> web.Response:
        if self.requests:
            assert request.transport
            request.transport.abort()
        return await super()._derender(request)


async def test_what_an_engine_sampled_that_died_before_it_was_read_is_kept_apart() -> None:
    fakes = Forgetful(Reply("Lost.")), FakeVllm(Reply("From the other."))
    async with serving(*fakes) as engines:
        trail = Trail()
        sample = await engines.seat("s").chat(HELLO, tokens="exact", trail=trail)
        assert sample.text == "From the other."
        [lost] = trail.broken_off
        assert (lost.text, len(lost.response_ids) == len(lost.logprobs) > 0) == ("Lost.", True)
        assert [tried.url for tried in trail.tried] == [fakes[0].url]


async def test_a_call_that_kills_its_engines_does_not_kill_them_all() -> None:
    fakes = [FakeVllm(Reply(drop=True)) for _ in range(4)]
    async with serving(*fakes) as engines:
        trail = Trail()
        with pytest.raises(EngineLost):
            await engines.seat("s").chat(HELLO, trail=trail)
        assert sum(len(fake.requests) for fake in fakes) == len(trail.tried) == 2


async def test_with_no_other_engine_the_error_is_the_engines_own() -> None:
    fake = FakeVllm(Reply(status=500, error="EngineCore encountered an issue."))
    async with serving(fake) as engines:
        trail = Trail()
        with pytest.raises(EngineLost, match="EngineCore encountered an issue"):
            await engines.seat("s").chat(HELLO, trail=trail)
        assert [tried.url for tried in trail.tried] == [fake.url]


async def test_a_request_that_is_refused_goes_to_no_other_engine() -> None:
    fakes = FakeVllm(Reply(status=400, error="no")), FakeVllm()
    async with serving(*fakes) as engines:
        with pytest.raises(CallError) as refused:
            await engines.seat("s").chat(HELLO)
        assert refused.value.kind == "invalid_request"
        assert fakes[1].requests == []


async def test_counting_moves_on_as_well() -> None:
    fakes = FakeVllm(), FakeVllm()
    async with serving(*fakes) as engines:
        seat = engines.seat("s")
        await fakes[0].stop()
        assert await seat.count(HELLO) > 0
        await fakes[1].stop()
        with pytest.raises(CallError):
            await seat.count(HELLO)


async def test_a_dead_engine_is_found_and_taken_back_when_it_answers_again(quick: None) -> None:
    fakes = FakeVllm(), FakeVllm()
    async with serving(*fakes) as engines:
        await fakes[0].stop()
        await until(lambda: engines.members[0].state == "down")
        assert engines.trouble is None
        assert engines.seat("s").url == fakes[1].url
        await fakes[1].stop()
        await until(lambda: engines.trouble is not None)
        assert f"the engine at {fakes[0].url} gives no answer" in (engines.trouble or "")
        await fakes[0].start()
        await until(lambda: engines.members[0].state == "up")
        assert engines.trouble is None
        assert (await engines.seat("t").chat(HELLO)).text == "Hello."


async def test_it_opens_with_those_that_answer_and_waits_for_the_others(quick: None) -> None:
    async with FakeVllm() as there, FakeVllm() as late:
        await late.stop()
        async with EnginePool.of([late.url, there.url]) as engines:
            assert [member.state for member in engines.members] == ["down", "up"]
            assert engines.seat("s").url == there.url
            await late.start()
            await until(lambda: engines.members[0].state == "up")
    with pytest.raises(EngineUnreachable, match=there.url):
        await EnginePool.of([there.url, late.url]).open()


async def test_engines_of_different_models_are_no_pool() -> None:
    async with FakeVllm() as one, FakeVllm() as other:
        other.model = "another"
        with pytest.raises(EngineUnfit, match="it serves no model 'fake', but another"):
            await EnginePool.of([one.url, other.url]).open()


async def test_what_a_pool_can_is_what_each_of_its_engines_can(quick: None) -> None:
    async with serving(FakeVllm(max_model_len=500), FakeVllm(max_model_len=300)) as engines:
        assert (engines.capabilities.max_model_len, engines.capabilities.exact) == (300, True)
    plain = FakeVllm(lacks=[GENERATE])
    async with serving(FakeVllm(), plain) as engines:
        assert (engines.capabilities.not_exact or "").startswith(f"at {plain.url} has no token routes")


async def test_an_engine_that_comes_back_without_token_routes_gets_no_call(quick: None) -> None:
    fakes = FakeVllm(), FakeVllm()
    async with serving(*fakes) as engines:
        await fakes[0].stop()
        await until(lambda: engines.members[0].state == "down")
        fakes[0].lacks = {GENERATE}
        await fakes[0].start()
        await until(lambda: engines.members[0].state == "strange")
        assert "prompts go as token ids" in engines.members[0].trouble
        sample = await engines.seat("s").chat(HELLO, tokens="exact")
        assert sample.engine and sample.engine.url == fakes[1].url


async def test_a_call_whose_client_leaves_ends_at_the_engine() -> None:
    fake = Trainable(Reply(delay_s=60))
    async with serving(fake) as engines:
        call = asyncio.create_task(engines.seat("s").chat(HELLO))
        await until(lambda: fake.running)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: not fake.running and fake.cancelled)
        assert not engines.members[0].flights
