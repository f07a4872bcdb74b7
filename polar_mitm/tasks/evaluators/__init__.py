"""Evaluators: each turns a finished session into rewards. One file an evaluator; adding one is a file and a line here.

A file holds the fields of the scenario's `evaluator` mapping and what is done with them.
"""

from typing import Annotated

from pydantic import Field

from polar_mitm.tasks.evaluators.answer import Answer
from polar_mitm.tasks.evaluators.base import Evaluation, EvaluatorFields, Finished
from polar_mitm.tasks.evaluators.command import Command
from polar_mitm.tasks.evaluators.harbor import Harbor
from polar_mitm.tasks.evaluators.python import Python
from polar_mitm.tasks.evaluators.session_completed import SessionCompleted
from polar_mitm.tasks.evaluators.swebench import Swebench

__all__ = [
    "EVALUATORS",
    "Answer",
    "Command",
    "Evaluation",
    "Evaluator",
    "Finished",
    "Harbor",
    "Python",
    "SessionCompleted",
    "Swebench",
]

type Evaluator = Annotated[
    Command | SessionCompleted | Python | Answer | Harbor | Swebench, Field(discriminator="type")
]

EVALUATORS: dict[str, type[EvaluatorFields]] = {
    "command": Command,
    "session_completed": SessionCompleted,
    "python": Python,
    "answer": Answer,
    "harbor": Harbor,
    "swebench": Swebench,
}
