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
from tests.harnesses.test_actions import LAYOUT
from tests.live.polar import SCENARIOS, Left, only, rows, run
from tests.needs import need

pytestmark = pytest.mark.live


@pytest.mark.parametrize("intercept", ["base-url", "proxy"])
@pytest.mark.parametrize("sandbox", ["host", "bwrap"])
@pytest.mark.parametrize("harness", list(HARNESSES))
async def test_a_harness_makes_the_file_and_every_call_is_recorded_whole(
    harness: str, sandbox: str, intercept: str, engine_url: str, tmp_path: Path
) -> None:
    need_parts(harness, sandbox)
    ended = run(
        *("run-task", SCENARIOS / "write_file.yaml", "--engine-url", engine_url, "--out", tmp_path, "--json"),
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
                for value in orjson.loads(arguments).values():
                    assert str(value) in sent[call.identity.call_id]
    last = there.calls[-1].response
    assert last
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
    name, arguments = HARNESSES[harness].tool_call(Shell("echo hello > out.txt"), LAYOUT)
    first, *others = calls
    assert first.response
    assert first.response.tool_calls[0]["function"]["name"] == name
    assert first.response.tool_calls[0]["function"]["arguments"] == json.dumps(arguments)
    assert first.response.forced == [(0, len(first.response.response_ids))]
    for call in others:
        assert call.response
        assert call.response.forced == []
        assert call.response.tool_calls == []


def need_parts(harness: str, sandbox: str) -> None:
    try:
        HARNESSES[harness].find()
    except HarnessMissing as missing:
        need([str(missing)])
    need(SANDBOXES[sandbox].check())
