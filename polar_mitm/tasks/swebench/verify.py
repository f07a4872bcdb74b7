"""The tests of a row: the patch is put into a fresh container of the row's image, and its evaluation script is run.

What that prints is the log, which swebench grades. Nothing of the agent's is in the container but its patch.
"""

import asyncio
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from polar_mitm.sandboxes import RunSpec, Sandbox, images
from polar_mitm.sandboxes.base import Own
from polar_mitm.sandboxes.scratch import prefix
from polar_mitm.tasks.left import NotAFile, opened
from polar_mitm.tasks.swebench import package
from polar_mitm.tasks.swebench.package import SwebenchFailed
from polar_mitm.tasks.swebench.rows import Row
from polar_mitm.tasks.swebench.setting import Setting

LOG: Final = "test_output.txt"
REPORT: Final = "report.json"
PATCH: Final = "patch.diff"

LARGEST: Final = 512 * 1024 * 1024
"""Bytes of a log."""

_PLACE: Final = PurePosixPath("/polar/swebench")

# As swebench does it: one way of applying a patch after the other, each from an untouched tree.
_TRY: Final = """
if [ -z "$applied" ]; then
  [ -z "$tried" ] || {{ git checkout -- . ; git clean -fd; }} >&2
  tried=yes
  {command} {patch} >&2 && applied=yes
fi
"""
_RUN: Final = """#!/bin/bash
cd {workdir} || exit 125
applied= tried=
{tries}
if [ -z "$applied" ] && git apply --check --reverse {patch} >&2; then applied=yes; fi
if [ -z "$applied" ]; then echo {not_applied}; exit 0; fi
exec /bin/bash {place}/eval.sh 2>&1
"""


@dataclass(slots=True, frozen=True)
class Graded:
    """`resolved` is None where the log says nothing, and `why` says why."""

    resolved: bool | None
    why: str
    report: dict[str, Any]


async def run_tests(
    setting: Setting, patch: bytes, log: Path, session_id: str, sandbox: Sandbox, timeout_s: float
) -> None:
    """Run them to their end; the log is there then. Raises SwebenchFailed, SandboxError and OSError."""
    row = setting.row
    (told,) = await package.ask({"row": row.data()})
    if not told["has_parser"]:
        raise SwebenchFailed(f"swebench {package.VERSION} has no log parser {row.log_parser!r}")
    with tempfile.TemporaryDirectory(prefix=prefix(f"{session_id}.evaluator")) as scratch:
        files, home = Path(scratch) / "files", Path(scratch) / "home"
        for made in (files, home):
            made.mkdir()
        (files / PATCH).write_bytes(patch)
        (files / "eval.sh").write_text(told["eval_script"], encoding="utf-8", newline="")
        (files / "run.sh").write_text(_script(told))
        spec = RunSpec(
            argv=["/bin/bash", str(_PLACE / "run.sh")],
            env={"HOME": str(await asyncio.to_thread(images.home_of, row.image, told["user"]))},
            workspace=files,
            home=home,
            stdout=Path(scratch) / "stdout",
            stderr=Path(scratch) / "stderr",
            timeout_s=timeout_s,
            marker=f"{session_id}.evaluator",
            workdir=PurePosixPath(told["workdir"]),
            image=row.image,
            own=Own(told["user"], {_PLACE: files}, network=setting.tests_network),
        )
        ended = await sandbox.run(spec)
        await asyncio.to_thread(keep_log, spec.stdout, log)
    if ended.timed_out:
        raise SwebenchFailed(f"the tests took more than {timeout_s:g} s")
    if ended.code is None:
        raise SwebenchFailed(f"the tests were ended: {ended.over_limit or 'they were killed'}")


def keep_log(source: Path, log: Path) -> None:
    """Copy a log, whatever bytes it holds, as text. Raises SwebenchFailed and OSError."""
    try:
        with opened(source) as file:
            content = file.read(LARGEST + 1)
    except NotAFile as error:
        raise SwebenchFailed(f"the log {source} {error}") from error
    if len(content) > LARGEST:
        raise SwebenchFailed(f"the tests printed more than {LARGEST:,} bytes")
    log.write_text(content.decode(errors="replace"), encoding="utf-8", newline="")


async def grade(row: Row, patch: str | None, log: Path) -> Graded:
    """What swebench makes of a log. Where the patch is None there is none, and no log is looked at.

    Raises SwebenchFailed.
    """
    (report,) = await package.ask(question(row, patch, log))
    return graded(row.instance_id, report)


def question(row: Row, patch: str | None, log: Path) -> dict[str, Any]:
    return {"row": row.data(), "patch": patch, "log": str(log)}


def graded(instance_id: str, report: dict[str, Any]) -> Graded:
    """What the report of a log comes to. One in which swebench read no result is no grade."""
    found = report[instance_id]
    if found["patch_is_None"] or found["patch_successfully_applied"]:
        return Graded(found["resolved"], "", report)
    fault = f" ({found['infra_failure_reason']})" if "infra_failure_reason" in found else ""
    return Graded(None, f"swebench can read no result in the log of the tests{fault}", report)


def _script(told: dict[str, Any]) -> str:
    patch = _PLACE / PATCH
    return _RUN.format(
        workdir=shlex.quote(told["workdir"]),
        tries="".join(_TRY.format(command=command, patch=patch) for command in told["apply"]),
        patch=patch,
        not_applied=shlex.quote(told["not_applied"]),
        place=_PLACE,
    )
