"""`type: session_completed`: 1.0 when the harness ended by itself, well, after at least one valid call; else 0.0."""

from typing import Literal

from polar_mitm.tasks.evaluators.base import Evaluation, EvaluatorFields, Finished


class SessionCompleted(EvaluatorFields):
    type: Literal["session_completed"]

    async def evaluate(self, finished: Finished) -> Evaluation:
        completed = finished.exit_code == 0 and finished.valid_calls > 0
        return Evaluation.of("session_completed", float(completed))
