"""The folder a harness starts in, and what the run changed in it.

The change is a git diff between two snapshots, kept in a git folder outside the workspace: the harness neither sees it
nor can spoil it, and a repository of the task's own, at the top or nested, stays as it is. Snapshots hold every file,
ignored ones too, but not what lies in a `.git`.
"""

import asyncio
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from polar_mitm.sandboxes.base import SandboxError
from polar_mitm.sandboxes.images import extract
from polar_mitm.tasks.place import Place
from polar_mitm.tasks.scenario import Scenario

# Hashing a large repository takes seconds; minutes mean something hangs.
GIT_TIMEOUT_S = 300

# No attribute of the workspace's own may change what is compared: line ends, filters and encodings are left alone.
_ATTRIBUTES = "* -text !eol -ident -filter !diff !working-tree-encoding\n"

_CONFIG = {
    "core.autocrlf": "false",
    "core.fileMode": "true",
    "core.hooksPath": os.devnull,
    "core.protectHFS": "false",  # names that would be dangerous on macOS or Windows are only names here
    "core.protectNTFS": "false",
    "core.quotePath": "true",
    "gc.auto": "0",
    "index.version": "4",
}


class WorkspaceError(OSError):
    """A workspace that could not be made or compared; says what git or the system said."""


@dataclass(slots=True)
class Workspace:
    """`path` is where the harness works. Make one with `prepare`."""

    path: Path
    _git: Path
    _before: str
    """The tree of the first snapshot."""

    @classmethod
    async def prepare(cls, folder: Path, scenario: Scenario, place: Place) -> Self:
        """Make `folder/workspace` in the scenario's start state and take the first snapshot. Raises WorkspaceError.

        The start state is what the task's image has in its working folder, then the scenario's folder, then its files.
        """
        path = folder / "workspace"
        git = folder / "workspace.git"
        await asyncio.to_thread(_fill, path, scenario, place)
        await _run(path, git, "init", "--quiet", "--template=")
        (git / "info").mkdir(exist_ok=True)
        (git / "info" / "attributes").write_text(_ATTRIBUTES)
        return cls(path, git, await _snapshot(path, git, "before"))

    async def take(self, image: str, workdir: PurePosixPath) -> None:
        """Put what a container left in its own files in the place of the start state. Raises WorkspaceError."""
        await asyncio.to_thread(shutil.rmtree, self.path, ignore_errors=True)
        try:
            await asyncio.to_thread(_extract, image, workdir, self.path)
        except (OSError, SandboxError) as error:
            raise WorkspaceError(f"what the container left could not be looked at: {error}") from error

    async def diff(self) -> bytes:
        """What has changed since `prepare`, as a patch for `git apply`; empty when nothing has. Can be asked once."""
        try:
            after = await _snapshot(self.path, self._git, "after")
            options = ("--patch", "--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv", "-r")
            return await _run(self.path, self._git, "diff-tree", *options, self._before, after)
        finally:
            await asyncio.to_thread(shutil.rmtree, self._git, ignore_errors=True)


def _fill(path: Path, scenario: Scenario, place: Place) -> None:
    try:
        if place.image is not None and place.workdir is not None:
            _extract(place.image, place.workdir, path)
        else:
            path.mkdir(parents=True)
        if scenario.start_folder is not None:
            # The runs' own folder may lie in the folder that is copied: it is no part of the task, and has no end.
            runs = path.parents[1].resolve()
            shutil.copytree(
                scenario.start_folder,
                path,
                symlinks=True,
                dirs_exist_ok=True,
                ignore=lambda folder, names: [name for name in names if (Path(folder) / name).resolve() == runs],
            )
        for name, text in scenario.files.items():
            file = path / name
            if not file.parent.resolve().is_relative_to(path.resolve()):
                raise WorkspaceError(f"{name} leads out of the workspace, by a link in {scenario.start_folder}")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.unlink(missing_ok=True)
            file.write_text(text, encoding="utf-8")
    except (OSError, shutil.Error, ValueError, SandboxError) as error:
        raise WorkspaceError(f"the workspace could not be made: {error}") from error


def _extract(image: str, workdir: PurePosixPath, path: Path) -> None:
    """Nothing where the image has no such folder, or where it is the root: nobody wants a copy of the whole image."""
    if workdir == PurePosixPath("/") or not extract(image, workdir, path):
        path.mkdir(parents=True, exist_ok=True)


async def _snapshot(path: Path, git: Path, name: str) -> str:
    """The id of a tree with all files of the workspace. A fresh index a time: file times prove nothing here."""
    names = await asyncio.to_thread(
        lambda: b"".join(os.fsencode(file.relative_to(path)) + b"\0" for file in _files(path))
    )
    index = str(git / f"index-{name}")
    if names:  # a harness may have removed the workspace itself
        await _run(path, git, "update-index", "--add", "--remove", "-z", "--stdin", stdin=names, index=index)
    return (await _run(path, git, "write-tree", index=index)).decode().strip()


def _files(path: Path) -> Iterator[Path]:
    """The regular files and links that can be read, whatever repository they belong to."""
    for folder, folders, files in path.walk():
        # git refuses any spelling of .git in a path, and what is in one is the repository's, not the work.
        folders[:] = [name for name in folders if name.lower() != ".git"]
        for file in (folder / name for name in files if name.lower() != ".git"):
            if file.is_symlink() or (file.is_file() and os.access(file, os.R_OK)):
                yield file


async def _run(path: Path, git: Path, *arguments: str, stdin: bytes = b"", index: str | None = None) -> bytes:
    """git's output. It reads no configuration but what stands here."""
    program = shutil.which("git")
    if program is None:
        raise WorkspaceError("git is not installed: apt-get install git (Debian, Ubuntu), dnf install git (Fedora)")
    settings = [part for key, value in _CONFIG.items() for part in ("-c", f"{key}={value}")]
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.devnull,
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_DIR": str(git),
        "GIT_WORK_TREE": str(path),
        **({"GIT_INDEX_FILE": index} if index else {}),
    }
    folder = path if await asyncio.to_thread(path.is_dir) else git.parent
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        program, *settings, *arguments, cwd=folder, env=environment, stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(GIT_TIMEOUT_S):
            output, said = await process.communicate(stdin)
    except TimeoutError:
        raise WorkspaceError(f"git {arguments[0]} did not end within {GIT_TIMEOUT_S} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise WorkspaceError(f"git {arguments[0]} failed: {said.decode(errors='replace').strip()[-1000:]}")
    return output
