"""The workspace's start state and the diff of what a run changed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from polar_mitm.tasks.evaluators import SessionCompleted
from polar_mitm.tasks.place import Place
from polar_mitm.tasks.scenario import Scenario
from polar_mitm.tasks.workspace import Workspace, WorkspaceError


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """A scenario's start folder."""
    path = tmp_path / "start"
    path.mkdir()
    return path


@pytest.fixture
def session(tmp_path: Path) -> Path:
    path = tmp_path / "session"
    path.mkdir()
    return path


def scenario(start: Path, **fields: object) -> Scenario:
    return Scenario.model_validate(
        {
            "path": start.parent / "x.yaml",
            "name": "x",
            "instruction": "hi",
            "workspace": start.name,
            "evaluator": SessionCompleted(type="session_completed"),
            **fields,
        }
    )


def git(folder: Path, *arguments: str) -> str:
    """git as a person's, away from this machine's configuration."""
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def tree(folder: Path) -> dict[str, bytes | str]:
    """What is in a folder: bytes of files, targets of links; repositories' own folders left out."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if ".git" in path.relative_to(folder).parts:
            continue
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


async def test_without_a_folder_the_workspace_is_empty_but_for_files(start: Path, session: Path) -> None:
    workspace = await Workspace.prepare(session, scenario(start, workspace=None, files={"a/b.txt": "b\n"}), Place())
    assert tree(workspace.path) == {"a/b.txt": b"b\n"}


async def test_the_folder_is_copied_with_links_and_files_win(start: Path, session: Path) -> None:
    (start / "a.txt").write_text("folder's\n")
    (start / "keep.txt").write_text("kept\n")
    (start / "link").symlink_to("keep.txt")
    (start / "dangling").symlink_to("/nowhere")
    workspace = await Workspace.prepare(session, scenario(start, files={"a.txt": "file's\n"}), Place())
    assert tree(workspace.path) == {
        "a.txt": b"file's\n",
        "keep.txt": b"kept\n",
        "link": "keep.txt",
        "dangling": "/nowhere",
    }
    assert (start / "a.txt").read_text() == "folder's\n"


async def test_a_file_never_leads_out_of_the_workspace_by_a_link(start: Path, session: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (start / "door").symlink_to(tmp_path / "outside")
    (start / "note.txt").symlink_to(tmp_path / "outside" / "note.txt")
    with pytest.raises(WorkspaceError, match="leads out of the workspace"):
        await Workspace.prepare(session, scenario(start, files={"door/x": "x"}), Place())
    shutil.rmtree(session / "workspace")
    await Workspace.prepare(session, scenario(start, files={"note.txt": "x"}), Place())
    assert list((tmp_path / "outside").iterdir()) == []


async def test_a_run_that_changed_nothing_has_an_empty_diff_and_nothing_is_left_behind(
    start: Path, session: Path
) -> None:
    (start / "a.txt").write_text("a\n")
    workspace = await Workspace.prepare(session, scenario(start), Place())
    assert await workspace.diff() == b""
    assert names(session) == ["workspace"]
    assert names(workspace.path) == ["a.txt"]


async def test_the_diff_makes_the_start_state_into_the_end_state(start: Path, session: Path, tmp_path: Path) -> None:
    (start / "gone.txt").write_text("one\r\ntwo\n")
    (start / "sub").mkdir()
    (start / "sub" / "mode.sh").write_text("#!/bin/sh\n")
    (start / "sub" / "change.txt").write_text("1\n2\n3\n")
    (start / "link").symlink_to("sub")
    (start / ".gitignore").write_text("*.log\n")
    workspace = await Workspace.prepare(session, scenario(start), Place())
    path = workspace.path
    (path / "gone.txt").unlink()
    (path / "sub" / "mode.sh").chmod(0o755)
    (path / "sub" / "change.txt").write_text("1\n2 changed\n3")
    (path / "binary").write_bytes(bytes(range(256)) * 8)
    (path / "ignored.log").write_text("not ignored here\n")
    (path / 'odd "é\n name').write_text("odd\n")
    (path / "link").unlink()
    (path / "link").symlink_to("binary")
    (path / "empty.txt").touch()
    os.mkfifo(path / "pipe")
    patch = tmp_path / "workspace.diff"
    patch.write_bytes(await workspace.diff())
    again = tmp_path / "again"
    shutil.copytree(start, again, symlinks=True)
    git(again, "apply", "--whitespace=nowarn", str(patch))
    assert tree(again) == tree(path)
    assert os.access(again / "sub" / "mode.sh", os.X_OK)


async def test_repositories_in_the_workspace_stay_as_they_are_and_hide_nothing(start: Path, session: Path) -> None:
    (start / "a.txt").write_text("a\n")
    git(start, "init", "--quiet")
    git(start, "add", "a.txt")
    git(start, "commit", "--quiet", "-m", "first")
    (start / "nested").mkdir()
    git(start / "nested", "init", "--quiet")  # without a commit, which `git add` refuses
    (start / "nested" / "inner.txt").write_text("before\n")
    workspace = await Workspace.prepare(session, scenario(start), Place())
    (workspace.path / "nested" / "inner.txt").write_text("after\n")
    (workspace.path / "a.txt").write_text("changed\n")
    git(workspace.path, "commit", "--quiet", "-am", "by the harness")
    (workspace.path / "made").mkdir()
    git(workspace.path / "made", "init", "--quiet")
    (workspace.path / "made" / "new.txt").write_text("new\n")
    diff = (await workspace.diff()).decode()
    assert [line for line in diff.splitlines() if line.startswith("diff")] == [
        "diff --git a/a.txt b/a.txt",
        "diff --git a/made/new.txt b/made/new.txt",
        "diff --git a/nested/inner.txt b/nested/inner.txt",
    ]
    assert git(workspace.path, "log", "--format=%s").split("\n")[:2] == ["by the harness", "first"]


async def test_attributes_of_the_workspace_change_nothing_in_the_diff(start: Path, session: Path) -> None:
    (start / ".gitattributes").write_text(
        "* text eol=lf ident filter=lfs\n*.txt -diff\n*.x working-tree-encoding=UTF-16\n"
    )
    (start / "a.txt").write_bytes(b"one\r\n$Id$\r\n")
    (start / "b.x").write_bytes(b"plain\n")
    workspace = await Workspace.prepare(session, scenario(start), Place())
    (workspace.path / "a.txt").write_bytes(b"two\r\n$Id$\r\n")
    diff = await workspace.diff()
    assert b"-one\r\n+two\r\n $Id$\r\n" in diff


async def test_the_users_git_configuration_and_environment_are_not_read(
    start: Path, session: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".gitconfig").write_text("[diff]\n\tnoprefix = true\n[core]\n\tautocrlf = true\n\tbroken\n[alias\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    workspace = await Workspace.prepare(session, scenario(start), Place())
    (workspace.path / "a.txt").write_text("a\n")
    assert (await workspace.diff()).startswith(b"diff --git a/a.txt b/a.txt\nnew file")


async def test_a_workspace_that_the_harness_removed_is_a_diff_of_deletions(start: Path, session: Path) -> None:
    (start / "a.txt").write_text("a\n")
    workspace = await Workspace.prepare(session, scenario(start), Place())
    shutil.rmtree(workspace.path)
    assert b"deleted file mode 100644" in await workspace.diff()


async def test_a_machine_without_git_is_told_how_to_get_it(
    start: Path, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(WorkspaceError, match="git is not installed: apt-get install git"):
        await Workspace.prepare(session, scenario(start), Place())
