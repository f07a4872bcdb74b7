"""pi, the coding agent of @earendil-works: the smallest requests of all harnesses (about 1400 prompt tokens).

In base-url mode it speaks OpenAI Chat to a provider of our own; in proxy mode Anthropic Messages to api.anthropic.com.
Facts about its flags and files are from its own documentation and from runs of version 1.6.0.
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
from polar_mitm.harnesses.base import (
    Access,
    Installed,
    Prepared,
    answer_budget,
    install_folder,
    package_version,
)
from polar_mitm.harnesses.environment import environment
from polar_mitm.harnesses.node import PINNED, find_node, private
from polar_mitm.sandboxes.base import Layout

NAME = "pi"
PACKAGE = "@earendil-works/pi-coding-agent"
MINIMUM = "1.6.0"
PACKAGES: tuple[str, ...] = (f"{PACKAGE}@1.6.0", *((PINNED,) if private() else ()))

KEY_VARIABLE = "ANTHROPIC_API_KEY"
"""pi reads it by itself in proxy mode, and through `$` in models.json in base-url mode."""

# One prompt from stdin, its final text to stdout, then the end. Nothing is kept, no code of the workspace is loaded.
FLAGS = ("--print", "--no-session", "--no-approve", "--offline")

MAX_ANSWER = 16_384
"""pi's own default for a model it does not know."""


def find() -> Installed:
    version = package_version(NAME, PACKAGE, MINIMUM)
    node, node_folders = find_node(NAME)
    folder = install_folder(NAME)
    script = folder / "node_modules" / PACKAGE / "dist" / "bundle" / "cli.js"
    return Installed(version, [folder, *node_folders], [str(node), str(script)])


def prepare(installed: Installed, access: Access, layout: Layout, instruction: str) -> Prepared:
    provider = "polar" if access.mode == "base-url" else "anthropic"
    env = environment(access, layout, path_first=[Path(installed.command[0]).parent]) | {
        KEY_VARIABLE: access.key,
        "PI_TELEMETRY": "0",
        "PI_SKIP_VERSION_CHECK": "1",
    }
    return Prepared(
        argv=[*installed.command, *FLAGS, "--provider", provider, "--model", access.model],
        env=env,
        files={
            ".pi/agent/models.json": json.dumps({"providers": {provider: _provider(access)}}, indent=2),
            ".pi/agent/settings.json": json.dumps(_settings(access), indent=2),
        },
        stdin=instruction.encode(),
    )


def tool_call(action: Action, layout: Layout) -> ToolCall:
    match action:
        case ReadFile(path):
            return "read", {"path": path}
        case WriteFile(path, text):
            return "write", {"path": path, "content": text}
        case EditFile(path, old, new):
            return "edit", {"path": path, "edits": [{"oldText": old, "newText": new}]}
        case ListFolder() | Shell():
            return "bash", {"command": in_shell(action)}


def answer(stdout: str) -> str:
    """Print mode prints the last assistant text and nothing else."""
    return stdout.strip()


def _provider(access: Access) -> dict[str, Any]:
    """The model as models.json describes it: pi plans its answers and its compaction by these numbers."""
    model = {
        "id": access.model,
        "contextWindow": access.max_model_len,
        "maxTokens": answer_budget(access.max_model_len, MAX_ANSWER),
    }
    if access.mode == "proxy":
        # Added to the built-in provider, whose host stays. Threads would send each turn without the ones before it.
        return {"models": [model | {"compat": {"supportsMessageThreads": False}}]}
    return {
        "baseUrl": f"{access.base_url}/v1",
        "api": "openai-completions",
        "apiKey": f"${KEY_VARIABLE}",
        "models": [model],
    }


def _settings(access: Access) -> dict[str, Any]:
    """Compaction in proportion to the window: pi's fixed 16384 and 20000 would compact a small model at every turn."""
    quarter = access.max_model_len // 4
    return {
        "compaction": {"reserveTokens": min(16_384, quarter), "keepRecentTokens": min(20_000, quarter)},
        "enableInstallTelemetry": False,
    }
