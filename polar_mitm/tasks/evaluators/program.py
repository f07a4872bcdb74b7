"""Running an evaluator's own program: in a fresh sandbox of the harness's kind, on a copy of the workspace, without a
model.

Nothing the agent left running is there, and nothing the program does reaches the session's own files.
"""

import asyncio
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polar_mitm.harnesses.environment import SYSTEM_PATH
from polar_mitm.sandboxes import RunSpec, SandboxError
from polar_mitm.sandboxes.scratch import prefix
from polar_mitm.tasks.evaluators.base import Evaluation, Finished
from polar_mitm.tasks.left import NotAFile, opened

ANSWER = "answer.txt"
TASK = "task.json"

OUTPUT_LIMIT = 100_000
"""Characters of the program's output that are kept, from the end of each stream."""

# What a shell says when it cannot run a command (found but not executable; not found), and where its signals begin.
CANNOT_RUN = (126, 127)
SIGNAL_BASE = 128

# Codes of a death by signal. A program may exit with a higher one itself: perl's die is 255.
KILLED = range(SIGNAL_BASE + 1, SIGNAL_BASE + 32)


@dataclass(slots=True, frozen=True)
class Judged:
    """A program that ran to its end by itself."""

    code: int
    stdout: str
    output: str
    """What it printed, both streams."""


async def run(
    argv: Sequence[str],
    finished: Finished,
    *,
    timeout_s: float,
    files: dict[str, str] | None = None,
    read_only: Sequence[Path] = (),
) -> Judged | Evaluation:
    """Run `argv`, in which `{home}` stands for its home; a failed Evaluation when it judged nothing.

    `files` (name: text) and the answer lie in its home; `$POLAR_ANSWER`, `$POLAR_TASK` and `$POLAR_SESSION` tell of the
    session.
    `read_only` are host folders that it finds at the same path.
    """
    with tempfile.TemporaryDirectory(prefix=prefix(f"{finished.session_id}.evaluator")) as scratch:
        home = Path(scratch) / "home"
        home.mkdir()
        shutil.copyfile(finished.answer, home / ANSWER)
        for name, text in {TASK: json.dumps(dict(finished.task)), **(files or {})}.items():
            (home / name).write_text(text)
        workspace = Path(scratch) / "workspace"
        try:
            await asyncio.to_thread(_snapshot, finished.workspace, workspace)
        except (OSError, shutil.Error) as error:
            return Evaluation.failed(f"the workspace could not be copied for its evaluation: {error}")
        layout = finished.sandbox.layout(
            workspace=workspace, home=home, ca=None, proxy_port=0, base_port=0, workdir=finished.workdir
        )
        spec = RunSpec(
            argv=[word.replace("{home}", str(layout.home)) for word in argv],
            env={
                "PATH": ":".join(SYSTEM_PATH),
                "HOME": str(layout.home),
                "LANG": "C.UTF-8",
                "POLAR_ANSWER": str(layout.home / ANSWER),
                "POLAR_SESSION": finished.session_id,
                "POLAR_TASK": str(layout.home / TASK),
            },
            workspace=workspace,
            home=home,
            stdout=Path(scratch) / "output",
            stderr=Path(scratch) / "errors",
            timeout_s=timeout_s,
            marker=f"{finished.session_id}.evaluator",
            read_only=list(read_only),
            image=finished.image,
            workdir=finished.workdir,
        )
        try:
            ended = await finished.sandbox.run(spec)
        except SandboxError as error:
            return Evaluation.failed(f"the evaluator's sandbox failed: {error}")
        printed = [tail(path) for path in (spec.stdout, spec.stderr)]
    output = "".join(printed)
    if ended.timed_out or ended.code is None:
        return Evaluation.failed(f"the evaluator's command took more than {timeout_s:g} s", output)
    if ended.code in CANNOT_RUN:
        return Evaluation.failed(f"the evaluator's command cannot run (exit code {ended.code})", output)
    if ended.code in KILLED:
        return Evaluation.failed(f"the evaluator's command was killed by signal {ended.code - SIGNAL_BASE}", output)
    return Judged(ended.code, printed[0], output)


def _snapshot(source: Path, target: Path) -> None:
    """A copy with links as links. Pipes, sockets and devices are left out: reading one may never end."""
    if not source.is_dir():  # a harness may have removed the workspace itself
        target.mkdir()
        return

    def special(folder: str, names: list[str]) -> list[str]:
        modes = ((name, os.lstat(os.path.join(folder, name)).st_mode) for name in names)  # noqa: PTH118  (as copytree calls it)
        return [name for name, mode in modes if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))]

    shutil.copytree(source, target, symlinks=True, ignore=special)


def tail(path: Path) -> str:
    """The end of what a program printed into a file; empty where there is none, or something else in its place."""
    try:
        with opened(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4 * OUTPUT_LIMIT))
            return file.read(4 * OUTPUT_LIMIT).decode(errors="replace")[-OUTPUT_LIMIT:]
    except NotAFile:
        return ""
