"""A gateway as a whole, against a stand-in for the rollout server and for the engine."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from polar_mitm.cli import app
from polar_mitm.cli.gateway import warn_of_silent
from polar_mitm.engine.pool import EnginePool
from polar_mitm.rollout.gateway import fitness
from polar_mitm.rollout.gateway.node import Node, pool_of
from polar_mitm.rollout.gateway.problems import Displaced
from polar_mitm.rollout.gateway.settings import Settings, Workers
from polar_mitm.rollout.resume import RunBusy
from tests.fakes.vllm import FakeVllm, Reply
from tests.ports import free_port
from tests.rollout.gateway.attempts import assignment
from tests.rollout.gateway.fake_server import TOKEN, FakeServer

PATIENCE_S = 40.0
SCRIPT = """curl -sS -H "Authorization: Bearer $OPENAI_API_KEY" -H "Content-Type: application/json" \
-d '{"model":"m","messages":[{"role":"user","content":"hi"}]}' "$OPENAI_BASE_URL/chat/completions"; sleep %s"""


def scenario(seconds: float) -> dict[str, object]:
    return {
        "name": "curl",
        "instruction": "Say hello.",
        "harness": "command",
        "command": ["bash", "-c", SCRIPT % seconds],
        "sandbox": "host",
        "model": "fake",
        "evaluator": {"type": "command", "run": 'grep -q Hello "$POLAR_ANSWER"'},
    }


class Rig:
    """One gateway's state folder, server and engine; `node()` runs a life of it."""

    def __init__(self, server: FakeServer, vllm: FakeVllm, state: Path) -> None:
        self.server, self.vllm, self.state = server, vllm, state

    @asynccontextmanager
    async def node(self) -> AsyncIterator[Node]:
        settings = Settings(
            server_url=self.server.url,
            token=TOKEN,
            engine_urls=[self.vllm.url],
            state=self.state,
            name="gw",
            scenarios=self.state.parent / "scenarios",
            workers=Workers(1, 1, 1, 1, 1),
        )
        async with pool_of(settings) as engine:
            node = Node(settings, engine)
            serving = asyncio.create_task(node.serve())
            try:
                await self.until(lambda: bool(self.server.beats) or serving.done())
                yield node
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not true():  # noqa: ASYNC110  (anything may be waited for)
                await asyncio.sleep(0.05)

    async def assign(self, node: Node, seconds: float = 0, **budgets: float) -> None:
        given = assignment(incarnation=node.incarnation, **budgets).model_copy(update={"scenario": scenario(seconds)})
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            answer = await client.post(f"{node.url}/v1/sessions", json=given.model_dump(mode="json"))
        assert answer.status_code == 202, answer.text


@pytest.fixture
async def rig(proxy_home: Path, tmp_path: Path) -> AsyncIterator[Rig]:
    async with FakeServer() as server, FakeVllm(Reply("Hello.")) as vllm:
        yield Rig(server, vllm, tmp_path / "state")


async def test_a_session_is_run_reported_and_let_go_of(rig: Rig) -> None:
    async with rig.node() as node:
        await rig.assign(node)
        await rig.until(lambda: bool(rig.server.reports))
        await rig.until(lambda: not node.pipeline.held)
        [report] = rig.server.reports
        assert (report["status"], report["reward"], report["calls"]) == ("completed", 1.0, 1), report
        delivered = {name for _, name in rig.server.files}
        assert {file["name"] for file in report["files"]} == delivered
        assert {"session.json", "calls.jsonl", "trajectory.json", "workspace.diff"} <= delivered
        assert list(node.sessions.iterdir()) == []
        assert list(node.assignments.iterdir()) == []
    assert rig.server.left == [node.incarnation]


async def test_one_task_of_a_set_in_the_scenarios_folder_is_run_by_its_id(rig: Rig) -> None:
    folder = rig.state.parent / "scenarios"
    folder.mkdir()
    (folder / "rows.jsonl").write_text('{"q": "one"}\n{"q": "two"}\n')
    fields = {k: v for k, v in scenario(0).items() if k != "instruction"} | {
        "tasks": {"file": "rows.jsonl", "instruction": "q", "id": "q"}
    }
    (folder / "set.yaml").write_text(json.dumps(fields))
    async with rig.node() as node:
        for reports, only in ((1, {"only": ["two"]}), (2, {})):
            given = assignment(f"ses_{reports}", incarnation=node.incarnation)
            asked = given.model_copy(update={"scenario": "set", "changes": {"tasks": only}})
            async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
                await client.post(f"{node.url}/v1/sessions", json=asked.model_dump(mode="json"))
            await rig.until(lambda reports=reports: len(rig.server.reports) == reports)  # type: ignore[misc]
        picked, whole = rig.server.reports
    assert (picked["status"], picked["reward"]) == ("completed", 1.0), picked
    assert (whole["status"], "--only" in whole["status_reason"]) == ("error", True), whole


async def test_a_session_over_its_running_clock_is_reported_with_what_there_is(rig: Rig) -> None:
    async with rig.node() as node:
        await rig.assign(node, seconds=60, running_s=12.0)
        await rig.until(lambda: bool(rig.server.reports))
        [report] = rig.server.reports
        assert (report["status"], report["reward"], report["calls"]) == ("timeout", 1.0, 1), report
        assert ("ses_1", "trajectory.json") in rig.server.files


