"""A session's calls over several engines, and in a change of the weights: what the client gets, what is on record."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from polar_mitm.engine.pool import EnginePool
from polar_mitm.prompts import Tokens
from polar_mitm.proxy.addons import core
from polar_mitm.proxy.border import Border
from polar_mitm.proxy.master import EmbeddedProxy
from polar_mitm.trajectory.builders import Options, build
from polar_mitm.trajectory.trace import Trajectory
from tests.fakes.trainable import Trainable
from tests.fakes.vllm import FakeVllm, Reply
from tests.proxy.asks import ANTHROPIC, STREAM_ASKS, Ask, streamed
from tests.proxy.stage import Stage, client, until


@asynccontextmanager
async def staged(
    out: Path, *fakes: FakeVllm, tokens: Tokens = "exact", policy_version: str | None = "v1", keepalive_s: float = 10.0
) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        for fake in fakes:
            await stack.enter_async_context(fake)
        pool = EnginePool.of([fake.url for fake in fakes], policy_version=policy_version)
        await stack.enter_async_context(pool)
        http = await stack.enter_async_context(client())
        border = Border(grace_s=0.05, keepalive_s=keepalive_s)
        async with EmbeddedProxy(core(border)) as proxy:
            stage = Stage(fakes[0], pool, border, proxy, out, http, tokens)
            stage.open_session()
            yield stage


def trajectory(stage: Stage) -> Trajectory:
    stage.session.log.close("completed")
    return build(stage.session.log.folder.path, Options(unrewarded="keep"))


async def test_a_call_whose_engine_dies_is_answered_by_another_and_the_record_names_both(
    proxy_home: Path, tmp_path: Path
) -> None:
    dying = FakeVllm(Reply(delay_s=60))
    async with staged(tmp_path / "out", dying, FakeVllm(Reply("From the other."))) as on:
        call = asyncio.create_task(on.post(streamed(ANTHROPIC)))
        await until(lambda: dying.running)
        await dying.stop()
        got = await call
        assert got.ok
        assert b"From the other." in got.body
        [recorded] = on.calls()
        first, second = on.pool.members
        assert recorded.engine
        assert (recorded.engine.url, recorded.checks.valid, recorded.error) == (second.url, True, None)
        assert [tried.url for tried in recorded.tried] == [first.url]
        assert recorded.delivery.status == "delivered"


async def test_with_no_engine_left_the_client_gets_its_providers_own_error(proxy_home: Path, tmp_path: Path) -> None:
    fakes = FakeVllm(Reply(drop=True)), FakeVllm(Reply(drop=True))
    async with staged(tmp_path / "out", *fakes) as on:
        got = await on.post(ANTHROPIC)
        assert (got.status, got.json["type"], got.json["error"]["type"]) == (500, "error", "api_error")
        [recorded] = on.calls()
        assert [tried.url for tried in recorded.tried] == [fake.url for fake in fakes]
        assert recorded.error
        assert recorded.error.fault == "engine"


@pytest.mark.parametrize("ask", STREAM_ASKS, ids=str)
async def test_a_call_that_is_held_is_kept_alive_and_then_answered(ask: Ask, proxy_home: Path, tmp_path: Path) -> None:
    async with staged(tmp_path / "out", Trainable(), keepalive_s=0.02) as on:
        await on.pool.policy.pause("drain", 20)
        call = asyncio.create_task(on.post(ask))
        await until(lambda: on.pool.policy.gate.held)
        await asyncio.sleep(0.2)
        assert not call.done()
        await on.pool.policy.load("v2", "/weights/2", 20)
        await on.pool.policy.resume("v2")
        got = await call
        assert got.ok
        assert b"Hello." in got.body
        assert ask.keepalives(got.body) > 1
        [recorded] = on.calls()
        assert recorded.engine
        assert (recorded.engine.policy_version, recorded.delivery.status) == ("v2", "delivered")


async def test_what_a_call_had_sampled_before_new_weights_is_a_record_of_its_own_and_is_accounted_for(
    proxy_home: Path, tmp_path: Path
) -> None:
    fake = Trainable(Reply(delay_s=60))
    async with staged(tmp_path / "out", fake) as on:
        call = asyncio.create_task(on.post(streamed(ANTHROPIC)))
        await until(lambda: fake.running)
        await on.pool.policy.pause("abort", 20)
        fake.script = [Reply("Anew.")]
        await on.pool.policy.load("v2", "/weights/2", 20)
        await on.pool.policy.resume("v2")
        assert b"Anew." in (await call).body
        partial, whole = on.calls()
        assert partial.engine
        assert whole.engine
        assert (partial.engine.policy_version, whole.engine.policy_version) == ("v1", "v2")
        assert partial.error
        assert partial.error.what == f"no answer: the request was sampled anew as {whole.identity.call_id}"
        assert [tried.why for tried in whole.tried] == ["it was ended for new weights"]
        built = trajectory(on)
        assert whole.response
        assert built.ledger.sampled == 3 + len(whole.response.response_ids)
        assert built.ledger.bins == {"superseded": 3, "trained": len(whole.response.response_ids)}


async def test_a_session_goes_on_with_new_weights_from_the_ids_that_the_old_ones_sampled(
    proxy_home: Path, tmp_path: Path
) -> None:
    async with staged(tmp_path / "out", Trainable(Reply("One."), Reply("Two."))) as on:
        await on.post(ANTHROPIC)
        await on.pool.policy.pause("drain", 20)
        await on.pool.policy.load("v2", "/weights/2", 20)
        await on.pool.policy.resume("v2")
        said = [
            {"role": "user", "content": "Say hello."},
            {"role": "assistant", "content": [{"type": "text", "text": "One."}]},
            {"role": "user", "content": "Again."},
        ]
        await on.post(replace(ANTHROPIC, body=ANTHROPIC.body | {"messages": said}))
        first, second = on.calls()
        assert second.built
        assert (second.built.from_call_id, second.built.broken) == (first.identity.call_id, None)
        [trace] = trajectory(on).traces
        assert trace.policy_versions == ["v1", "v2"]
        assert [turn.weight_versions[0][2] for turn in trace.turns] == ["v1", "v2"]


async def test_a_session_that_wants_another_policy_than_is_served_comes_to_its_end(
    proxy_home: Path, tmp_path: Path
) -> None:
    fake = Trainable()
    async with staged(tmp_path / "out", fake) as on:
        session = on.open_session()
        session.engine = on.pool.seat(session.id, policy_version="v0")
        got = await on.post(ANTHROPIC, session=session)
        assert got.ok
        why = "the session asked for the policy v0, and v1 is served now"
        assert got.json["content"][0]["text"] == f"The work ends here: {why}."
        assert (session.log.session.limited, fake.requests) == ([why], [])


async def test_spans_of_weights_that_overlap_or_leave_ids_out_make_a_call_invalid(
    proxy_home: Path, tmp_path: Path
) -> None:
    fake = FakeVllm(Reply("Hi."))
    async with staged(tmp_path / "out", fake, policy_version=None) as on:
        generated = fake._generated
        for spans in (
            [(0, 3, "a"), (2, 4, "b")],
            [(0, 2, "a"), (3, 4, "b")],
            [(0, 3, "a")],
            [(0, 2, "a"), (2, 4, "b")],
        ):
            said = [{"start": start, "end": end, "version": name} for start, end, name in spans]

            def spanned(prompt: list[int], reply: Reply, text: str, said: object = said) -> dict[str, object]:
                body = generated(prompt, reply, text)
                body["choices"][0]["weight_versions"] = said
                return body

            fake._generated = spanned  # type: ignore[method-assign, assignment]
            assert (await on.post(ANTHROPIC)).ok
        reasons = [call.checks.invalid_reason for call in on.calls()]
        assert reasons == [
            "the span 2..4 of the weights b does not begin where the one before ends, at 3",
            "the span 3..4 of the weights b does not begin where the one before ends, at 2",
            "the spans of weights end at 3, and there are 4 response ids",
            None,
        ]
