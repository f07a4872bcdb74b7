"""The patch of a session: what it changed, without what the repository ignores."""

import subprocess
from pathlib import Path

import pytest

from polar_mitm.tasks.place import Place
from polar_mitm.tasks.reading import load
from polar_mitm.tasks.swebench.patch import parts_of, patch_of, path_of
from polar_mitm.tasks.workspace import Workspace


def git(folder: Path, *arguments: str) -> None:
    names = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *names, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
async def workspace(tmp_path: Path) -> Workspace:
    """A repository with a file that is tracked though a rule names it."""
    start = tmp_path / "start"
    (start / "build").mkdir(parents=True)
    (start / "src").mkdir()
    (start / ".gitignore").write_text("build/\n*.pyc\n")
    (start / "build" / "tracked.txt").write_text("a\n")
    (start / "src" / "a.py").write_text("a = 1\n")
    (start / "src" / "a.pyc").write_bytes(b"\0old")
    git(start, "init", "--quiet")
    git(start, "add", "--all", "--force", ".gitignore", "build", "src/a.py")
    git(start, "commit", "--quiet", "--message", "x")
    scenario = tmp_path / "s.yaml"
    scenario.write_text("instruction: x\nworkspace: start\nevaluator: {type: session_completed}\n")
    return await Workspace.prepare(tmp_path / "run" / "session", load(scenario), Place())


def names(patch: bytes) -> list[bytes]:
    return [path_of(part) for part in parts_of(patch)]


async def test_what_the_repository_ignores_is_left_out_but_for_what_it_tracks(workspace: Workspace) -> None:
    path = workspace.path
    (path / "build" / "tracked.txt").write_text("b\n")
    (path / "build" / "made.bin").write_bytes(bytes(range(256)))
    (path / "src" / "a.py").write_text("a = 2\n")
    (path / "src" / "a.pyc").write_bytes(b"\0new")
    (path / "src" / "new.bin").write_bytes(bytes(range(256)) * 4)
    (path / "src" / 'odd "ü"\t.py').write_text("diff --git a/x b/x\n")
    diff = await workspace.diff()
    patch = patch_of(diff, path, path / ".git" / "index")
    assert names(patch) == [b"build/tracked.txt", b"src/a.py", b"src/new.bin", 'src/odd "ü"\t.py'.encode()]
    again = path.parent / "again"
    git(path.parent, "clone", "--quiet", str(path), str(again))
    (path.parent / "patch").write_bytes(patch)
    git(again, "apply", "--verbose", str(path.parent / "patch"))
    for name in ("build/tracked.txt", "src/a.py", "src/new.bin", 'src/odd "ü"\t.py'):
        assert (again / name).read_bytes() == (path / name).read_bytes()


async def test_without_an_index_nothing_is_known_to_be_tracked(workspace: Workspace) -> None:
    (workspace.path / "build" / "tracked.txt").write_text("b\n")
    assert patch_of(await workspace.diff(), workspace.path, None) == b""


async def test_a_folder_that_became_a_link_and_files_with_odd_names_are_no_trouble(workspace: Workspace) -> None:
    path = workspace.path
    for file in (path / "src").iterdir():
        file.unlink()
    (path / "src").rmdir()
    (path / "src").symlink_to("/etc")
    (path / ":(top)x").write_text("x\n")
    (path / " y").write_text("y")
    patch = patch_of(await workspace.diff(), path, path / ".git" / "index")
    assert set(names(patch)) == {b" y", b":(top)x", b"src", b"src/a.py", b"src/a.pyc"}


async def test_nothing_the_agent_configured_is_run(workspace: Workspace, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    git(workspace.path, "config", "core.fsmonitor", f"touch {seen}")
    (workspace.path / "src" / "a.py").write_text("a = 3\n")
    assert names(patch_of(await workspace.diff(), workspace.path, workspace.path / ".git" / "index")) == [b"src/a.py"]
    assert not seen.exists()


def test_no_change_is_no_patch(tmp_path: Path) -> None:
    assert patch_of(b"", tmp_path, None) == b""
