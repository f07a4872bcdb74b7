"""The files of `tests/` and `solution/`: what `.harborignore` leaves of them, as gitignore reads its lines."""

import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pathspec import GitIgnoreSpec

from polar_mitm.tasks.errors import ScenarioError

IGNORE_FILE: Final = ".harborignore"

type Rules = Sequence[tuple[Path, GitIgnoreSpec]]
"""Of each folder from the top down, its own rules. Of those that match the last one counts."""


def copy(source: Path, target: Path) -> None:
    """Add the files of a folder of inputs to `target`. Links stay links; pipes, sockets and devices are left out.

    Raises OSError, and ScenarioError for rules that cannot be read.
    """
    target.mkdir(parents=True, exist_ok=True)
    _copy(source, target, ())
    target.chmod(stat.S_IMODE(source.stat().st_mode) | 0o555)


def check(folder: Path, task: Path, needed: str) -> None:
    """That no link leads out of the task, and that the file `needed` is there and not ignored. Raises ScenarioError."""
    for path in folder.rglob("*"):
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(task):  # resolve() raises on a loop
            raise ScenarioError(path, None, "", f"expected a link that stays within the task; got {path.readlink()}")
    if not (folder / needed).is_file():
        raise ScenarioError(folder / needed, None, "", "expected a file, but it is not there")
    if _ignored(folder / needed, _rules(folder, ())):
        raise ScenarioError(folder / needed, None, "", f"the task needs it, and {IGNORE_FILE} leaves it out")


def _copy(source: Path, target: Path, rules: Rules) -> None:
    rules = _rules(source, rules)
    for path in sorted(source.iterdir()):
        mode = path.lstat().st_mode
        if path.name == IGNORE_FILE or _ignored(path, rules):
            continue
        copied = target / path.name
        if stat.S_ISLNK(mode):
            copied.unlink(missing_ok=True)
            copied.symlink_to(path.readlink())
        elif stat.S_ISDIR(mode):
            copied.mkdir(exist_ok=True)
            _copy(path, copied, rules)
            shutil.copystat(path, copied)
        elif stat.S_ISREG(mode):
            if copied.is_symlink():
                copied.unlink()
            shutil.copy2(path, copied)


def _rules(folder: Path, above: Rules) -> Rules:
    file = folder / IGNORE_FILE
    if not file.exists():
        return above
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        return [*above, (folder, GitIgnoreSpec.from_lines(lines))]
    except (OSError, ValueError) as error:
        raise ScenarioError(file, None, "", f"expected rules as of gitignore: {error}") from error


def _ignored(path: Path, rules: Rules) -> bool:
    ignored = False
    for folder, spec in rules:
        name = f"{path.relative_to(folder).as_posix()}{'/' if path.is_dir() else ''}"
        found = spec.check_file(name).include
        if found is not None:
            ignored = found
    return ignored
