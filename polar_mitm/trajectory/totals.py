"""The token ledger of a run: the sum over its sessions."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from polar_mitm.trajectory.cautions import cautions
from polar_mitm.trajectory.trace import Bin, Cause, Relation, Trajectory


@dataclass(slots=True)
class Totals:
    sessions: int = 0
    calls: int = 0
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
    tools: Counter[str] = field(default_factory=Counter)
    """Tokens sampled by turns that called this tool."""
    trained_tools: Counter[str] = field(default_factory=Counter)
    """How many of those are trained. A tool with few is one whose calls the harness gives back changed, or forces."""
    cautions: Counter[str] = field(default_factory=Counter)
    """Trained turns whose log-probabilities are not the sampler's, by reason."""

    def add(self, trajectory: Trajectory) -> None:
        ledger = trajectory.ledger
        self.sessions += 1
        self.calls += sum(trajectory.relations.values())
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
        for trace in trajectory.traces:
            for turn in trace.turns:
                trained = sum(trace.loss_mask[turn.start : turn.end])
                for tool in set(turn.tools):
                    self.tools[tool] += turn.end - turn.start
                    self.trained_tools[tool] += trained
                if trained:
                    self.cautions.update(cautions(turn))

    def as_json(self) -> dict[str, Any]:
        """The same, as JSON holds it."""
        return {
            "sessions": self.sessions,
            "calls": self.calls,
            "traces": self.traces,
            "sampled": self.sampled,
            "bins": dict(self.bins),
            "relations": dict(self.relations),
            "causes": dict(self.causes),
            "masked": dict(self.masked),
            "tools": {
                name: {"sampled": count, "trained": self.trained_tools[name]} for name, count in self.tools.items()
            },
            "cautions": dict(self.cautions),
        }
