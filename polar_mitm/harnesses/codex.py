"""Codex CLI, run by its native binary. Speaks OpenAI Responses only; a first request is about 10 000 prompt tokens.

The model is asked for by the engine's own name: one that Codex does not know gets the classic tools, functions with
JSON arguments; names of its own catalogue get one JavaScript tool in their place. Facts are from runs of 0.171.0.
"""

import json
import platform
import sys
from pathlib import Path

from polar_mitm.harnesses.actions import Action, ToolCall, in_shell
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

NAME = "codex"
PACKAGE = "@openai/codex"
MINIMUM = "0.171.0"
PACKAGES: tuple[str, ...] = (f"{PACKAGE}@0.171.0",)

KEY_VARIABLE = "CODEX_API_KEY"
"""Its own `exec` reads it before any login."""

# `-` reads the prompt from stdin. The sandbox around it is polar's; its own would be a second one inside.
FLAGS = (
    "exec",
    "--json",
    "--skip-git-repo-check",
    "--dangerously-bypass-approvals-and-sandbox",
)

MAX_ANSWER = 32_000
"""It sends no limit of its own; this much of the window it leaves free when it compacts."""


def find() -> Installed:
    version = package_version(NAME, PACKAGE, MINIMUM)
    folder = install_folder(NAME)
    binary = _binary(folder)
    if not binary.is_file():
        raise HarnessMissing(NAME, f"is installed without its binary for this machine ({_platform()})")
    return Installed(version, [folder], [str(binary)])


def prepare(installed: Installed, access: Access, layout: Layout, instruction: str) -> Prepared:
    env = environment(access, layout) | {
        KEY_VARIABLE: access.key,
        "CODEX_HOME": str(layout.home / ".codex"),
    }
    return Prepared(
        argv=[*installed.command, *FLAGS, "--model", access.model, "-"],
        env=env,
        files={".codex/config.toml": _config(access)},
        stdin=instruction.encode(),
    )


def tool_call(action: Action, layout: Layout) -> ToolCall:
    """The classic tool set has a shell and no tools for files."""
    return "exec_command", {"cmd": in_shell(action)}


def answer(stdout: str) -> str:
    """The text of the last message that it gave."""
    last = ""
    for line in stdout.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a line cut by a kill, or what others wrote to the same output
        match event:
            case {"type": "item.completed", "item": {"type": "agent_message", "text": str(text)}}:
                last = text.strip() or last
    return last


def _config(access: Access) -> str:
    window = access.max_model_len
    lines = [
        f"model_context_window = {window}",
        f"model_auto_compact_token_limit = {window - answer_budget(window, MAX_ANSWER)}",
        "check_for_update_on_startup = false",
        'web_search = "disabled"',
        # In base-url mode its built-in provider would try a websocket first.
        *(['model_provider = "polar"'] if access.mode == "base-url" else []),
        "[analytics]",
        "enabled = false",
        "[feedback]",
        "enabled = false",
    ]
    if access.mode == "base-url":
        lines += [
            "[model_providers.polar]",
            'name = "polar"',
            f"base_url = {json.dumps(f'{access.base_url}/v1')}",
            'wire_api = "responses"',
            f'env_key = "{KEY_VARIABLE}"',
        ]
    return "\n".join([*lines, ""])


def _platform() -> str:
    processor = {"x86_64": "x64", "AMD64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return f"{sys.platform}-{processor}"


def _binary(folder: Path) -> Path:
    """npm brings one optional package, named after this machine; its binary is static and needs no Node."""
    vendor = folder / "node_modules" / f"{PACKAGE}-{_platform()}" / "vendor"
    return next(vendor.glob("*/bin/codex"), vendor / "codex")
