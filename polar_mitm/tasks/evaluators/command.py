"""`type: command`: a shell command judges the workspace. Exit code 0 is reward 1.0, any other 0.0.

It runs in a copy of the workspace, in a sandbox of the harness's kind, and is given no model. `$POLAR_ANSWER` is the
path of a file with the harness's final text, `$POLAR_TASK` that of one with the task's line of its task set as JSON,
`$POLAR_SESSION` the session's id. A command that cannot run (126, 127),
is killed or takes too long has judged nothing: that is an error, not a 0.0.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from polar_mitm.tasks.evaluators import program
from polar_mitm.tasks.evaluators.base import Evaluation, EvaluatorFields, Finished


class Command(EvaluatorFields):
    type: Literal["command"]
    run: Annotated[str, StringConstraints(min_length=1, pattern=r"\S")]
    """Text for `sh -c`."""
    timeout_s: Annotated[float, Field(gt=0)] = 60

    async def evaluate(self, finished: Finished) -> Evaluation:
        judged = await program.run(["/bin/sh", "-c", self.run], finished, timeout_s=self.timeout_s)
        if isinstance(judged, Evaluation):
            return judged
        return Evaluation.of("command", float(judged.code == 0), judged.output)
