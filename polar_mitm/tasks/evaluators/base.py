"""What an evaluator gets and what it gives. It grades an outcome; it never changes the session."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from statistics import fmean
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from polar_mitm.capture.folder import RewardFrom, SessionFolder
from polar_mitm.sandboxes import Sandbox
from polar_mitm.tasks.harbor.place import HarborPlace
from polar_mitm.tasks.swebench.setting import Setting


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
    harbor: HarborPlace | None = None
    """Of a Harbor task: where it was worked on."""
    swebench: Setting | None = None
    """Of a SWE-bench row: the row, and how it is run."""
    folder: SessionFolder | None = None
    """The session's, for what an evaluator keeps beside its rewards."""


@dataclass(slots=True)
class Evaluation:
    """A reward, or why there is none: `reward` is None exactly when `error` says so."""

    reward: float | None
    rewards: dict[str, float] = field(default_factory=dict)
    """Every reward by name."""
    error: str | None = None
    output: str = ""
    """What the evaluator printed."""
    reward_from: RewardFrom | None = None
    """What `reward` is."""

    @classmethod
    def named(cls, rewards: Mapping[str, float], output: str = "") -> Self:
        """Of one reward or more. A reward that is not finite is none."""
        if odd := next((name for name, reward in rewards.items() if not math.isfinite(reward)), None):
            return cls.failed(f"the reward {odd} is not finite: {rewards[odd]}", output)
        which: RewardFrom = "reward" if "reward" in rewards else "only" if len(rewards) == 1 else "mean"
        reward = rewards["reward"] if which == "reward" else fmean(rewards.values())
        return cls(reward, dict(rewards), output=output, reward_from=which)

    @classmethod
    def of(cls, name: str, reward: float, output: str = "") -> Self:
        return cls.named({name: reward}, output)

    @classmethod
    def failed(cls, error: str, output: str = "") -> Self:
        return cls(None, error=error, output=output)


class EvaluatorFields(BaseModel):
    """The `evaluator` mapping of a scenario; the subclass of each kind has its fields and does its work."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    type: str

    async def evaluate(self, finished: Finished) -> Evaluation:
        """Grade. What goes wrong on the way is a failed evaluation, not an exception."""
        raise NotImplementedError

    def lacks(self) -> list[str]:
        """What of this machine's it needs and does not find, each with the mend; asked before a run."""
        return []

    def problems(self, task_folder: Path) -> Sequence[tuple[str, str]]:
        """Fields that name what is not there, each with what was expected; asked when the scenario is loaded."""
        return ()

    def problem_with(self, task: Mapping[str, Any]) -> tuple[str, str] | None:
        """A field of this line of a task set that it could not grade by, with what was expected; asked when it is
        read."""
        return None
