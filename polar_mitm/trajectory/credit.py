"""Rewards onto traces."""

from collections.abc import Sequence

from polar_mitm.trajectory.seen import Session


def share(trained: Sequence[int], *, masked: bool = False) -> list[float]:
    """The weight of each trace of a session, by its trained tokens.

    They sum to 1, so a session counts once however many traces it has, and each of its tokens counts the same. All are
    0 when nothing is trained.
    """
    total = 0 if masked else sum(trained)
    return [tokens / total if total else 0.0 for tokens in trained]


def step_rewards(session: Session) -> dict[str, float]:
    return {}
