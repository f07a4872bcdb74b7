"""What an evaluator gets and what it gives. It grades an outcome; it never changes the session."""

from dataclasses import dataclass, field
from pathlib import Path

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
    def of(cls, name: str, reward: float, output: str = "") -> "Evaluation":
        return cls(reward, {name: reward}, None, output)

    @classmethod
    def failed(cls, error: str, output: str = "") -> "Evaluation":
        return cls(None, {}, error, output)
