"""A change of the policy over all gateways: their own part of it is real, and so are their pools; engines stand in."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from polar_mitm.cli import app
from polar_mitm.client.aio import AsyncRolloutClient
from polar_mitm.client.sync import RolloutClient
from polar_mitm.engine.pool import EnginePool
from polar_mitm.rollout.gateway.app import make_app
from polar_mitm.rollout.gateway.listening import address, bind, listening
from polar_mitm.rollout.gateway.pipeline import Pipeline
from polar_mitm.rollout.gateway.settings import Workers
from tests.engine.pool.test_pool import HELLO
from tests.fakes.trainable import Trainable
from tests.fakes.vllm import Reply
from tests.rollout.server.conftest import TOKEN, On, eventually, serving, settings

ENDED = ("serving", "paused", "failed")


@dataclass
class Gateway:
    """It registers, beats when it is told to, and holds no sessions."""

    client: httpx.AsyncClient
    name: str
    pool: EnginePool
    url: str = ""
    incarnation: str = "life-1"

    async def register(self) -> None:
        body = {"name": self.name, "incarnation": self.incarnation, "url": self.url, "capacity": 1}
        (await self.client.post("/v1/gateways", json=body)).raise_for_status()
        await self.beat()

    async def beat(self) -> None:
        body: dict[str, Any] = {"incarnation": self.incarnation, "capacity": 1, "sessions": {}}
        body |= {"policy": self.pool.policy.state().model_dump(), "policy_version": self.pool.policy.version}
        (await self.client.post(f"/v1/gateways/{self.name}/heartbeat", json=body)).raise_for_status()


@asynccontextmanager
async def gateways(on: On, *pools: list[Trainable], version: str | None = "v1") -> AsyncIterator[list[Gateway]]:
    """One for each list of engines, which may share some."""
    async with AsyncExitStack() as stack:
        for fake in {id(fake): fake for fakes in pools for fake in fakes}.values():
            await stack.enter_async_context(fake)
        made = []
        for number, fakes in enumerate(pools):
            pool = EnginePool.of([fake.url for fake in fakes], policy_version=version)
            await stack.enter_async_context(pool)
            gateway = Gateway(on.client, f"gw-{number}", pool)
            nothing = Pipeline(Workers(), open_sample=None, done=print)  # type: ignore[arg-type]  # takes no session
            bound = bind("127.0.0.1", 0)
            gateway.url = address(bound, "127.0.0.1")
            api = make_app(nothing, pool, TOKEN, gateway.incarnation)
            await stack.enter_async_context(listening(api, bound))
            await gateway.register()
            made.append(gateway)
        yield made


@pytest.fixture
async def on(tmp_path: Path) -> AsyncIterator[On]:
    """On SQLite alone: nothing of a policy is in the database."""
    async with serving(settings(f"sqlite:///{tmp_path / 'rollout.db'}", tmp_path, heartbeat_s=60)) as running:
        yield running


async def done(on: On, path: str, **body: Any) -> dict[str, Any]:
    """Where the change ended."""
    answer = await on.client.post(f"/v1/policy{path}", json=body)
    assert answer.status_code == 202, answer.text

    async def ended() -> dict[str, Any] | None:
        view: dict[str, Any] = await on.get("/v1/policy")
        return view if view["phase"] in ENDED else None

    return await eventually(ended)


async def test_one_call_changes_every_engine_of_every_gateway_once(on: On) -> None:
    shared, own, other = Trainable(), Trainable(began=1.0), Trainable(began=2.0)
    async with gateways(on, [shared, own], [shared, other]) as (first, second):
        view = await done(on, "", version="v2", weights="/weights/2")
        assert (view["phase"], view["version"], view["trouble"]) == ("serving", "v2", None)
        assert [gateway["policy"]["version"] for gateway in view["gateways"]] == ["v2", "v2"]
        for fake in (shared, own, other):
            assert (fake.weights, fake.steps.count("/collective_rpc")) == ("v2", 1)
        for gateway in (first, second):
            assert (await gateway.pool.seat("s").chat(HELLO, tokens="exact")).policy_version == "v2"
        [shown, _] = await on.get("/v1/gateways")
        assert (shown["policy_version"], len(shown["engines"])) == ("v2", 2), "without waiting for a heartbeat"


async def test_both_clients_and_the_command_wait_for_the_end(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_ROLLOUT_TOKEN", TOKEN)
    fake = Trainable()
    async with gateways(on, [fake]), AsyncRolloutClient(on.url, TOKEN) as client:
        assert (await client.update_policy("v2", weights="/weights/2")).version == "v2"
        assert (await client.pause_policy()).phase == "paused"
        with RolloutClient(on.url, TOKEN) as other:
            assert (await asyncio.to_thread(other.resume_policy, "v3")).version == "v3"

        async def polar(*arguments: str) -> tuple[int, str]:
            given = ["policy", *arguments, "--server-url", on.url]
            ran = await asyncio.to_thread(CliRunner().invoke, app, given, env={"COLUMNS": "200"})
            return ran.exit_code, ran.output

        code, said = await polar("update", "v4", "--weights", "/weights/4")
        assert (code, "serving, policy v4, 0 calls held" in said, fake.url in said) == (0, True, True)
        assert (await polar("pause", "--mode", "keep"))[0] == 0
        assert json.loads((await polar("show", "--json"))[1])["phase"] == "paused"
        assert (await polar("resume"))[0] == 0
        assert (await polar("update", "v4-again", "--loaded"))[0] == 0
        fake.refuses = "no such folder"
        code, said = await polar("update", "v5", "--weights", "/weights/5")
        assert (code, "no such folder" in said) == (1, True)
        for given in ((), ("--loaded", "--weights", "/weights/5")):
            code, said = await polar("update", "v5", *given)
            assert (code, "name the folder that the engines load" in said) == (2, True)
        code, said = await polar("update", "")
        assert (code, "of 1 to 256 characters" in said) == (2, True)
        assert (await polar("update", "v6", "--loaded", "--gateway", "gw-9"))[0] == 2


async def test_no_engine_changes_before_every_gateway_holds_its_calls(on: On) -> None:
    over = asyncio.Event()
    shared = Trainable(Reply(hold=over))
    async with gateways(on, [shared], [shared]) as (first, second):
        call = asyncio.create_task(second.pool.seat("s").chat(HELLO))
        await eventually(lambda: second.pool.members[0].flights)
        change = asyncio.create_task(done(on, "", version="v2", weights="/weights/2"))
        await eventually(lambda: first.pool.policy.phase == "paused")
        busy = await on.client.post("/v1/policy", json={"version": "v3"})
        assert (busy.status_code, "is pausing: wait for its end" in busy.json()["error"]["message"]) == (409, True)
        assert shared.loaded is None
        over.set()
        assert (await change)["phase"] == "serving"
        assert (await call).policy_version == "v1"


async def test_where_a_call_does_not_end_nothing_is_changed_and_all_go_on(on: On) -> None:
    over = asyncio.Event()
    hanging, other = Trainable(Reply(hold=over)), Trainable()
    async with gateways(on, [hanging], [other]) as (first, second):
        call = asyncio.create_task(first.pool.seat("ses_7").chat(HELLO))
        await eventually(lambda: first.pool.members[0].flights)
        view = await done(on, "", version="v2", weights="/weights/2", limit_s=0.2)
        assert (view["phase"], view["version"], view["wanted"]) == ("failed", "v1", "v2")
        assert "gateway gw-0: 1 call has not come to an end within 0.2 s: ses_7 at " in view["trouble"]
        assert [gateway.pool.policy.phase for gateway in (first, second)] == ["serving", "serving"]
        assert (hanging.loaded, other.loaded) == (None, None)
        over.set()
        await call
        assert (await done(on, "", version="v2", weights="/weights/2"))["version"] == "v2"


async def test_weights_that_one_engine_does_not_load_leave_all_held_until_the_change_is_made_again(on: On) -> None:
    fakes = Trainable(), Trainable()
    async with gateways(on, [fakes[0]], [fakes[1]]) as (first, second):
        fakes[1].refuses = "no such folder"
        view = await done(on, "", version="v2", weights="/weights/2")
        assert (view["phase"], "gateway gw-1: " in view["trouble"], "no such folder" in view["trouble"]) == (
            "failed",
            True,
            True,
        )
        assert "calls are held: make the change again" in view["trouble"]
        assert [gateway.pool.policy.phase for gateway in (first, second)] == ["paused", "updating"]
        fakes[1].refuses = ""
        assert (await done(on, "", version="v2", weights="/weights/2"))["phase"] == "serving"
        assert [gateway.pool.policy.version for gateway in (first, second)] == ["v2", "v2"]


async def test_engines_that_cannot_load_weights_fail_the_change_before_calls_are_held(on: On) -> None:
    can, cannot = Trainable(), Trainable(lacks=["control"])
    async with gateways(on, [can], [cannot]) as made:
        view = await done(on, "", version="v2", weights="/weights/2")
        assert (view["phase"], view["version"], can.loaded) == ("failed", "v1", None)
        assert (
            f"no weights can be loaded by the engine at {cannot.url}: start vLLM with VLLM_SERVER_DEV"
            in view["trouble"]
        )
        assert "calls go on, with the weights of before" in view["trouble"]
        assert [gateway.pool.policy.state().trouble for gateway in made] == [None, None]
        assert [gateway.pool.policy.phase for gateway in made] == ["serving", "serving"]
        assert (await done(on, "", version="v2"))["version"] == "v2", "a trainer that loads them itself"


async def test_a_trainer_that_changes_weights_itself_pauses_and_resumes(on: On) -> None:
    fake = Trainable()
    async with gateways(on, [fake]) as (gateway,):
        assert (await done(on, "/pause", mode="keep"))["phase"] == "paused"
        assert not fake.going.is_set()
        assert (await done(on, "/resume", version="v2"))["version"] == "v2"
        assert (fake.going.is_set(), fake.weights, fake.loaded) == (True, "v2", None)
        assert "/reset_prefix_cache" in fake.steps
        assert (await done(on, "/pause"))["phase"] == "paused"
        assert (await done(on, "/resume"))["version"] == "v2"
        assert gateway.pool.policy.phase == "serving"


async def test_a_server_that_was_started_again_says_that_calls_are_held(on: On, tmp_path: Path) -> None:
    async with gateways(on, [Trainable()]) as (gateway,):
        await gateway.pool.policy.pause("drain", 10)
        await gateway.beat()
        view = await on.get("/v1/policy")
        assert (view["phase"], "make it again, or resume" in view["trouble"]) == ("paused", True)
        assert (await done(on, "/resume"))["phase"] == "serving"


async def test_a_gateway_that_was_started_again_in_a_pause_is_shown_as_it_is_now(on: On) -> None:
    async with gateways(on, [Trainable()]) as (gateway,):
        assert (await done(on, "/pause"))["phase"] == "paused"
        gateway.incarnation = "life-2"
        gateway.pool.policy.trouble = "a change was not ended when polar stopped"
        await gateway.register()
        [shown] = (await on.get("/v1/policy"))["gateways"]
        assert shown["policy"]["trouble"] == "a change was not ended when polar stopped"
        assert (await done(on, "", version="v2"))["phase"] == "serving"


async def test_a_gateway_that_is_not_there_or_does_not_answer_is_named(on: On) -> None:
    assert (await on.client.post("/v1/policy", json={"version": "v2"})).status_code == 409
    async with gateways(on, [Trainable()]) as (gateway,):
        missing = await on.client.post("/v1/policy", json={"version": "v2", "gateways": ["gw-9"]})
        assert (missing.status_code, missing.json()["error"]["message"]) == (404, "no gateway gw-9 is there")
        on.service.board.nodes["gw-0"].registration.url = "http://127.0.0.1:9"
        view = await done(on, "", version="v2")
        assert view["phase"] == "failed"
        assert "gateway gw-0: it did not answer to pause: " in view["trouble"]
        assert gateway.pool.policy.phase == "serving"


async def test_only_the_gateways_that_are_named_change(on: On) -> None:
    async with gateways(on, [Trainable()], [Trainable()]) as (first, second):
        view = await done(on, "", version="v2", gateways=["gw-1"])
        assert (view["phase"], view["version"]) == ("serving", None)
        assert [gateway.pool.policy.version for gateway in (first, second)] == ["v1", "v2"]
        metrics = (await on.client.get("/metrics")).text
        assert 'polar_policy_changes_total{phase="serving"} 1.0' in metrics


async def test_a_gateway_tells_of_its_engines_and_its_policy(on: On) -> None:
    async with gateways(on, [Trainable()]) as (gateway,):
        seat = gateway.pool.seat("s")
        await seat.chat(HELLO)
        async with httpx.AsyncClient(base_url=gateway.url, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            state = (await client.get("/v1/policy")).json()
            [engine] = state["engines"]
            assert (state["phase"], state["version"], engine["healthy"], engine["calls"]) == ("serving", "v1", True, 1)
            early = await client.post("/v1/policy/load", json={"version": "v2"})
            assert (early.status_code, early.json()["error"]["code"]) == (409, "conflict")
            figures = (await client.get("/metrics")).text
        for line in (
            f'polar_engine_up{{engine="{engine["url"]}"}} 1.0',
            f'polar_engine_calls_total{{engine="{engine["url"]}"}} 1.0',
            f'polar_engine_sessions{{engine="{engine["url"]}"}} 1.0',
            'polar_policy_phase{phase="serving"} 1.0',
            'polar_policy_info{version="v1"} 1.0',
            "polar_calls_held 0.0",
        ):
            assert line in figures
