"""The kinds of calls that real harnesses make on a real engine: what is recorded of turns and of side requests."""

import json
import os
from pathlib import Path

import pytest

from polar_mitm.harnesses import HARNESSES
from tests.live.polar import only, run
from tests.live.terminal import terminal
from tests.live.test_write_file import need_parts
from tests.proxy.stage import staged, until

pytestmark = pytest.mark.live

SCENARIO = """\
name: kinds
instruction: Count the files in this folder.
model: tiny
timeout_s: 230
script:
{steps}
evaluator:
  type: session_completed
"""

TASK = "Count the files that are in this folder."
SPAWN = {
    "claude-code": ("Agent", {"subagent_type": "general-purpose", "run_in_background": False, "description": "Count"}),
    "codex": ("multi_agent_v1__spawn_agent", {}),
}
"""The tool that starts a sub-agent, and its arguments but the task, which each calls in its own way."""

FILLS = {"claude-code": 3, "pi": 5, "codex": 5}
"""How many outputs as long as a harness lets them be fill the window of 65,536 tokens so far that it compacts."""


def kinds_of(harness: str, steps: list[str], engine_url: str, folder: Path) -> list[str]:
    need_parts(harness, "bwrap")
    scenario = folder / "kinds.yaml"
    scenario.write_text(SCENARIO.format(steps="\n".join(f"  - {step}" for step in steps)))
    out = folder / "out"
    ended = run("run-task", scenario, "--harness", harness, "--engine-url", engine_url, "--out", out, "--json")
    # A model that knows nothing may sum up a conversation in no words at all, on which Claude Code gives up.
    assert ended.returncode in (0, 1), ended.stderr
    calls = only(out).calls
    for call in calls:
        assert call.origin.kind_reason
        assert call.response
        # The script's steps are the main agent's alone.
        assert call.origin.kind == "turn" or call.response.forced == []
    return [call.origin.kind for call in calls]


@pytest.mark.parametrize("harness", list(SPAWN))
def test_a_sub_agent_is_told_from_the_agent_that_started_it(harness: str, engine_url: str, tmp_path: Path) -> None:
    tool, arguments = SPAWN[harness]
    words = {"prompt": TASK} if harness == "claude-code" else {"message": TASK}
    steps = [f"tool: {tool}\n    arguments: {json.dumps(arguments | words)}"]
    if harness == "codex":  # which does not wait for it
        steps.append("shell: sleep 5")
    kinds = kinds_of(harness, steps, engine_url, tmp_path)
    assert set(kinds) == {"turn", "subagent"}
    assert (kinds[0], kinds[-1]) == ("turn", "turn")


@pytest.mark.parametrize("harness", list(FILLS))
def test_a_compaction_is_told_from_the_turns_around_it(harness: str, engine_url: str, tmp_path: Path) -> None:
    # Compacted, the history has fewer calls in it, and the script begins again: this time each step says nothing.
    steps = [f'shell: "[ -e {n} ] || {{ touch {n}; seq {n}00001 {n}04000; }}"' for n in range(1, FILLS[harness] + 1)]
    kinds = kinds_of(harness, steps, engine_url, tmp_path)
    assert set(kinds) == {"turn", "compaction"}
    assert kinds[0] == "turn"


@pytest.mark.parametrize("login", [False, True], ids=["key", "login"])
async def test_claude_code_in_a_terminal_asks_for_titles_counts_and_a_compaction_beside_its_turns(
    login: bool, engine_url: str, tmp_path: Path
) -> None:
    need_parts("claude-code", "host")
    home, folder = tmp_path / "home", tmp_path / "folder"
    home.mkdir()
    folder.mkdir()
    async with staged(tmp_path / "out", engine_url=engine_url) as on:
        session = on.open_session(identity={"harness": "claude-code"}, sampling={"max_tokens": 32})
        settings = {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "bypassPermissionsModeAccepted": True,
            "customApiKeyResponses": {"approved": [session.token[-20:]], "rejected": []},
            "projects": {str(folder): {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}},
        }
        (home / ".claude.json").write_text(json.dumps(settings))
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "IS_SANDBOX": "1",
            "DISABLE_AUTOUPDATER": "1",
            # It asks for titles only where it may send what it calls nonessential; all of that ends at the proxy.
            "HTTPS_PROXY": on.proxy_url(session),
            "NO_PROXY": "127.0.0.1",
            "NODE_EXTRA_CA_CERTS": str(on.proxy.ca),
        }
        if login:  # at Anthropic's own host, and with a probe of what the account may still use
            env["CLAUDE_CODE_OAUTH_TOKEN"] = "sk-ant-oat01-of-this-run"
        else:
            env |= {"ANTHROPIC_BASE_URL": on.base_url(session), "ANTHROPIC_API_KEY": session.token}
        claude = HARNESSES["claude-code"].find().command
        command = [*claude, "--dangerously-skip-permissions", "--model", on.engine.capabilities.model]

        def kinds() -> set[str]:
            return {call.origin.kind for call in on.calls(session)}

        def paths() -> list[str]:
            return [flow.request.path.partition("?")[0] for flow in on.flows(session)]

        async with terminal(command, env, folder) as claude_code:
            await claude_code.shows("bypass permissions on")
            await claude_code.quiet()
            await claude_code.enter("Say hello to me.")
            await until(lambda: kinds() >= {"turn", "title"}, seconds=60)
            await claude_code.quiet()
            await claude_code.enter("/context")
            await until(lambda: "/v1/messages/count_tokens" in paths(), seconds=60)
            await claude_code.quiet()
            await claude_code.enter("/compact")
            await until(lambda: "compaction" in kinds(), seconds=60)
        by_path = {call.origin.path for call in on.calls(session)}
        assert by_path == {"/v1/messages"}  # a count is no call, and not recorded
        assert kinds() == {"turn", "title", "compaction", *(["probe"] if login else [])}
