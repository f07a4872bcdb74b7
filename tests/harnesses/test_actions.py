"""A scripted action, as each harness's own tool call and as a shell command."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from polar_mitm.harnesses import HARNESSES
from polar_mitm.harnesses.actions import Action, EditFile, ListFolder, ReadFile, Shell, WriteFile, in_shell
from tests.harnesses.starts import LAYOUT

EVERY: tuple[Action, ...] = (
    Shell("echo 'a b'"),
    ListFolder("."),
    ReadFile("a.txt"),
    WriteFile("a.txt", "x"),
    EditFile("a.txt", "x", "y"),
)
PI: tuple[tuple[str, dict[str, Any]], ...] = (
    ("bash", {"command": "echo 'a b'"}),
    ("bash", {"command": "ls -la ."}),
    ("read", {"path": "a.txt"}),
    ("write", {"path": "a.txt", "content": "x"}),
    ("edit", {"path": "a.txt", "edits": [{"oldText": "x", "newText": "y"}]}),
)
CALLS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "pi": PI,
    "pi-frozen": PI,
    "claude-code": (
        ("Bash", {"command": "echo 'a b'"}),
        ("Bash", {"command": "ls -la ."}),
        ("Read", {"file_path": "/workspace/a.txt"}),
        ("Write", {"file_path": "/workspace/a.txt", "content": "x"}),
        ("Edit", {"file_path": "/workspace/a.txt", "old_string": "x", "new_string": "y"}),
    ),
    "codex": tuple(("exec_command", {"cmd": in_shell(action)}) for action in EVERY),
    "qwen-code": (
        ("run_shell_command", {"command": "echo 'a b'", "is_background": False}),
        ("run_shell_command", {"command": "ls -la .", "is_background": False}),
        ("read_file", {"file_path": "/workspace/a.txt"}),
        ("write_file", {"file_path": "/workspace/a.txt", "content": "x"}),
        ("edit", {"file_path": "/workspace/a.txt", "old_string": "x", "new_string": "y"}),
    ),
    "gemini-cli": (
        ("run_shell_command", {"command": "echo 'a b'"}),
        ("list_directory", {"dir_path": "."}),
        ("read_file", {"file_path": "a.txt"}),
        ("write_file", {"file_path": "a.txt", "content": "x"}),
        (
            "replace",
            {"file_path": "a.txt", "instruction": "Replace x by y", "old_string": "x", "new_string": "y"},
        ),
    ),
    "opencode": (
        ("bash", {"command": "echo 'a b'"}),
        ("bash", {"command": "ls -la ."}),
        ("read", {"filePath": "/workspace/a.txt"}),
        ("write", {"content": "x", "filePath": "/workspace/a.txt"}),
        ("edit", {"filePath": "/workspace/a.txt", "oldString": "x", "newString": "y"}),
    ),
    "mini-swe-agent": tuple(("bash", {"command": in_shell(action)}) for action in EVERY),
    "command": tuple(("shell", {"command": in_shell(action)}) for action in EVERY),
}


@pytest.mark.parametrize("name", list(HARNESSES))
def test_an_action_becomes_a_call_of_the_harness_own_tool(name: str) -> None:
    assert tuple(HARNESSES[name].tool_call(action, LAYOUT) for action in EVERY) == CALLS[name]


def shell(action: Action, folder: Path) -> str:
    done = subprocess.run(["sh", "-c", in_shell(action)], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


AWKWARD = ["plain", 'it\'s "quoted"', "a/b&c\\1.*[x]^$", "two\nlines\n", "%s $HOME `id`", "über 漢字"]


@pytest.mark.parametrize("name", ["a.txt", "it's a file", "-dash"])
@pytest.mark.parametrize("text", AWKWARD)
def test_what_the_shell_writes_it_reads_back(text: str, name: str, tmp_path: Path) -> None:
    path = f"./{name}"
    shell(WriteFile(path, text), tmp_path)
    assert (tmp_path / name).read_text() == text
    assert shell(ReadFile(path), tmp_path) == text
    assert name in shell(ListFolder("."), tmp_path)


@pytest.mark.parametrize("new", ["", *AWKWARD])
@pytest.mark.parametrize("old", AWKWARD)
def test_an_edit_by_the_shell_changes_that_text_alone(old: str, new: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"before {old} after\n")
    shell(EditFile("a.txt", old, new), tmp_path)
    assert (tmp_path / "a.txt").read_text() == f"before {new} after\n"
