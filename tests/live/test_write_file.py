"""The main job on real parts: each harness, sandbox and way in makes a file with its own tool on a real vLLM."""

import json
from pathlib import Path

import aiohttp
import orjson
import pytest
from mitmproxy.http import HTTPFlow
from mitmproxy.io import FlowReader

from polar_mitm.capture.record import Call
from polar_mitm.harnesses import HARNESSES, HarnessMissing
from polar_mitm.harnesses.actions import Shell
from polar_mitm.sandboxes import SANDBOXES
from tests.harnesses.starts import LAYOUT, Mode
from tests.live.polar import Left, only, rows, run, scenario_for
from tests.needs import need

pytestmark = pytest.mark.live

IN_CI: tuple[tuple[str, str, Mode], ...] = (
    ("pi", "bwrap", "base-url"),
    ("pi", "host", "proxy"),
    ("pi-frozen", "bwrap", "proxy"),
    ("claude-code", "bwrap", "proxy"),
    ("claude-code", "host", "base-url"),
    ("codex", "bwrap", "base-url"),
    ("codex", "host", "proxy"),
    ("qwen-code", "bwrap", "base-url"),
    ("gemini-cli", "bwrap", "proxy"),
    ("opencode", "bwrap", "base-url"),
    ("mini-swe-agent", "bwrap", "base-url"),
    ("command", "bwrap", "proxy"),
)
"""Each harness, sandbox and mode at least once. `make live-matrix` runs every cell."""

SIDE_REQUESTS = {"opencode": {"title"}}


@pytest.mark.parametrize(("harness", "sandbox", "intercept"), IN_CI)
async def test_a_harness_makes_the_file_and_every_call_is_recorded_whole(
    harness: str, sandbox: str, intercept: Mode, engine_url: str, tmp_path: Path
) -> None:
    need_parts(harness, sandbox)
    ended = run(
        *("run-task", scenario_for(harness), "--engine-url", engine_url, "--out", tmp_path, "--json"),
        *("--harness", harness, "--sandbox", sandbox, "--intercept", intercept),
    )
    assert ended.returncode == 0, ended.stderr
    (row,) = rows(ended.stdout)
    assert (row["status"], row["reward"]) == ("completed", 1.0)
    there = only(tmp_path)
    assert (there.folder.path / "workspace" / "out.txt").read_text() == "hello\n"
    assert "+hello" in there.folder.workspace_diff.read_text()
    assert len(there.calls) >= 2
    for call in there.calls:
        assert call.checks.valid
        assert call.checks.decode_matches_text is True
        assert call.delivery.status == "delivered"
        assert call.response
        assert len(call.response.response_ids) == len(call.response.logprobs) > 0
    await ids_decode_to_what_the_harness_got(there, engine_url)
    the_script_is_forced_and_nothing_else(harness, there.calls)
    the_turns_name_their_session(harness, intercept, there.calls)


async def ids_decode_to_what_the_harness_got(there: Left, engine_url: str) -> None:
    """The engine's own decoding of the ids holds what went over the wire; the last text is what the harness printed."""
    sent = answers(there)
    async with aiohttp.ClientSession(trust_env=False) as engine:
        for call in there.calls:
            assert call.response and call.engine
            asked = {"model": call.engine.model, "tokens": call.response.response_ids}
            async with engine.post(f"{engine_url}/detokenize", json=asked) as reply:
                decoded = (await reply.json())["prompt"]
            assert call.response.text in decoded
            assert call.response.text in sent[call.identity.call_id]
            for tool in call.response.tool_calls:
                arguments = tool["function"]["arguments"]
                assert arguments in decoded
                for value in filter(lambda v: isinstance(v, str), orjson.loads(arguments).values()):
                    assert value in sent[call.identity.call_id]
    last = [call.response for call in there.calls if call.origin.kind == "turn"][-1]
    assert last
    if not last.tool_calls:
        assert last.text.strip() == there.folder.answer.read_text().strip()


def answers(there: Left) -> dict[str, str]:
    """By call id, the JSON strings of the answer that went to the harness, joined."""
    found = {}
    with there.folder.flows.open("rb") as file:
        for flow in FlowReader(file).stream():
            if isinstance(flow, HTTPFlow) and "polar" in flow.metadata and flow.response:
                call = Call.model_validate_json(flow.metadata["polar"])
                found[call.identity.call_id] = "".join(strings_of(flow.response.text or ""))
    return found


def strings_of(body: str) -> list[str]:
    """Every string in a JSON body, or in the data lines of a stream; JSON inside a string is opened too."""
    lines = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: {")] or [body]
    found: list[str] = []
    waiting = [orjson.loads(line) for line in lines]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, str):
            found.append(value)
            if value.startswith("{"):
                waiting.append(orjson.loads(value))
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
    return found


def the_script_is_forced_and_nothing_else(harness: str, calls: list[Call]) -> None:
    """An answer without a word is asked for again by some harnesses: the turns after the script may be several."""
    steps = [HARNESSES[harness].tool_call(Shell("echo hello > out.txt"), LAYOUT), HARNESSES[harness].FINISH]
    script = [step for step in steps if step]
    turns = [call.response for call in calls if call.origin.kind == "turn"]
    for (tool, arguments), response in zip(script, turns, strict=False):
        assert response
        (made,) = response.tool_calls
        assert (made["function"]["name"], made["function"]["arguments"]) == (tool, json.dumps(arguments))
        assert response.forced == [(0, len(response.response_ids))]
    for response in turns[len(script) :]:
        assert response
        assert (response.forced, response.tool_calls) == ([], [])
    others = {call.origin.kind for call in calls} - {"turn"}
    assert others == SIDE_REQUESTS.get(harness, set())


def the_turns_name_their_session(harness: str, intercept: Mode, calls: list[Call]) -> None:
    facts = HARNESSES[harness].FACTS
    named = facts.session_ids.get(intercept, ())
    for call in calls:
        if call.origin.kind == "turn":
            assert call.origin.provider == facts.providers[intercept] or harness == "command"
            assert set(named) <= call.origin.harness_ids.keys()
            assert harness == "command" or 0.7 < len(call.prompt_ids or []) / facts.first_prompt < 1.3
    ids = {call.origin.harness_ids[name] for call in calls for name in named[:1] if call.origin.kind == "turn"}
    assert len(ids) == bool(named)


def test_ci_runs_each_harness_sandbox_and_mode() -> None:
    assert {harness for harness, _, _ in IN_CI} == set(HARNESSES)
    assert {sandbox for _, sandbox, _ in IN_CI} == {"host", "bwrap"}
    assert {mode for _, _, mode in IN_CI} == {"base-url", "proxy"}


def need_parts(harness: str, sandbox: str) -> None:
    try:
        HARNESSES[harness].find()
    except HarnessMissing as missing:
        need([str(missing)])
    need(SANDBOXES[sandbox].check())
