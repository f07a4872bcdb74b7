"""Qwen Code. Speaks OpenAI Chat here; a first request is about 17 000 prompt tokens, the largest of all harnesses.

In proxy mode its host is dashscope.aliyuncs.com. Facts are from runs of version 0.24.4.
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
from polar_mitm.harnesses.base import PATIENCE_MS, Access, Assignment, Facts, Installed, Npm, Prepared, answer_budget
from polar_mitm.harnesses.claude_code import result_or_last_text
from polar_mitm.harnesses.environment import environment
from polar_mitm.harnesses.npm import find_script, script_folder
from polar_mitm.sandboxes.base import Layout

NAME = "qwen-code"
SOURCE = Npm("@qwen-code/qwen-code", "0.24.4", node=True, executables=("vendor/ripgrep/*/rg",))
FACTS = Facts(
    source=SOURCE,
    known_good=("0.24.4",),
    minimum="0.24.4",
    first_prompt=17_100,
    providers={"base-url": "openai-chat", "proxy": "openai-chat"},
    session_ids={"proxy": ("metadata.sessionId",)},
    side_requests=("telemetry at rum.aliyuncs.com, which privacy.usageStatisticsEnabled turns off",),
    sub_agents=True,
    takes=frozenset({"extra_instructions", "mcp_servers", "max_turns"}),
)
FINISH: ToolCall | None = None

# The prompt comes on stdin; stream-json leaves a log of the run on stdout.
FLAGS = ("--auth-type", "openai", "--yolo", "--output-format", "stream-json")

MAX_ANSWER = 32_768
"""Its own default."""

SPARE = 33_000
"""Tokens that it leaves free of a window larger than that: of one of 45 000 it would use 12 000, less than its first
prompt, and compact at every turn. Told of so much more than it may fill, it compacts when that is full."""


def find() -> Installed:
    return find_script(NAME, SOURCE, FACTS.minimum, "cli-entry.js")


def prepare(installed: Installed, access: Access, layout: Layout, assignment: Assignment) -> Prepared:
    env = environment(access, layout, path_first=[script_folder(installed)]) | {
        "OPENAI_API_KEY": access.key,
        "OPENAI_MODEL": access.model,
        "QWEN_CODE_NO_RELAUNCH": "true",  # else it starts itself a second time, with a larger heap
        "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
        # It gives up any answer that is not over after 900 s, whatever comes of it meanwhile.
        "QWEN_STREAM_MAX_LIFETIME_MS": str(PATIENCE_MS),
    }
    if access.mode == "base-url":
        env["OPENAI_BASE_URL"] = f"{access.base_url}/v1"
    argv = [*installed.command, *FLAGS, "--model", access.model]
    if assignment.extra_instructions:
        argv.append(f"--append-system-prompt={assignment.extra_instructions}")
    if assignment.max_turns is not None:
        argv += ["--max-session-turns", str(assignment.max_turns)]
    return Prepared(
        argv=argv,
        env=env,
        files={".qwen/settings.json": json.dumps(_settings(access, assignment), indent=2)},
        stdin=assignment.instruction.encode(),
    )


def tool_call(action: Action, layout: Layout) -> ToolCall:
    """Its file tools take absolute paths only."""
    match action:
        case ReadFile(path):
            return "read_file", {"file_path": str(layout.workspace / path)}
        case WriteFile(path, text):
            return "write_file", {"file_path": str(layout.workspace / path), "content": text}
        case EditFile(path, old, new):
            place = str(layout.workspace / path)
            return "edit", {"file_path": place, "old_string": old, "new_string": new}
        case ListFolder() | Shell():
            return "run_shell_command", {"command": in_shell(action), "is_background": False}


def delegate(prompt: str) -> ToolCall:
    kind = {"subagent_type": "general-purpose", "run_in_background": False}
    return "agent", {"description": "A part of the task", "prompt": prompt, **kind}


def answer(stdout: str, home: Path) -> str:
    """Its stream is made like Claude Code's."""
    return result_or_last_text(stdout)


def _settings(access: Access, assignment: Assignment) -> dict[str, Any]:
    answer_tokens = answer_budget(access.max_model_len, MAX_ANSWER)
    servers = {
        name: {"command": server.command, "args": list(server.args), "env": dict(server.env), "trust": True}
        for name, server in assignment.mcp_servers.items()
    }
    return {
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False},
        # Else it lets an agent of its own read the conversation at the end, for what to remember of it.
        "memory": dict.fromkeys(("enableManagedAutoMemory", "enableManagedAutoDream", "enableAutoSkill"), False),
        "model": {
            "generationConfig": {
                "contextWindowSize": access.max_model_len - answer_tokens + SPARE,
                "samplingParams": {"max_tokens": answer_tokens},
            }
        },
        "mcpServers": servers,
    }
