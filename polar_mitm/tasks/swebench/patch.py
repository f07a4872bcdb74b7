"""The patch that a session comes to: the workspace's diff without the files that the repository's own rules ignore.

It is what `git add --all` would have taken up, and no program of the agent's is asked: git reads the files of rules as
they lie in the workspace, and the list of tracked files as the image had it.
"""

import io
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from polar_mitm.tasks.swebench.package import SwebenchFailed

_GIT_S: Final = 120.0
_HEAD: Final = b"diff --git "
_ESCAPE: Final = re.compile(rb'\\([0-7]{3}|[abfnrtv"\\])')
_ESCAPED: Final = dict(zip(b'abfnrtv"\\', b'\a\b\f\n\r\t\v"\\', strict=True))


def patch_of(diff: bytes, workspace: Path, index: Path | None) -> bytes:
    """Of a diff as `Workspace.diff` gives it. `index` is git's index of the image's repository, where it has one.

    Blocks. Raises SwebenchFailed when git cannot say what is ignored.
    """
    parts = {path_of(part): part for part in parts_of(diff)}
    ignored = _ignored(list(parts), workspace) if parts else set()
    tracked = _tracked(index) if ignored and index else set()
    return b"".join(part for path, part in parts.items() if path not in ignored or path in tracked)


def parts_of(diff: bytes) -> Iterator[bytes]:
    """The part of each file. No line of a file's content begins as the head of a part does."""
    part: list[bytes] = []
    for line in io.BytesIO(diff):
        if line.startswith(_HEAD) and part:
            yield b"".join(part)
            part = []
        part.append(line)
    if part:
        yield b"".join(part)


def path_of(part: bytes) -> bytes:
    """The file that a part is about. Its head names it twice, since nothing is taken for renamed."""
    twice = part.partition(b"\n")[0].removeprefix(_HEAD)
    once = twice[: (len(twice) - 1) // 2]
    if once.startswith(b'"'):
        once = _ESCAPE.sub(lambda match: _unescaped(match[1]), once[1:-1])
    return once.removeprefix(b"a/")


def _unescaped(code: bytes) -> bytes:
    return bytes([int(code, 8)]) if len(code) == 3 else bytes([_ESCAPED[code[0]]])


def _ignored(paths: list[bytes], workspace: Path) -> set[bytes]:
    """Those that a rule names. What lay in a folder that is a link now is gone, and no rule is asked about it."""
    asked = [path for path in paths if not any((workspace / os.fsdecode(p)).is_symlink() for p in _folders(path))]
    # By "./", so that no name that begins with a colon is read as more than a name.
    found = _git(["check-ignore", "--no-index", "-z", "--stdin"], workspace, [b"./" + path for path in asked])
    return {path.removeprefix(b"./") for path in found}


def _folders(path: bytes) -> Iterator[bytes]:
    parts = path.split(b"/")
    yield from (b"/".join(parts[:end]) for end in range(1, len(parts)))


def _tracked(index: Path) -> set[bytes]:
    return _git(["ls-files", "-z"], index.parent, [], index)


def _git(arguments: list[str], workspace: Path, paths: list[bytes], index: Path | None = None) -> set[bytes]:
    """The paths that git prints. It reads no configuration, of the repository as of the machine."""
    git = shutil.which("git")
    if git is None:
        raise SwebenchFailed("git is not installed, and it is asked what the repository ignores")
    with tempfile.TemporaryDirectory(prefix="polar-patch-") as scratch:
        environment = {
            "GIT_DIR": scratch,
            "GIT_WORK_TREE": str(workspace),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "LC_ALL": "C",
            **({"GIT_INDEX_FILE": str(index)} if index else {}),
        }
        try:
            for command in (["init", "--quiet", "--template="], arguments):
                done = subprocess.run(
                    [git, *command],
                    env=environment,
                    cwd=workspace,
                    input=b"".join(path + b"\0" for path in paths),
                    capture_output=True,
                    timeout=_GIT_S,
                    check=False,
                )
        except (OSError, subprocess.SubprocessError) as error:
            raise SwebenchFailed(f"git cannot say what the repository ignores: {error}") from error
    if done.returncode > 1:  # 1: no rule names any
        said = done.stderr.decode(errors="replace").strip()[-500:]
        raise SwebenchFailed(f"git cannot say what the repository ignores: {said}")
    return set(done.stdout.split(b"\0")) - {b""}
