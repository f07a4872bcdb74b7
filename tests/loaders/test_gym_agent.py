"""The agent server of `polar gym init` in NeMo Gym's own classes, over a real rollout server and a real gateway."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from polar_mitm.engine.pool import EnginePool
from polar_mitm.rollout.gateway.node import Node
from polar_mitm.rollout.gateway.settings import Settings, Workers
from polar_mitm.rollout.gym import write_root
from tests.fakes.vllm import FakeVllm, Reply
from tests.loaders.conftest import Load
from tests.rollout.server.conftest import TOKEN, On, serving, settings

pytestmark = pytest.mark.live

CALL = """curl -sS -H "Authorization: Bearer $OPENAI_API_KEY" -H "Content-Type: application/json" \
"$OPENAI_BASE_URL/chat/completions" -d '{"model":"m","messages":[%s]}'; """
HI, MORE = '{"role":"user","content":"hi"}', ',{"role":"assistant","content":"Hello."},{"role":"user","content":"more"}'


def row(
    script: str, *, changes: dict[str, Any] | None = None, params: dict[str, Any] | None = None, **more: Any
) -> str:
    scenario = {
        "instruction": "Say hello.",
        "harness": "command",
        "command": ["bash", "-c", script],
        "sandbox": "host",
        "model": "fake",
        "evaluator": {"type": "command", "run": 'grep -q Hello "$POLAR_ANSWER"'},
    }
    polar = {"scenario": scenario, "changes": {"harness": "command"} | (changes or {}), "max_attempts": 1}
    given = {
        "responses_create_params": {"input": []} | (params or {}),
        "polar": polar,
        "agent_ref": {"name": "polar_agent"},
    }
    return json.dumps(given | more)


@asynccontextmanager
async def service(folder: Path) -> AsyncIterator[tuple[On, FakeVllm]]:
    """A rollout server with one gateway, on a stand-in for the engine."""
    async with (
        serving(settings(f"sqlite:///{folder / 'rollout.db'}", folder, heartbeat_s=5.0)) as on,
        FakeVllm(Reply("Hello.")) as vllm,
        EnginePool.of([vllm.url]) as engine,
    ):
        node = Settings(
            server_url=on.url,
            token=TOKEN,
            engine_urls=[vllm.url],
            state=folder / "gw",
            name="gw",
            workers=Workers(2, 2, 2, 2, 8),
        )
        gateway = asyncio.create_task(Node(node, engine).serve())
        try:
            yield on, vllm
        finally:
            gateway.cancel()
            await asyncio.gather(gateway, return_exceptions=True)


async def ask(load: Load, folder: Path, on: On, *rows: str) -> dict[str, Any]:
    """What came of the rows, asked of the agent server in its own environment."""
    write_root(folder / "root")
    (folder / "token").write_text(TOKEN + "\n")
    (folder / "rows").write_text("\n".join(rows))
    given = [folder / "root", on.url, folder / "token", folder / "rows"]
    said: dict[str, Any] = json.loads(await asyncio.to_thread(load, "nemo-gym", "run_polar_agent.py", *given))
    return said


async def test_every_row_comes_back_as_one_chain_or_says_why_not(load: Load, proxy_home: Path, tmp_path: Path) -> None:
    one_turn = CALL % HI
    later = {"role": "assistant", "content": "Hello.", "type": "message"}
    tool = {"type": "function", "name": "look", "parameters": {}, "strict": False}
    async with service(tmp_path) as (on, vllm):
        said = await ask(
            load,
            tmp_path,
            on,
            row(one_turn + CALL % (HI + MORE), _ng_task_index=3, level="easy"),
            row(one_turn, params={"input": "Do that.", "temperature": 0.25, "tools": [tool]}),
            row(one_turn, judge=0.75),
            row(one_turn + "exit 1", judge=0.75),
            row("true", changes={"workspace": "nowhere"}),
            row("true", params={"input": [later]}),
            row("true", changes={"evaluator": {"type": "none"}}),
        )
        instructions = [(await on.task(task["task_id"]))["request"] for task in (await on.get("/v1/tasks"))["items"]]
    good, asked, judged, failed, never, *refused = said["rows"]

    assert (good["status"], good["body"]["reward"], good["body"]["mask_sample"]) == (200, 1.0, False)
    assert len(good["tokens"]) == 2 and all(good["tokens"])
    assert (good["body"]["delivered_fraction"], good["body"]["other_traces"]) == (1.0, [])
    assert (good["body"]["_ng_task_index"], good["body"]["level"]) == (3, "easy")
    assert good["body"]["group_id"].endswith("-3")

    assert (asked["status"], asked["body"]["not_carried"]) == (200, ["tools"])
    assert 0.25 in [sent.get("temperature") for sent in vllm.requests]
    assert "Do that." in [sent.get("instruction") for sent in instructions]

    assert (judged["body"]["reward"], judged["body"]["polar_reward"], judged["body"]["judged"]) == (0.75, 1.0, 1)
    assert judged["tokens"]

    assert (failed["status"], failed["body"]["status"], failed["body"]["mask_sample"]) == (200, "failed", True)
    assert (failed["tokens"], failed["body"].keys() & {"_ng_failure_class", "judged"}) == ([], set())
    assert (never["status"], never["body"]["_ng_failure_class"]) == (200, "polar_error")
    assert "nowhere" in never["body"]["failure_reason"]

    assert [one["status"] for one in refused] == [422, 422]
    assert "send user messages only" in refused[0]["body"]["detail"]
    assert "evaluator" in refused[1]["body"]["detail"]
    assert said["responses"] == 501
