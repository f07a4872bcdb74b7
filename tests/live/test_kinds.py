"""The kinds of calls that Claude Code makes in a terminal; `test_harnesses` has what all of them do without one."""

import json
import os
from pathlib import Path

import pytest

from polar_mitm.harnesses import HARNESSES
from tests.live.terminal import terminal
from tests.live.test_write_file import need_parts
from tests.proxy.stage import staged, until

pytestmark = pytest.mark.live


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
