"""Claude Code, run by its native binary. Speaks Anthropic Messages only; a first request is about 12 000 prompt tokens.

The model is asked for by the engine's own name: one that Claude Code does not know gets the smaller request (49 kB; an
older Claude's name gets 88 kB). Facts are from runs of version 2.1.332.
"""

import json
import platform
import sys
from collections.abc import Iterator
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
    HarnessMissing,
    Installed,
    Prepared,
    answer_budget,
    install_folder,
    package_version,
)
from polar_mitm.harnesses.environment import environment
from polar_mitm.sandboxes.base import Layout

NAME = "claude-code"
PACKAGE = "@anthropic-ai/claude-code"
MINIMUM = "2.1.332"
PACKAGES: tuple[str, ...] = (f"{PACKAGE}@2.1.332",)

# The prompt comes on stdin. stream-json leaves a log of the run on stdout and needs --verbose.
FLAGS = (
    "--print",
    "--output-format",
    "stream-json",
    "--verbose",
    "--dangerously-skip-permissions",
    "--no-session-persistence",
)

MAX_ANSWER = 32_000
"""Claude Code's own limit for a model it does not know."""


def find() -> Installed:
    version = package_version(NAME, PACKAGE, MINIMUM)
    folder = install_folder(NAME)
    binary = _binary(folder)
    if not binary.is_file():
        raise HarnessMissing(NAME, f"is installed without its binary for this machine ({binary.parent.name})")
    return Installed(version, [folder], [str(binary)])


def prepare(installed: Installed, access: Access, layout: Layout, instruction: str) -> Prepared:
    env = environment(access, layout) | {
        "ANTHROPIC_API_KEY": access.key,
        # Without it, --dangerously-skip-permissions is refused to root.
        "IS_SANDBOX": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        # A first system block that differs in each request: no prompt would then continue the one before it.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        # The window of a model it does not know; else it assumes 200 000 and never compacts in time.
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(access.max_model_len),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(answer_budget(access.max_model_len, MAX_ANSWER)),
    }
    if access.mode == "base-url":
        env["ANTHROPIC_BASE_URL"] = access.base_url
    return Prepared(
        argv=[*installed.command, *FLAGS, "--model", access.model],
        env=env,
        stdin=instruction.encode(),
    )


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


def answer(stdout: str) -> str:
    """The text of the `result` event; without one (killed, crashed) the last text the assistant gave."""
    last = ""
    for line in stdout.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a line cut by a kill, or what others wrote to the same output
        match event:
            case {"type": "result", "result": str(text)}:
                return text.strip()
            case {"type": "assistant", "parent_tool_use_id": None, "message": {"content": list(blocks)}}:
                last = "\n".join(_texts(blocks)).strip() or last
    return last


def _texts(blocks: list[Any]) -> Iterator[str]:
    """A program that the agent ran can have written to the same standard output: nothing in it is certain."""
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                yield text


def _binary(folder: Path) -> Path:
    """npm brings one optional package, named after this machine; its binary needs no Node."""
    processor = {"x86_64": "x64", "AMD64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    system = sys.platform
    if system == "linux" and platform.libc_ver()[0] != "glibc":
        processor += "-musl"
    return folder / "node_modules" / f"{PACKAGE}-{system}-{processor}" / "claude"
