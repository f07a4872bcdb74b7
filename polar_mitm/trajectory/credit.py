"""Rewards onto traces: what a session's reward is worth for each of its traces, against the others of its group.

Pure. A reward that is missing stays missing; nothing here makes a 0 of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

type Advantages = Literal["standard", "leave_one_out"]
"""`standard`: (reward - mean) / standard deviation, as in GRPO; the deviation is the sample's (n - 1). `leave_one_out`:
reward - mean of the others, as in RLOO."""


@dataclass(slots=True, frozen=True)
class Standing:
    """One session as its group sees it."""

    session_id: str
    sample: int | None
    attempt: int
    reward: float | None
    masked: str | None
    """Why it does not count; it keeps its place."""


@dataclass(slots=True, frozen=True)
class Group:
    """Samples of one task, compared with each other."""

    group_id: str
    members: tuple[Standing, ...]
    """Every session of the group, the masked ones too."""
    kind: Advantages
    advantages: dict[str, float | None]
    """By session id. None for a masked session, and where there is nothing to compare with."""

    @property
    def rewards(self) -> list[float]:
        """Of the members that count."""
        return [member.reward for member in self.members if member.masked is None and member.reward is not None]

    @property
    def mean(self) -> float | None:
        return fmean(self.rewards) if self.rewards else None

    @property
    def deviation(self) -> float | None:
        """The sample's standard deviation; None with fewer than two members that count."""
        return deviation(self.rewards)

    @property
    def signal(self) -> bool:
        """Whether any member's advantage differs from 0."""
        return any(self.advantages.values())


def group(group_id: str, members: Sequence[Standing], kind: Advantages = "standard") -> Group:
    """The group with an advantage for each member that counts.

    When all rewards are equal, every advantage is 0.0. When fewer than two members count there is nothing to compare
    with, and the advantage is None.
    """
    counting = [member for member in members if member.masked is None and member.reward is not None]
    found = advantages([member.reward for member in counting if member.reward is not None], kind)
    by_id = dict(zip((member.session_id for member in counting), found, strict=True))
    return Group(
        group_id, tuple(members), kind, {member.session_id: by_id.get(member.session_id) for member in members}
    )


def advantages(rewards: Sequence[float], kind: Advantages = "standard") -> list[float | None]:
    """One for each reward, see `group`."""
    if len(rewards) < 2:
        return [None] * len(rewards)
    mean, spread = fmean(rewards), deviation(rewards)
    if not spread:
        return [0.0] * len(rewards)
    if kind == "leave_one_out":
        # reward - mean of the others, written so that it needs no sum per member
        return [(reward - mean) * len(rewards) / (len(rewards) - 1) for reward in rewards]
    return [(reward - mean) / spread for reward in rewards]


def deviation(values: Sequence[float]) -> float | None:
    """The sample's standard deviation, exactly 0.0 for equal values; None for fewer than two."""
    if len(values) < 2:
        return None
    if min(values) == max(values):
        return 0.0
    mean = fmean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def share(trained: Sequence[int]) -> list[float]:
    """The weight of each trace of a session, by its trained tokens.

    They sum to 1, so a session counts once however many traces it has, and each of its tokens counts the same. All are
    0 when nothing is trained.
    """
    total = sum(trained)
    return [tokens / total if total else 0.0 for tokens in trained]
