"""A change of the weights: who is held, who goes on with what, and what a polar that was killed in it does not do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from polar_mitm.engine.client import Sample
from polar_mitm.engine.pool import EnginePool, OtherPolicy, Trail, pool
from polar_mitm.engine.pool.policy import PolicyBusy, PolicyFailed
from polar_mitm.prompts import Tokens
from tests.engine.pool.test_pool import HELLO
from tests.fakes.trainable import ABORT, Trainable
from tests.fakes.vllm import GENERATE, Reply
from tests.proxy.stage import until

LIMIT_S = 20.0


@asynccontextmanager
async def serving(*fakes: Trainable, **more: Any) -> AsyncIterator[EnginePool]:
    """With the engines running already; `more` as of EnginePool.of."""
    async with EnginePool.of([fake.url for fake in fakes], **more) as engines:
        yield engines


@asynccontextmanager
async def engines_of(*fakes: Trainable, **more: Any) -> AsyncIterator[EnginePool]:
    async with AsyncExitStack() as stack:
        for fake in fakes:
            await stack.enter_async_context(fake)
        yield await stack.enter_async_context(serving(*fakes, **more))


def asked(engines: EnginePool, trail: Trail | None = None, tokens: Tokens = "exact") -> "asyncio.Task[Sample]":
    return asyncio.create_task(engines.seat("ses_1").chat(HELLO, tokens=tokens, trail=trail))


async def changed(engines: EnginePool, version: str, weights: str | None = None) -> None:
    await engines.policy.pause("drain", LIMIT_S)
    await engines.policy.load(version, weights, LIMIT_S)
    await engines.policy.resume(version)


async def test_a_change_holds_calls_loads_empties_the_cache_probes_and_goes_on() -> None:
    fakes = Trainable(), Trainable()
    async with engines_of(*fakes, policy_version="v1") as engines:
        assert (await asked(engines)).policy_version == "v1"
        await engines.policy.pause("drain", LIMIT_S)
        held = [asked(engines), asked(engines, tokens="chat")]
        seat = engines.seat("s")
        held.append(asyncio.create_task(seat.chat(HELLO)))
        await until(lambda: engines.policy.gate.held == 3)
        await until(lambda: seat.held_s > 0.05)
        assert engines.policy.state().phase == "paused"
        await engines.policy.load("v2", "/weights/2", LIMIT_S)
        assert not any(call.done() for call in held)
        await engines.policy.resume("v2")
        exact, chat, _ = [await call for call in held]
        before = seat.held_s
        await seat.chat(HELLO)
        assert seat.held_s == before
        assert exact.weight_versions == [(0, len(exact.response_ids), "v2")]
        assert [exact.policy_version, chat.policy_version] == ["v2", "v2"]
        assert exact.invalid_reason is chat.invalid_reason is None
        for fake in fakes:
            assert (fake.loaded, fake.weights) == ("/weights/2", "v2")
            assert fake.steps == [
                "/update_weight_version",
                "/collective_rpc",
                "/reset_prefix_cache",
                "/update_weight_version",
            ]
        assert "cache_salt" not in fakes[0].requests[-1]
        assert (engines.policy.version, engines.policy.changes, engines.policy.gate.held) == ("v2", 1, 0)


async def test_draining_waits_for_the_calls_that_run_and_names_those_that_hang() -> None:
    over = asyncio.Event()
    async with engines_of(Trainable(Reply(hold=over)), policy_version="v1") as engines:
        running = asked(engines)
        await until(lambda: engines.members[0].flights)
        with pytest.raises(PolicyFailed, match=r"1 call has not come to an end within 0.1 s: ses_1 at http.* for 0 s"):
            await engines.policy.pause("drain", 0.1)
        assert engines.policy.trouble and engines.trouble and "ses_1" in engines.trouble
        await engines.policy.resume(None)
        assert (engines.policy.phase, engines.trouble) == ("serving", None)
        pausing = asyncio.create_task(engines.policy.pause("drain", LIMIT_S))
        await until(lambda: engines.policy.phase == "pausing")
        with pytest.raises(PolicyBusy, match="pausing is under way"):
            await engines.policy.pause("drain", LIMIT_S)
        over.set()
        await pausing
        assert (await running).policy_version == "v1"


@pytest.mark.parametrize("tokens", ["exact", "chat"])
async def test_what_an_aborted_call_had_sampled_is_kept_and_it_is_sampled_anew(tokens: Tokens) -> None:
    fake = Trainable(Reply("Hello.", delay_s=60))
    async with engines_of(fake, policy_version="v1") as engines:
        trail = Trail()
        call = asked(engines, trail, tokens)
        await until(lambda: fake.running)
        await engines.policy.pause("abort", LIMIT_S)
        fake.script = [Reply("Anew.")]
        await engines.policy.load("v2", "/weights/2", LIMIT_S)
        await engines.policy.resume("v2")
        sample = await call
        assert (sample.text, sample.policy_version) == ("Anew.", "v2")
        [partial] = trail.broken_off
        assert (partial.text, partial.finish_reason, partial.policy_version) == ("Hel", "abort", "v1")
        assert len(partial.response_ids) == len(partial.logprobs) == 3
        assert [tried.why for tried in trail.tried] == ["it was ended for new weights"]
        assert engines.members[0].lost == 0


async def test_an_engine_that_cannot_end_calls_is_hung_up_on() -> None:
    fake = Trainable(Reply(delay_s=60), lacks=[ABORT])
    async with engines_of(fake) as engines:
        trail = Trail()
        call = asked(engines, trail)
        await until(lambda: fake.running)
        await engines.policy.pause("abort", LIMIT_S)
        fake.script = [Reply("Anew.")]
        await engines.policy.resume(None)
        assert ((await call).text, trail.broken_off, len(trail.tried)) == ("Anew.", [], 1)


async def test_a_call_that_is_kept_goes_on_with_new_weights_and_says_which_token_is_whose() -> None:
    fake = Trainable(Reply("Hello.", delay_s=0.05))
    async with engines_of(fake, policy_version="v1") as engines:
        fake.weights = "v1"
        call = asked(engines)
        await until(lambda: fake.running)
        await engines.policy.pause("keep", LIMIT_S)
        assert fake.steps == ["/pause"]
        await engines.policy.load("v2", "/weights/2", LIMIT_S)
        assert not call.done()
        await engines.policy.resume("v2")
        sample = await call
        assert sample.weight_versions == [(0, 1, "v1"), (1, len(sample.response_ids), "v2")]
        assert (sample.policy_version, sample.invalid_reason) == ("v1", None)


async def test_a_call_by_messages_is_not_kept_since_nobody_says_whose_its_tokens_are() -> None:
    fake = Trainable(Reply("Hello.", delay_s=60))
    async with engines_of(fake, policy_version="v1") as engines:
        trail = Trail()
        call = asked(engines, trail, "chat")
        await until(lambda: fake.running)
        await engines.policy.pause("keep", LIMIT_S)
        fake.script = [Reply("Anew.")]
        await engines.policy.load("v2", None, LIMIT_S)
        await engines.policy.resume("v2")
        assert ((await call).text, len(trail.broken_off)) == ("Anew.", 1)


async def test_keeping_takes_an_engine_in_development_mode() -> None:
    async with engines_of(Trainable(lacks=["control"])) as engines:
        with pytest.raises(PolicyFailed, match="no route by which it can be paused: start vLLM with VLLM_SERVER_DEV_"):
            await engines.policy.pause("keep", LIMIT_S)
        await engines.policy.resume(None)
        assert (await asked(engines)).text == "Hello."


async def test_where_the_cache_cannot_be_emptied_prompts_are_kept_apart_by_their_version() -> None:
    fake = Trainable(lacks=["control"])
    async with engines_of(fake, policy_version="v1") as engines:
        sample = await asked(engines)
        assert (sample.policy_version, fake.requests[-1].get("cache_salt")) == ("v1", None)
        with pytest.raises(PolicyBusy, match="changed in a pause"):
            await engines.policy.load("v2", None, LIMIT_S)
        await changed(engines, "v2")
        for tokens in ("exact", "chat"):
            sample = await asked(engines, tokens=tokens)  # type: ignore[arg-type]
            assert (sample.policy_version, fake.requests[-1]["cache_salt"]) == ("v2", "v2")
            assert sample.sampling_sent["cache_salt"] == "v2"


async def test_weights_that_cannot_be_loaded_leave_calls_held_until_others_are() -> None:
    fakes = Trainable(), Trainable()
    async with engines_of(*fakes, policy_version="v1") as engines:
        await engines.policy.pause("drain", LIMIT_S)
        fakes[1].refuses = "no such folder"
        with pytest.raises(PolicyFailed, match=rf"{fakes[1].url} was asked to load .*/weights/2.*: no such folder"):
            await engines.policy.load("v2", "/weights/2", LIMIT_S)
        assert fakes[1].weights == "v2 (loading)"
        with pytest.raises(PolicyBusy, match="is not known: load them again first"):
            await engines.policy.resume("v2")
        call = asked(engines)
        await until(lambda: engines.policy.gate.held)
        await engines.policy.pause("drain", LIMIT_S)
        assert engines.policy.phase == "updating", "a pause does not make them known"
        fakes[1].refuses = ""
        await engines.policy.load("v1", "/weights/1", LIMIT_S)
        await engines.policy.resume("v1")
        assert (await call).policy_version == "v1"


async def test_an_engine_with_other_weights_is_left_out_and_with_none_right_calls_stay_held() -> None:
    fakes = Trainable(), Trainable()
    async with engines_of(*fakes, policy_version="v1") as engines:
        await engines.policy.pause("drain", LIMIT_S)
        await engines.policy.load("v2", "/weights/2", LIMIT_S, [fakes[0].url])
        fakes[1].weights = "v7"
        await engines.policy.resume("v2")
        assert [member.state for member in engines.members] == ["up", "strange"]
        assert engines.seat("s").url == fakes[0].url
        await engines.policy.pause("drain", LIMIT_S)
        fakes[0].weights = "v7"
        with pytest.raises(PolicyFailed, match="has the weights v7, and not v2"):
            await engines.policy.resume("v2")
        assert engines.policy.phase == "paused"
        await engines.policy.resume("v7")
        assert [member.state for member in engines.members] == ["up", "up"]


async def test_an_engine_that_serves_another_model_after_the_change_gets_no_call() -> None:
    fake = Trainable()
    async with engines_of(fake) as engines:
        await engines.policy.pause("drain", LIMIT_S)
        fake.model = "another"
        with pytest.raises(PolicyFailed, match="serves another now, and not fake"):
            await engines.policy.resume("v2")


async def test_a_session_that_wants_one_version_gets_no_token_of_another() -> None:
    async with engines_of(Trainable(), policy_version="v1") as engines:
        seat = engines.seat("s", policy_version="v1")
        assert (await seat.chat(HELLO)).policy_version == "v1"
        await engines.policy.pause("drain", LIMIT_S)
        call = asyncio.create_task(seat.chat(HELLO))
        await until(lambda: engines.policy.gate.held)
        await engines.policy.load("v2", None, LIMIT_S)
        await engines.policy.resume("v2")
        with pytest.raises(OtherPolicy, match="asked for the policy v1, and v2 is served now"):
            await call


async def test_an_engine_that_was_started_again_after_a_change_gets_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "WATCH_S", 0.02)
    named, unnamed, fake = Trainable(), Trainable(lacks=["control"]), Trainable()
    async with engines_of(named, unnamed, fake, policy_version="v1") as engines:
        await named.stop()
        await until(lambda: engines.members[0].state == "down")
        named.began = 2000.0
        await named.start()
        await until(lambda: engines.members[0].state == "up")  # it is started with what it was started with before
        await changed(engines, "v2")
        for engine in (named, unnamed):
            await engine.stop()
        await until(lambda: [member.state for member in engines.members] == ["down", "down", "up"])
        named.weights, unnamed.began = "default", 3000.0
        for engine in (named, unnamed):
            await engine.start()
        await until(lambda: [member.state for member in engines.members] == ["strange", "strange", "up"])
        assert "was started again, and may not have those of v2" in engines.members[1].trouble
        await changed(engines, "v3")
        assert [member.state for member in engines.members] == ["up", "up", "up"]
        await unnamed.stop()
        await until(lambda: engines.members[1].state == "down")
        await unnamed.start()  # the same process: it was only not reached
        await until(lambda: engines.members[1].state == "up")


async def test_the_next_life_knows_the_version_and_what_it_may_not_trust(tmp_path: Path) -> None:
    kept = tmp_path / "policy.json"
    async with Trainable() as named, Trainable(lacks=["control"]) as unnamed:
        fakes = named, unnamed
        async with serving(*fakes, policy_version="v1", kept=kept) as engines:
            await changed(engines, "v2")
        async with serving(*fakes, policy_version="v1", kept=kept) as engines:
            assert (engines.policy.version, engines.policy.phase) == ("v2", "serving")
            assert [member.state for member in engines.members] == ["up", "up"]
            assert {(await engines.seat(f"s{n}").chat(HELLO)).policy_version for n in range(2)} == {"v2"}
        unnamed.began = 2000.0
        async with serving(*fakes, policy_version="v1", kept=kept) as engines:
            assert [member.state for member in engines.members] == ["up", "strange"]


async def test_where_no_earlier_life_changed_them_the_weights_are_what_the_next_is_told(tmp_path: Path) -> None:
    kept = tmp_path / "policy.json"
    async with Trainable() as fake:
        async with serving(fake, policy_version="v1", kept=kept) as engines:
            await engines.policy.pause("drain", LIMIT_S)
            await engines.policy.resume(None)
        fake.began = 2000.0
        async with serving(fake, policy_version="v2", kept=kept) as engines:
            assert (engines.policy.version, engines.members[0].state) == ("v2", "up")


@pytest.mark.parametrize("phase", ["paused", "updating"])
async def test_a_polar_that_was_killed_in_a_change_samples_nothing_until_it_is_ended(
    tmp_path: Path, phase: str
) -> None:
    kept = tmp_path / "policy.json"
    async with Trainable() as fake:
        async with serving(fake, policy_version="v1", kept=kept) as engines:
            await engines.policy.pause("keep", LIMIT_S)
            if phase == "updating":
                fake.refuses = "it is gone"
                with pytest.raises(PolicyFailed):
                    await engines.policy.load("v2", "/weights/2", LIMIT_S)
                fake.refuses = ""
        async with serving(fake, policy_version="v1", kept=kept) as engines:
            assert engines.policy.phase == phase
            assert "was not ended when polar stopped" in (engines.trouble or "")
            call = asked(engines)
            await until(lambda: engines.policy.gate.held)
            sampled = len(fake.requests)
            if phase == "updating":
                await engines.policy.load("v2", "/weights/2", LIMIT_S)
            await engines.policy.resume("v2" if phase == "updating" else None)
            assert (await call).policy_version == ("v2" if phase == "updating" else "v1")
            assert (len(fake.requests), engines.trouble) == (sampled + 1, None)


async def test_a_lost_engine_is_no_hindrance_to_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "WATCH_S", 0.02)
    fakes = Trainable(), Trainable()
    async with engines_of(*fakes, policy_version="v1") as engines:
        await fakes[0].stop()
        await until(lambda: engines.members[0].state == "down")
        await changed(engines, "v2", "/weights/2")
        assert (await asked(engines)).policy_version == "v2"
        await fakes[0].start()
        await until(lambda: engines.members[0].state == "strange")


async def test_an_engine_without_token_routes_can_be_changed_as_well() -> None:
    fake = Trainable(lacks=[GENERATE])
    async with engines_of(fake, policy_version="v1") as engines:
        await changed(engines, "v2", "/weights/2")
        assert (await asked(engines, tokens="chat")).policy_version == "v2"
