"""`type: command`: a shell command judges the workspace. Exit code 0 is reward 1.0, any other 0.0.

It runs in the workspace, in a sandbox of the harness's kind, and is given no model. `$POLAR_ANSWER` is the path of a
file with the harness's final text, `$POLAR_SESSION` the session's id. A command that cannot run (126, 127), is killed
or takes too long has judged nothing: that is an error, not a 0.0.
"""

import shutil
import tempfile
from pathlib import Path

from polar_mitm.harnesses.environment import SYSTEM_PATH
from polar_mitm.sandboxes import RunSpec, SandboxError
from polar_mitm.sandboxes.scratch import prefix
from polar_mitm.tasks.evaluators.base import Evaluation, Finished

ANSWER = "answer.txt"

OUTPUT_LIMIT = 100_000
"""Characters of the command's output that are kept, from its end."""

# What a shell says when it cannot run a command (found but not executable; not found), and where its signals begin.
CANNOT_RUN = (126, 127)
SIGNAL_BASE = 128

# Codes of a death by signal. A program may exit with a higher one itself: perl's die is 255.
KILLED = range(SIGNAL_BASE + 1, SIGNAL_BASE + 32)


async def evaluate(run: str, timeout_s: float, finished: Finished) -> Evaluation:
    """Judge by `sh -c run`."""
    with tempfile.TemporaryDirectory(prefix=prefix(f"{finished.session_id}.evaluator")) as scratch:
        home = Path(scratch) / "home"
        home.mkdir()
        shutil.copyfile(finished.answer, home / ANSWER)
        layout = finished.sandbox.layout(workspace=finished.workspace, home=home, ca=None, proxy_port=0, base_port=0)
        spec = RunSpec(
            argv=["/bin/sh", "-c", run],
            env={
                "PATH": ":".join(SYSTEM_PATH),
                "HOME": str(layout.home),
                "LANG": "C.UTF-8",
                "POLAR_ANSWER": str(layout.home / ANSWER),
                "POLAR_SESSION": finished.session_id,
            },
            workspace=finished.workspace,
            home=home,
            stdout=Path(scratch) / "output",
            stderr=Path(scratch) / "errors",
            timeout_s=timeout_s,
            marker=f"{finished.session_id}.evaluator",
        )
        try:
            ended = await finished.sandbox.run(spec)
        except SandboxError as error:
            return Evaluation.failed(f"the evaluator's sandbox failed: {error}")
        output = "".join(path.read_text(errors="replace")[-OUTPUT_LIMIT:] for path in (spec.stdout, spec.stderr))
    if ended.timed_out or ended.code is None:
        return Evaluation.failed(f"the evaluator's command took more than {timeout_s:g} s", output)
    if ended.code in CANNOT_RUN:
        return Evaluation.failed(f"the evaluator's command cannot run (exit code {ended.code})", output)
    if ended.code in KILLED:
        return Evaluation.failed(f"the evaluator's command was killed by signal {ended.code - SIGNAL_BASE}", output)
    return Evaluation.of("command", float(ended.code == 0), output)
