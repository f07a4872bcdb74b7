"""Claude Code, run by its native binary. Speaks Anthropic Messages only; a first request is about 12 000 prompt tokens.

The model is asked for by the engine's own name: one that Claude Code does not know gets the smaller request (49 kB; an
older Claude's name gets 88 kB). Facts are from runs of version 2.1.332.
"""

import json
from pathlib import Path

from polar_mitm.harnesses.actions import (
    Action,
    EditFile,
    ListFolder,
    ReadFile,
    Shell,
    ToolCall,
    WriteFile,
    in_shell,
)
from polar_mitm.harnesses.base import PATIENCE_MS, Access, Assignment, Facts, Installed, Npm, Prepared, answer_budget
from polar_mitm.harnesses.environment import environment
from polar_mitm.harnesses.events import events, texts
from polar_mitm.harnesses.npm import find_binary
from polar_mitm.sandboxes.base import Layout

NAME = "claude-code"
SOURCE = Npm("@anthropic-ai/claude-code", "2.1.332")
FACTS = Facts(
    source=SOURCE,
    known_good=("2.1.332",),
    minimum="2.1.332",
    first_prompt=12_200,
    providers={"base-url": "anthropic", "proxy": "anthropic"},
    session_ids={
        "base-url": ("x-claude-code-session-id",),
        "proxy": ("x-claude-code-session-id", "x-claude-code-request-class"),
    },
    side_requests=(
        "HEAD /api/hello in base-url mode: 200",
        "settings, policy limits, bootstrap, telemetry at api.anthropic.com in proxy mode: 404",
    ),
    sub_agents=True,
    takes=frozenset({"extra_instructions", "mcp_servers", "max_turns", "login"}),
)
FINISH: ToolCall | None = None

# The prompt comes on stdin. stream-json leaves a log of the run on stdout and needs --verbose.
FLAGS = (
    "--print",
    "--output-format",
    "stream-json",
    "--verbose",
    "--dangerously-skip-permissions",
    "--no-session-persistence",
)

MCP_FILE = ".claude/polar-mcp.json"
EXTRA_FILE = ".claude/polar-extra.md"

SPARE = 13_000
"""Tokens that it leaves free beside those of an answer: of a window of 32 000 it would use 11 000, less than its first
prompt, and compact at every turn. Told of so much more, it compacts when no answer fits the true window any longer."""

MAX_ANSWER = 32_000
"""Claude Code's own limit for a model it does not know."""


def find() -> Installed:
    # npm brings one optional package, named after this machine; its binary needs no Node.
    return find_binary(NAME, SOURCE, FACTS.minimum, f"{SOURCE.package}-{{machine}}/claude")


def prepare(installed: Installed, access: Access, layout: Layout, assignment: Assignment) -> Prepared:
    env = environment(access, layout) | {
        "CLAUDE_CODE_OAUTH_TOKEN" if assignment.login else "ANTHROPIC_API_KEY": access.key,
        # Without it, --dangerously-skip-permissions is refused to root.
        "IS_SANDBOX": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        # A first system block that differs in each request: no prompt would then continue the one before it.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        # The window of a model it does not know; else it assumes 200 000 and never compacts in time.
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(access.max_model_len + SPARE),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(answer_budget(access.max_model_len, MAX_ANSWER)),
        # Pings are no sign of life to it: after 611 s of nothing else it asks again.
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": str(PATIENCE_MS),
    }
    if access.mode == "base-url":
        env["ANTHROPIC_BASE_URL"] = access.base_url
    argv, files = [*installed.command, *FLAGS, "--model", access.model], {}
    if assignment.max_turns is not None:
        argv += ["--max-turns", str(assignment.max_turns)]
    if assignment.extra_instructions:
        files[EXTRA_FILE] = assignment.extra_instructions
        argv += ["--append-system-prompt-file", str(layout.home / EXTRA_FILE)]
    if assignment.mcp_servers:
        servers = {
            name: {"command": server.command, "args": list(server.args), "env": dict(server.env)}
            for name, server in assignment.mcp_servers.items()
        }
        files[MCP_FILE] = json.dumps({"mcpServers": servers}, indent=2)
        argv += ["--mcp-config", str(layout.home / MCP_FILE)]
    return Prepared(argv=argv, env=env, files=files, stdin=assignment.instruction.encode())


def tool_call(action: Action, layout: Layout) -> ToolCall:
    """Its file tools take absolute paths only."""
    match action:
        case ReadFile(path):
            return "Read", {"file_path": str(layout.workspace / path)}
        case WriteFile(path, text):
            return "Write", {"file_path": str(layout.workspace / path), "content": text}
        case EditFile(path, old, new):
            return "Edit", {"file_path": str(layout.workspace / path), "old_string": old, "new_string": new}
        case ListFolder() | Shell():
            return "Bash", {"command": in_shell(action)}


def delegate(prompt: str) -> ToolCall:
    kind = {"subagent_type": "general-purpose", "run_in_background": False}
    return "Agent", {"description": "A part of the task", "prompt": prompt, **kind}


def answer(stdout: str, home: Path) -> str:
    return result_or_last_text(stdout)


def result_or_last_text(stdout: str) -> str:
    """The text of the `result` event; without one (killed, crashed) the last text the assistant gave."""
    last = ""
    for event in events(stdout):
        match event:
            case {"type": "result", "result": str(text)}:
                return text.strip()
            case {"type": "assistant", "parent_tool_use_id": None, "message": {"content": list(blocks)}}:
                last = texts(blocks) or last
    return last
