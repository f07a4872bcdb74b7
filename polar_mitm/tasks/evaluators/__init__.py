"""Evaluators: each turns a finished session into rewards. One file an evaluator; adding one is a file and a case here.

The fields of each are in `polar_mitm.tasks.scenario`.
"""

from pathlib import Path

from polar_mitm.sandboxes import Sandbox
from polar_mitm.tasks.evaluators import command, session_completed
from polar_mitm.tasks.evaluators.base import Evaluation, Finished
from polar_mitm.tasks.scenario import CommandEvaluator, Evaluator, SessionCompletedEvaluator

__all__ = ["Evaluation", "Finished", "evaluate"]


async def evaluate(
    evaluator: Evaluator,
    *,
    sandbox: Sandbox,
    session_id: str,
    workspace: Path,
    answer: Path,
    exit_code: int | None,
    valid_calls: int,
) -> Evaluation:
    """Grade a finished session, given as the fields of `Finished`. An evaluation that fails is returned, not raised."""
    finished = Finished(session_id, sandbox, workspace, answer, exit_code, valid_calls)
    match evaluator:
        case CommandEvaluator(run=run, timeout_s=timeout_s):
            return await command.evaluate(run, timeout_s, finished)
        case SessionCompletedEvaluator():
            return session_completed.evaluate(finished)
