"""Real harnesses on a real engine, beyond the one file of test_write_file.

Sub-agents, compactions, logins, tool servers, awkward instructions, and how runs that go wrong are told.
"""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from polar_mitm.capture.record import Call
from tests.fakes.vllm import FakeVllm
from tests.live.lineage import (
    SUB_AGENTS,
    compaction_scenario,
    wrong_with_compaction,
    wrong_with_sub_agent,
)
from tests.live.polar import SCENARIOS, Left, left, run
from tests.live.test_write_file import need_parts

pytestmark = pytest.mark.live


LIMIT_S = 900.0
"""Several sessions in one run, which on a machine with other work take minutes."""


def together(scenarios: list[Path], *options: str, engine_url: str, out: Path) -> dict[str, Left]:
    """The sessions of one run by the name of their task, or by their harness where they have one task."""
    more = ("--engine-url", engine_url, "--out", out, "--concurrency", "2")
    ended = run("run-task", *scenarios, *options, *more, limit_s=LIMIT_S)
    assert ended.returncode in (0, 1), ended.stderr
    sessions = left(out)
    one_task = len({there.session.task_id for there in sessions}) == 1
    return {str(there.session.harness if one_task else there.session.task_id): there for there in sessions}


def test_a_sub_agent_has_turns_of_its_own(engine_url: str, tmp_path: Path) -> None:
    options = []
    for harness in SUB_AGENTS:
        need_parts(harness, "bwrap")
        options += ["--harness", harness]
    sessions = together([SCENARIOS / "sub_agent.yaml"], *options, engine_url=engine_url, out=tmp_path)
    assert {name: wrong_with_sub_agent(name, sessions[name]) for name in SUB_AGENTS} == dict.fromkeys(SUB_AGENTS, "")


def test_a_compaction_is_no_turn_and_the_work_goes_on_after_it(engine_url: str, tmp_path: Path) -> None:
    names = ["pi", "claude-code", "codex", "opencode"]  # `make live-matrix` has the others
    for harness in names:
        need_parts(harness, "bwrap")
    scenarios = [compaction_scenario(harness, tmp_path) for harness in names]
    sessions = together(scenarios, engine_url=engine_url, out=tmp_path / "out")
    assert {name: wrong_with_compaction(name, sessions[name]) for name in names} == dict.fromkeys(names, "")


LOGIN = """\
name: login
harness: codex
instruction: Write the word hello into the file out.txt.
intercept: proxy
login: true
model: tiny
script:
  - shell: echo hello > out.txt
evaluator: {type: command, run: test -s out.txt}
"""
PATHS = {
    "codex": "/backend-api/codex/responses",
    "claude-code": "/v1/messages",
    "gemini-cli": "/v1internal:streamGenerateContent",
}
"""Where each sends its calls when a person is logged in."""


def test_a_made_up_login_works_where_a_key_would(engine_url: str, tmp_path: Path) -> None:
    scenario = tmp_path / "login.yaml"
    options = []
    for harness in PATHS:
        need_parts(harness, "bwrap")
        options += ["--harness", harness]
    scenario.write_text(LOGIN)
    sessions = together([scenario], *options, engine_url=engine_url, out=tmp_path / "out")
    for harness, path in PATHS.items():
        there = sessions[harness]
        assert (there.session.status, there.session.reward) == ("completed", 1.0), harness
        assert {call.origin.path for call in there.calls} == {path}
        assert all(call.checks.valid for call in there.calls)


AWKWARD = "-n --help \"quoted\" 'single' $HOME `id` $(touch x)\n\nline \\ two\t€ 漢字 😀 {{task}} {% raw %} <b>\n- end"
EXTRA = 'The bell is a tool of the "tower".\nRing it.'
TOOLS = """\
harness: HARNESS
instruction_file: instruction.txt
extra_instructions: |-
  The bell is a tool of the "tower".
  Ring it.
mcp_servers:
  tower: {command: python3, args: [tower.py], env: {BELL: rung.txt}}
files:
  tower.py: |
    # A tool server over standard input and output. Its one tool writes a word into the file that $BELL names.
    import json, os, sys

    def answer(asked):
        match asked["method"]:
            case "initialize":
                version = asked["params"]["protocolVersion"]
                server = {"name": "tower", "version": "1"}
                return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
            case "tools/list":
                schema = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
                return {"tools": [{"name": "ring", "description": "Ring the bell.", "inputSchema": schema}]}
            case "tools/call":
                with open(os.environ["BELL"], "w") as file:
                    file.write(asked["params"]["arguments"]["word"])
                return {"content": [{"type": "text", "text": "It rang."}]}
        return {}

    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked:
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer(asked)}), flush=True)
model: tiny
script:
STEPS
evaluator: {type: command, run: test "$(cat rung.txt)" = hello}
"""
# Two of the harnesses show the tools of servers only when they are searched for.
SEARCHED = "  - tool: {tool}\n    arguments: {{query: 'select:mcp__tower__ring'}}\n"
CALLED = "  - tool: {tool}\n    arguments: {{word: hello}}"
STEPS = {
    "claude-code": SEARCHED.format(tool="ToolSearch") + CALLED.format(tool="mcp__tower__ring"),
    "codex": CALLED.format(tool="mcp__tower__ring"),
    "qwen-code": SEARCHED.format(tool="tool_search")
    + "  - tool: tool_call\n    arguments: {name: mcp__tower__ring, arguments: {word: hello}}",
    "gemini-cli": CALLED.format(tool="mcp_tower_ring"),
    "opencode": CALLED.format(tool="tower_ring"),
}


