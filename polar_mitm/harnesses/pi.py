"""pi, the coding agent of @earendil-works: the smallest requests of all harnesses (about 1400 prompt tokens).

In base-url mode it speaks OpenAI Chat to a provider of our own; in proxy mode Anthropic Messages to api.anthropic.com.
Facts about its flags and files are from its own documentation and from runs of the versions named below.
`pi_frozen` is the same program under its old name.
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
from polar_mitm.harnesses.npm import find_script, script_folder
from polar_mitm.sandboxes.base import Layout

NAME = "pi"
SOURCE = Npm("@earendil-works/pi-coding-agent", "1.6.0", node=True)
FACTS = Facts(
    source=SOURCE,
    known_good=("1.6.0",),
    minimum="1.6.0",
    first_prompt=1_400,
    providers={"base-url": "openai-chat", "proxy": "anthropic"},
    takes=frozenset({"extra_instructions"}),
)
FINISH: ToolCall | None = None

KEY_VARIABLE = "ANTHROPIC_API_KEY"
"""pi reads it by itself in proxy mode, and because models.json names it in base-url mode."""

# One prompt from stdin, its final text to stdout, then the end. Nothing is kept, no code of the workspace is loaded.
FLAGS = ("--print", "--no-session", "--no-approve", "--offline")

EXTRA_FILE = ".pi/agent/extra.md"

MAX_ANSWER = 16_384
"""pi's own default for a model it does not know."""


def find() -> Installed:
    return find_script(NAME, SOURCE, FACTS.minimum, "dist/bundle/cli.js")


def prepare(installed: Installed, access: Access, layout: Layout, assignment: Assignment) -> Prepared:
    return start(installed, access, layout, assignment, FLAGS, api_key=f"${KEY_VARIABLE}")


def start(
    installed: Installed,
    access: Access,
    layout: Layout,
    assignment: Assignment,
    flags: tuple[str, ...],
    *,
    api_key: str,
) -> Prepared:
    """What both packages have in common. `api_key` names the variable with the key as models.json has it."""
    provider = "polar" if access.mode == "base-url" else "anthropic"
    env = environment(access, layout, path_first=[script_folder(installed)]) | {
        KEY_VARIABLE: access.key,
        "PI_TELEMETRY": "0",
        "PI_SKIP_VERSION_CHECK": "1",
    }
    argv = [*installed.command, *flags, "--provider", provider, "--model", access.model]
    files = {
        ".pi/agent/models.json": json.dumps({"providers": {provider: _provider(access, api_key)}}, indent=2),
        ".pi/agent/settings.json": json.dumps(_settings(access), indent=2),
    }
    if assignment.extra_instructions:
        files[EXTRA_FILE] = assignment.extra_instructions
        argv += ["--append-system-prompt", str(layout.home / EXTRA_FILE)]
    return Prepared(argv=argv, env=env, files=files, stdin=assignment.instruction.encode())


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


def delegate(prompt: str) -> ToolCall:
    raise NotImplementedError(f"{NAME} has no sub-agents")


def answer(stdout: str, home: Path) -> str:
    """Print mode prints the last assistant text and nothing else."""
    return stdout.strip()


def _provider(access: Access, api_key: str) -> dict[str, Any]:
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
        "apiKey": api_key,
        "models": [model],
    }


def _settings(access: Access) -> dict[str, Any]:
    """Compaction in proportion to the window: pi's fixed 16384 and 20000 would compact a small model at every turn."""
    quarter = access.max_model_len // 4
    return {
        "compaction": {"reserveTokens": min(16_384, quarter), "keepRecentTokens": min(20_000, quarter)},
        "enableInstallTelemetry": False,
    }
