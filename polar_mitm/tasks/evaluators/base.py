"""What an evaluator gets and what it gives. It grades an outcome; it never changes the session."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from polar_mitm.sandboxes import Sandbox


@dataclass(slots=True, frozen=True)
class Finished:
    """A session whose harness has ended."""

    session_id: str
    sandbox: Sandbox
    """The kind of sandbox the harness ran in; an evaluator's own program runs in one of the same kind."""
    workspace: Path
    answer: Path
    """File with the harness's final text."""
    exit_code: int | None
    """The harness's; None when it was killed."""
    valid_calls: int
    task: Mapping[str, Any]
    """The task's line of its task set; empty where there is none."""
    image: str | None
    """What the harness's container left, where it ran in one."""
    workdir: PurePosixPath | None
    """Where the task wants its workspace; None is the sandbox's own place."""
    task_folder: Path
    """What the paths in an evaluator's fields are relative to: the scenario's folder."""


@dataclass(slots=True)
class Evaluation:
    """A reward, or why there is none: `reward` is None exactly when `error` says so."""

    reward: float | None
    rewards: dict[str, float] = field(default_factory=dict)
    """Every reward by name; `reward` is among them."""
    error: str | None = None
    output: str = ""
    """What the evaluator printed."""

    @classmethod
    def of(cls, name: str, reward: float, output: str = "") -> Self:
        return cls(reward, {name: reward}, None, output)

    @classmethod
    def failed(cls, error: str, output: str = "") -> Self:
        return cls(None, {}, error, output)


class EvaluatorFields(BaseModel):
    """The `evaluator` mapping of a scenario; the subclass of each kind has its fields and does its work."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    type: str

    async def evaluate(self, finished: Finished) -> Evaluation:
        """Grade. What goes wrong on the way is a failed evaluation, not an exception."""
        raise NotImplementedError

    def problems(self, task_folder: Path) -> Sequence[tuple[str, str]]:
        """Fields that name what is not there, each with what was expected; asked when the scenario is loaded."""
        return ()
