"""What a scripted turn does, whatever the harness: each harness has tools of its own for these actions.

Paths are relative to the workspace. A harness without a tool for an action takes its shell, as its model would.
"""

import re
import shlex
from dataclasses import dataclass
from typing import Any

type ToolCall = tuple[str, dict[str, Any]]
"""Name and arguments of a tool call."""


@dataclass(slots=True, frozen=True)
class Shell:
    """Run a command."""

    command: str


@dataclass(slots=True, frozen=True)
class ListFolder:
    path: str


@dataclass(slots=True, frozen=True)
class ReadFile:
    path: str


@dataclass(slots=True, frozen=True)
class WriteFile:
    """Make the file, or put the text in the place of what it holds."""

    path: str
    text: str


@dataclass(slots=True, frozen=True)
class EditFile:
    """Replace the one place that holds `old`."""

    path: str
    old: str
    new: str


type Action = Shell | ListFolder | ReadFile | WriteFile | EditFile


def in_shell(action: Action) -> str:
    """The command for `sh -c`, in the workspace, that does the same."""
    match action:
        case Shell(command):
            return command
        case ListFolder(path):
            return f"ls -la {shlex.quote(path)}"
        case ReadFile(path):
            return f"cat {shlex.quote(path)}"
        case WriteFile(path, text):
            return f"printf %s {shlex.quote(text)} > {shlex.quote(path)}"
        case EditFile(path, old, new):
            # -z takes the file as one line, so that both texts may hold line ends.
            found, put = re.sub(r"[][\\.^$*/]", r"\\\g<0>", old), re.sub(r"[\\&/]", r"\\\g<0>", new)
            expression = f"s/{found}/{put}/".replace("\n", "\\n")
            return f"sed -i -z {shlex.quote(expression)} {shlex.quote(path)}"