def test_instructions_and_tools_of_a_scenario_reach_the_model(engine_url: str, tmp_path: Path) -> None:
    (tmp_path / "instruction.txt").write_text(AWKWARD)
    scenarios = []
    for harness, steps in STEPS.items():
        need_parts(harness, "bwrap")
        scenario = tmp_path / f"{harness}.yaml"
        scenario.write_text(TOOLS.replace("STEPS", steps).replace("HARNESS", harness))
        scenarios.append(scenario)
    sessions = together(scenarios, engine_url=engine_url, out=tmp_path / "out")
    for harness in STEPS:
        there = sessions[harness]
        assert (there.session.status, there.session.reward) == ("completed", 1.0), harness
        turn = next(call for call in there.calls if call.origin.kind == "turn")
        assert AWKWARD in told(turn, "user")
        assert EXTRA in told(turn, "system")


BIG = "0123456789abcdef " * (2 * 1024 * 1024 // 17) + "the end"


SAID_OF_BIG = {
    "pi-frozen": "exit code 0 after a call that failed: the prompt is ",
    "opencode": "its last call failed: the prompt is ",
    "codex": "Input exceeds the maximum length of 1048576 characters",
    "claude-code": "Prompt is too long",
}


COMPACTING = ("pi-frozen", "opencode")


def test_an_instruction_of_two_megabytes_arrives_whole_or_the_harness_says_why_not(
    engine_url: str, tmp_path: Path
) -> None:
    """No window here holds it: what is shown is that it gets as far as the engine."""
    (tmp_path / "instruction.txt").write_text(BIG)
    scenario = tmp_path / "big.yaml"
    scenario.write_text(
        "harness: codex\ninstruction_file: instruction.txt\nmodel: tiny\nevaluator: {type: session_completed}\n"
    )
    options = []
    for harness in SAID_OF_BIG:
        need_parts(harness, "bwrap")
        options += ["--harness", harness]
    sessions = together([scenario], *options, engine_url=engine_url, out=tmp_path / "out")
    for harness, said in SAID_OF_BIG.items():
        there = sessions[harness]
        assert said in (there.session.status_reason or ""), harness
        assert there.session.status == ("failed" if there.calls else "error")
        # Who got as far as the engine knows a full context by its words, and tries to compact.
        kinds = [call.origin.kind for call in there.calls]
        assert ("turn" in kinds, "compaction" in kinds) == (harness in COMPACTING,) * 2, harness
        for call in there.calls:
            if call.origin.kind == "turn":
                assert BIG in told(call, "user")
                assert call.error and call.error.kind == "context_overflow"


COMMAND = """\
harness: command
command: [sh, program.sh]
instruction: Do it.
model: tiny
timeout_s: {timeout_s}
sandbox: {sandbox}
files:
  program.sh: |
    {program}
evaluator: {{type: session_completed}}
"""


PROGRAMS = {
    "silent": ("cat > read.txt", "error", "exit code 0 without one model call"),
    "unhappy": ("echo oops >&2; exit 7", "error", "exit code 7: oops"),
    "garbage": ("head -c 3000000 /dev/urandom; printf '\\0\\377the end'; exit 1", "error", "the end"),
    "stubborn": ("trap '' TERM INT HUP; while :; do sleep 1; done", "timeout", "stopped after "),
    "killed": ("kill -9 $$", "error", "exit code 137"),
}
"""A program, the status it comes to, and a part of the reason."""


@pytest.mark.parametrize("sandbox", ["host", "bwrap"])
async def test_a_program_that_goes_wrong_is_told_by_what_it_did(sandbox: str, tmp_path: Path) -> None:
    need_parts("command", sandbox)
    scenarios = []
    for name, (program, status, _) in PROGRAMS.items():
        scenario = tmp_path / f"{name}.yaml"
        limit = 4 if status == "timeout" else 60
        await asyncio.to_thread(scenario.write_text, COMMAND.format(program=program, timeout_s=limit, sandbox=sandbox))
        scenarios.append(scenario)
    async with FakeVllm() as engine:
        run_them = partial(together, engine_url=engine.url, out=tmp_path / "out")
        sessions = await asyncio.to_thread(run_them, scenarios)
    for name, (_, status, reason) in PROGRAMS.items():
        assert sessions[name].session.status == status, name
        assert reason in (sessions[name].session.status_reason or "")
    assert (sessions["silent"].folder.path / "workspace" / "read.txt").read_text() == "Do it."


async def test_a_harness_that_cannot_fit_the_served_window_is_refused_before_anything_starts(tmp_path: Path) -> None:
    need_parts("claude-code", "bwrap")
    async with FakeVllm() as engine:
        options = ("--harness", "claude-code", "--engine-url", engine.url, "--out", tmp_path / "out")
        engine.max_model_len = 8192
        ended = await asyncio.to_thread(run, "run-task", SCENARIOS / "hello.yaml", *options)
    assert ended.returncode == 3, ended.stderr
    assert "the first prompt of claude-code has about 12,200 tokens, and the served window is 8,192" in ended.stderr
    assert left(tmp_path / "out") == []


def told(call: Call, role: str) -> str:
    """All that messages of the role say, in one text."""
    texts: list[str] = []
    for message in call.request.messages:
        if message["role"] == role:
            content = message["content"]
            texts += [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    return "\n".join(texts)
