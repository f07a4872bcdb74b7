"""The token ledger of a run: the sum over its sessions."""

from collections import Counter
from dataclasses import dataclass, field

from polar_mitm.trajectory.trace import Bin, Cause, Relation, Trajectory


@dataclass(slots=True)
class Totals:
    sessions: int = 0
    traces: int = 0
    sampled: int = 0
    """Tokens that the engine sampled."""
    bins: Counter[Bin] = field(default_factory=Counter)
    """They sum to `sampled`."""
    reasons: Counter[tuple[Bin, str]] = field(default_factory=Counter)
    """Tokens by bin and reason, without those that are trained."""
    relations: Counter[Relation] = field(default_factory=Counter)
    causes: Counter[Cause] = field(default_factory=Counter)
    """Breaks."""
    masked: Counter[str] = field(default_factory=Counter)
    """Sessions of which nothing is trained, by reason."""

    def add(self, trajectory: Trajectory) -> None:
        ledger = trajectory.ledger
        self.sessions += 1
        self.traces += len(trajectory.traces)
        self.sampled += ledger.sampled
        self.bins.update(ledger.bins)
        for entry in ledger.entries:
            if entry.tokens and entry.bin != "trained":
                self.reasons[entry.bin, entry.reason] += entry.tokens
        self.relations.update(trajectory.relations)
        self.causes.update(found.cause for found in trajectory.breaks)
        if trajectory.masked is not None:
            self.masked[trajectory.masked] += 1