async def test_a_session_that_wants_another_policy_than_is_served_is_not_begun(rig: Rig) -> None:
    async with rig.node() as node:
        await node.engine.policy.pause("drain", PATIENCE_S)
        await node.engine.policy.load("v2", None, PATIENCE_S)
        await node.engine.policy.resume("v2")
        await rig.until(lambda: rig.server.beats[-1]["policy_version"] == "v2")
        given = assignment(incarnation=node.incarnation)
        node.pipeline.take(given.model_copy(update={"scenario": scenario(0), "policy_version": "v1"}))
        await rig.until(lambda: bool(rig.server.reports))
        why = "the task asks for the policy v1, and v2 is served here"
        assert (rig.server.reports[0]["status"], rig.server.reports[0]["status_reason"]) == ("error", why)
        assert rig.vllm.requests == []
    rig.server.beats.clear()
    async with rig.node() as node:  # the next life knows it
        assert (node.engine.policy.version, rig.server.registrations[-1]["policy_version"]) == ("v2", "v2")


async def test_what_was_not_answered_is_delivered_by_the_next_life(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polar_mitm.rollout.gateway.node.LEAVING_S", 0.1)
    async with rig.node() as node:
        rig.server.answers["report"] = [503] * 1000
        await rig.assign(node)
        await rig.until(lambda: node.pipeline.stages.get("ses_1") == "done")
        await rig.until(lambda: len(rig.server.answers["report"]) < 1000)
    rig.server.beats.clear()
    rig.server.registrations.clear()
    async with rig.node() as node:
        await rig.until(lambda: bool(rig.server.registrations))
        assert rig.server.registrations[0]["sessions"] == {"ses_1": "done"}
        rig.server.answers["report"] = []
        await rig.until(lambda: bool(rig.server.reports))
        assert rig.server.reports[0]["incarnation"] == node.incarnation
        assert rig.server.reports[0]["status"] == "completed"
        await rig.until(lambda: not node.pipeline.held)
    assert len(rig.server.reports) == 1


async def test_a_server_that_has_forgotten_it_is_registered_with_again(rig: Rig) -> None:
    async with rig.node():
        rig.server.answers["beat"] = [404]
        await rig.until(lambda: len(rig.server.registrations) == 2)


async def test_a_gateway_whose_name_another_took_ends(rig: Rig) -> None:
    settings = Settings(server_url=rig.server.url, token=TOKEN, engine_urls=[rig.vllm.url], state=rig.state)
    async with pool_of(settings) as engine:
        rig.server.answers["beat"] = [409]
        with pytest.raises(Displaced, match="give each a --name"):
            await asyncio.wait_for(Node(settings, engine).serve(), PATIENCE_S)
        rig.server.answers["beat"] = []


async def test_two_gateways_never_share_a_state_folder(rig: Rig) -> None:
    async with rig.node() as node:
        with pytest.raises(RunBusy, match=r"another gateway uses .*--state"):
            await asyncio.wait_for(Node(node.settings, node.engine).serve(), PATIENCE_S)


async def test_without_room_or_an_engine_nothing_is_taken(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig.node() as node:
        await rig.vllm.stop()
        await rig.until(lambda: rig.server.beats[-1]["state"] == "draining")
        assert rig.server.beats[-1]["policy"]["engines"][0]["healthy"] is False
        await rig.vllm.start()
        await rig.until(lambda: rig.server.beats[-1]["state"] == "ready")
        monkeypatch.setattr(fitness, "MIN_FREE", 2**62)
        await rig.until(lambda: rig.server.beats[-1]["state"] == "draining")
        assert "MiB of room" in (node.pipeline.unfit or "")


async def test_an_engine_that_is_silent_at_the_start_is_named(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    async with EnginePool.of([rig.vllm.url, dead]) as engines:
        warn_of_silent(engines)
    said = capsys.readouterr().err
    assert f"the engine at {dead} is not used until it answers" in said
    assert rig.vllm.url not in said


@pytest.mark.parametrize(
    ("urls", "word"), [("", "--engine-url"), ("http://127.0.0.1:1,nowhere", "$POLAR_ENGINE_URL 'nowhere'")]
)
def test_engines_are_those_of_the_environment_where_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, urls: str, word: str
) -> None:
    monkeypatch.setenv("POLAR_ENGINE_URL", urls)
    given = ["gateway", "serve", "--server-url", "http://127.0.0.1:1", "--state", str(tmp_path / "state")]
    run = CliRunner().invoke(app, given, env={"POLAR_ROLLOUT_TOKEN": TOKEN})
    assert run.exit_code == 2
    assert word in run.output


@pytest.mark.parametrize("token", ["missing", "short", None])
def test_a_token_that_is_missing_or_protects_nothing_is_bad_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    monkeypatch.delenv("POLAR_ROLLOUT_TOKEN", raising=False)
    (tmp_path / "short").write_text("abc")
    given = ["--token-file", str(tmp_path / token)] if token else []
    urls = ["--server-url", "http://127.0.0.1:1", "--engine-url", "http://127.0.0.1:1"]
    run = CliRunner().invoke(app, ["gateway", "serve", *urls, *given, "--state", str(tmp_path / "state")])
    assert run.exit_code == 2
    assert "token" in run.output


async def test_a_call_that_the_running_clock_cut_off_is_in_the_report(rig: Rig) -> None:
    rig.vllm.script = [Reply("Hello.", delay_s=60)]
    async with rig.node() as node:
        await rig.assign(node, running_s=12.0)
        await rig.until(lambda: bool(rig.server.reports))
        [report] = rig.server.reports
        assert (report["status"], report["calls"]) == ("timeout", 1), report
        assert b'"call_id"' in rig.server.files["ses_1", "calls.jsonl"]
