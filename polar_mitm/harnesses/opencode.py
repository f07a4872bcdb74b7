"""opencode, run by its native binary. A first request is about 7 600 prompt tokens, after one for a title.

In base-url mode it speaks OpenAI Chat to a provider of our own; in proxy mode Anthropic Messages to api.anthropic.com.
Facts are from runs of version 1.18.33.
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
from polar_mitm.harnesses.npm import find_binary
from polar_mitm.sandboxes.base import Layout

NAME = "opencode"
SOURCE = Npm("opencode-ai", "1.18.33")
_IDS = ("x-session-id", "x-session-affinity")
FACTS = Facts(
    source=SOURCE,
    known_good=("1.18.33",),
    minimum="1.18.33",
    first_prompt=7_600,
    providers={"base-url": "openai-chat", "proxy": "anthropic"},
    session_ids={"base-url": _IDS, "proxy": _IDS},
    side_requests=(
        "a title for the session, beside the first turn: a call of kind title",
        "npm for @opencode-ai/plugin, models.opencode.ai: 404",
    ),
    sub_agents=True,
    # Its own `steps` only asks the model to come to an end.
    takes=frozenset({"extra_instructions", "mcp_servers"}),
)
FINISH: ToolCall | None = None

FLAGS = ("run", "--auto", "--format", "json")

KEY_VARIABLE = "ANTHROPIC_API_KEY"
"""It reads it by itself in proxy mode, and through `{env:}` in its configuration in base-url mode."""

EXTRA_FILE = ".config/opencode/extra.md"

MAX_ANSWER = 32_000


def find() -> Installed:
    # npm brings the optional packages for this machine, without AVX2 and with musl among them.
    return find_binary(NAME, SOURCE, FACTS.minimum, "opencode-{machine}/bin/opencode")


def prepare(installed: Installed, access: Access, layout: Layout, assignment: Assignment) -> Prepared:
    provider = "polar" if access.mode == "base-url" else "anthropic"
    env = environment(access, layout) | {
        KEY_VARIABLE: access.key,
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    }
    files = {".config/opencode/opencode.json": json.dumps(_config(access, layout, assignment), indent=2)}
    if assignment.extra_instructions:
        files[EXTRA_FILE] = assignment.extra_instructions
    return Prepared(
        argv=[*installed.command, *FLAGS, "--model", f"{provider}/{access.model}"],
        env=env,
        files=files,
        stdin=assignment.instruction.encode(),
    )


def tool_call(action: Action, layout: Layout) -> ToolCall:
    """Its file tools take absolute paths only."""
    match action:
        case ReadFile(path):
            return "read", {"filePath": str(layout.workspace / path)}
        case WriteFile(path, text):
            return "write", {"content": text, "filePath": str(layout.workspace / path)}
        case EditFile(path, old, new):
            return "edit", {"filePath": str(layout.workspace / path), "oldString": old, "newString": new}
        case ListFolder() | Shell():
            return "bash", {"command": in_shell(action)}


def delegate(prompt: str) -> ToolCall:
    return "task", {"description": "A part of the task", "prompt": prompt, "subagent_type": "general"}


def answer(stdout: str, home: Path) -> str:
    """The last text that it gave."""
    last = ""
    for event in events(stdout):
        match event:
            case {"type": "text", "part": {"text": str(text)}}:
                last = text.strip() or last
    return last


def _config(access: Access, layout: Layout, assignment: Assignment) -> dict[str, Any]:
    window = access.max_model_len
    limit = {"context": window, "output": answer_budget(window, MAX_ANSWER)}
    models = {access.model: {"name": access.model, "tool_call": True, "limit": limit}}
    provider: dict[str, Any] = {"models": models}
    if access.mode == "base-url":
        options = {"baseURL": f"{access.base_url}/v1", "apiKey": f"{{env:{KEY_VARIABLE}}}"}
        provider |= {"npm": "@ai-sdk/openai-compatible", "options": options}
    config: dict[str, Any] = {
        "autoupdate": False,
        "share": "disabled",
        "provider": {"polar" if access.mode == "base-url" else "anthropic": provider},
        "mcp": {
            name: {"type": "local", "command": [server.command, *server.args], "environment": dict(server.env)}
            for name, server in assignment.mcp_servers.items()
        },
    }
    if assignment.extra_instructions:
        config["instructions"] = [str(layout.home / EXTRA_FILE)]
    return config
