"""`type: swebench`: the tests of a SWE-bench row, graded by the package `swebench` from what they printed.

The reward is 1.0 for an instance that is resolved, and 0.0 for one that is not. A log in which no result can be read
is no answer, and so an error. A session that changed nothing has no tests to run: it is not resolved.
"""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from polar_mitm.sandboxes import SandboxError, images
from polar_mitm.tasks.evaluators.base import Evaluation, EvaluatorFields, Finished
from polar_mitm.tasks.evaluators.program import tail
from polar_mitm.tasks.swebench import package, verify
from polar_mitm.tasks.swebench.package import SwebenchFailed
from polar_mitm.tasks.swebench.patch import patch_of
from polar_mitm.tasks.swebench.place import WORKDIR
from polar_mitm.tasks.swebench.setting import Setting


class Swebench(EvaluatorFields):
    type: Literal["swebench"]
    timeout_s: Annotated[float, Field(gt=0)] = 1800
    """Of the tests, in seconds."""
    log: Annotated[str, StringConstraints(min_length=1)] | None = None
    """A saved log to grade in place of running the tests, relative to the scenario's folder; `{instance_id}` in it
    stands for the row's."""

    async def evaluate(self, finished: Finished) -> Evaluation:
        setting = finished.swebench
        if setting is None or finished.folder is None:
            return Evaluation.failed("there is no SWE-bench row to run the tests of: the scenario names none")
        folder = finished.folder.path / "swebench"
        try:
            folder.mkdir(exist_ok=True)
            graded = await self._graded(setting, finished, folder)
        except (SwebenchFailed, SandboxError, OSError) as error:
            return Evaluation.failed(f"there is no grade: {error}", tail(folder / verify.LOG))
        output = tail(folder / verify.LOG)
        if graded.resolved is None:
            return Evaluation.failed(f"there is no grade: {graded.why}", output)
        return Evaluation.of("resolved", float(graded.resolved), output)

    def lacks(self) -> list[str]:
        return package.problems()

    async def _graded(self, setting: Setting, finished: Finished, folder: Path) -> verify.Graded:
        """Leaves the patch, the log and the report in the folder."""
        patch = await asyncio.to_thread(_patch, finished)
        (folder / verify.PATCH).write_bytes(patch)
        log = folder / verify.LOG
        if self.log is not None:
            saved = finished.task_folder / self.log.replace("{instance_id}", setting.row.instance_id)
            await asyncio.to_thread(verify.keep_log, saved, log)
        elif patch:
            await verify.run_tests(setting, patch, log, finished.session_id, finished.sandbox, self.timeout_s)
        text = patch.decode(errors="replace") if patch or self.log is not None else None
        graded = await verify.grade(setting.row, text, log)
        (folder / verify.REPORT).write_text(json.dumps(graded.report, indent=2) + "\n", encoding="utf-8")
        return graded


def _patch(finished: Finished) -> bytes:
    """What the session changed, without what its repository ignores."""
    assert finished.folder is not None
    diff = finished.folder.workspace_diff.read_bytes()
    with tempfile.TemporaryDirectory(prefix="polar-patch-") as scratch:
        index = Path(scratch) / "index"
        of_image = finished.swebench.row.image if finished.swebench and finished.image else None
        has_one = of_image is not None and images.extract(of_image, WORKDIR / ".git" / "index", index)
        return patch_of(diff, finished.workspace, index if has_one else None)
