"""Gemini CLI. Speaks Google generateContent only; a first request is about 11 000 prompt tokens.

The model is asked for by the engine's own name: without one, or with `auto`, a small model is asked first how hard the
prompt is. Facts are from runs of version 0.61.0.
"""

import json
from pathlib import Path
from typing import Any

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
from polar_mitm.harnesses.base import Access, Assignment, Facts, Installed, Npm, Prepared, answer_budget
from polar_mitm.harnesses.environment import environment
from polar_mitm.harnesses.events import events
from polar_mitm.harnesses.npm import find_script, script_folder
from polar_mitm.sandboxes.base import Layout

NAME = "gemini-cli"
SOURCE = Npm("@google/gemini-cli", "0.61.0", node=True)
FACTS = Facts(
    source=SOURCE,
    known_good=("0.61.0",),
    minimum="0.61.0",
    first_prompt=10_900,
    providers={"base-url": "google", "proxy": "google"},
    side_requests=(
        "tokeninfo, userinfo and loadCodeAssist with a login: an account of the standard tier",
        "quotas, experiments and telemetry: 404",
    ),
    sub_agents=True,
    sub_agent_finish=("complete_task", {"result": {"response": "Done."}}),
    takes=frozenset({"extra_instructions", "mcp_servers", "max_turns", "login"}),
)
FINISH: ToolCall | None = None

# The prompt comes on stdin; stream-json leaves a log of the run on stdout.
FLAGS = ("--yolo", "--skip-trust", "--output-format", "stream-json")

ASSUMED_WINDOW = 1_048_576
"""Tokens that it takes every model's window to be: the point of compaction is set as a share of it."""

MAX_ANSWER = 32_000


def find() -> Installed:
    return find_script(NAME, SOURCE, FACTS.minimum, "bundle/gemini.js")


def prepare(installed: Installed, access: Access, layout: Layout, assignment: Assignment) -> Prepared:
    env = environment(access, layout, path_first=[script_folder(installed)]) | {
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "GEMINI_CLI_NO_RELAUNCH": "true",  # else it starts itself a second time, with a larger heap
    }
    files = {".gemini/settings.json": json.dumps(_settings(access, assignment), indent=2)}
    if assignment.login:
        files[".gemini/oauth_creds.json"] = json.dumps(_LOGIN)
    else:
        env["GEMINI_API_KEY"] = access.key
    if access.mode == "base-url":
        env["GOOGLE_GEMINI_BASE_URL"] = access.base_url
    if assignment.extra_instructions:
        files[".gemini/GEMINI.md"] = assignment.extra_instructions
    return Prepared(
        argv=[*installed.command, *FLAGS, "--model", access.model],
        env=env,
        files=files,
        stdin=assignment.instruction.encode(),
    )


def tool_call(action: Action, layout: Layout) -> ToolCall:
    match action:
        case ListFolder(path):
            return "list_directory", {"dir_path": path}
        case ReadFile(path):
            return "read_file", {"file_path": path}
        case WriteFile(path, text):
            return "write_file", {"file_path": path, "content": text}
        case EditFile(path, old, new):
            about = f"Replace {old} by {new}"
            return "replace", {"file_path": path, "instruction": about, "old_string": old, "new_string": new}
        case Shell():
            return "run_shell_command", {"command": in_shell(action)}


def delegate(prompt: str) -> ToolCall:
    return "invoke_agent", {"agent_name": "generalist", "prompt": prompt}


def answer(stdout: str, home: Path) -> str:
    """The text since its last tool call: it comes in pieces."""
    pieces: list[str] = []
    for event in events(stdout):
        match event:
            case {"type": "message", "role": "assistant", "content": str(text)}:
                pieces.append(text)
            case {"type": "tool_use"}:
                pieces.clear()
    return "".join(pieces).strip()


def _settings(access: Access, assignment: Assignment) -> dict[str, Any]:
    window = access.max_model_len
    full = window - answer_budget(window, MAX_ANSWER)
    model: dict[str, Any] = {"compressionThreshold": full / ASSUMED_WINDOW}
    if assignment.max_turns is not None:
        model["maxSessionTurns"] = assignment.max_turns
    servers = {
        name: {"command": server.command, "args": list(server.args), "env": dict(server.env), "trust": True}
        for name, server in assignment.mcp_servers.items()
    }
    return {
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False},
        # It reads its two built-in skills at once, and lists them in the order in which that ends.
        "skills": {"disabled": ["antigravity-support"]},
        "security": {"auth": {"selectedType": "oauth-personal" if assignment.login else "gemini-api-key"}},
        "model": model,
        "mcpServers": servers,
    }


_LOGIN = {
    "access_token": "ya29.nobody",
    "refresh_token": "1//nobody",
    "token_type": "Bearer",
    "scope": "https://www.googleapis.com/auth/cloud-platform",
    "expiry_date": 4_000_000_000_000,
}
"""The file that a Google login leaves. The token is nobody's, and good until 2096."""
