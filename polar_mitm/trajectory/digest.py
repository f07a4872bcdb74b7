"""What is kept of a trajectory to talk about it: counts and breaks, no tokens. The sum of many is in `totals`."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from polar_mitm.trajectory.trace import Bin, Break, Cause, Lineage, Relation, Trace, Trajectory


@dataclass(slots=True, frozen=True)
class TraceDigest:
    trace_id: str
    lineage: Lineage
    turns: int
    prompt: int
    """Tokens before the first sampled one."""
    response: int
    """Tokens from there on, context between the turns included."""
    trained: int
    weight: float
    exact: bool
    cause: Cause | None
    """Why it is a trace of its own, where it is a fork."""

    @property
    def number(self) -> str:
        return number(self.trace_id)


@dataclass(slots=True, frozen=True)
class Digest:
    session_id: str
    status: str
    masked: str | None
    reward: float | None
    builder: str
    rewritten: str
    harness: str | None
    scenario: str | None
    sample: int | None
    calls: int
    traces: list[TraceDigest]
    relations: dict[Relation, int]
    sampled: int
    """Tokens; the bins sum to it."""
    bins: dict[Bin, int]
    reasons: list[tuple[Bin, str, int]]
    """Why tokens ended in their bin, how many for this reason; the most first."""
    breaks: list[Break]

    @property
    def whose(self) -> str:
        return whose(self.scenario, self.sample, self.harness)

    @classmethod
    def of(cls, trajectory: Trajectory) -> "Digest":
        reasons: Counter[tuple[Bin, str]] = Counter()
        for entry in trajectory.ledger.entries:
            reasons[entry.bin, entry.reason] += entry.tokens
        return cls(
            session_id=trajectory.session_id,
            status=trajectory.status,
            masked=trajectory.masked,
            reward=trajectory.reward,
            builder=trajectory.builder,
            rewritten=trajectory.rewritten,
            harness=trajectory.harness,
            scenario=trajectory.scenario,
            sample=trajectory.sample,
            calls=len({entry.call_id for entry in trajectory.ledger.entries}),
            traces=[_digest(trace) for trace in trajectory.traces],
            relations=dict(trajectory.relations),
            sampled=trajectory.ledger.sampled,
            bins=dict(trajectory.ledger.bins),
            reasons=[(name, reason, tokens) for (name, reason), tokens in reasons.most_common() if tokens],
            breaks=list(trajectory.breaks),
        )


def whose(scenario: str | None, sample: int | None, harness: str | None) -> str:
    """`hello, sample 3, pi`: what tells a session from the others of its run, as far as it is known."""
    return ", ".join(filter(None, [scenario, None if sample is None else f"sample {sample}", harness]))


def number(trace_id: str) -> str:
    """What tells a trace from the others of its session."""
    return trace_id.rpartition("/")[2]


def lineage(of: Lineage) -> str:
    """`main`, `fork of 0`, `subagent of 0`."""
    return of.kind if of.of_trace is None else f"{of.kind} of {number(of.of_trace)}"


def counted(counts: Iterable[tuple[str, int]]) -> str:
    """`extends 4, root 1`, the most first."""
    ordered = sorted(counts, key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count:,}" for name, count in ordered if count) or "none"


def _digest(trace: Trace) -> TraceDigest:
    return TraceDigest(
        trace_id=trace.trace_id,
        lineage=trace.lineage,
        turns=len(trace.turns),
        prompt=len(trace.prompt_ids),
        response=len(trace.response_ids),
        trained=trace.trained,
        weight=trace.weight,
        exact=trace.exact,
        cause=trace.broken_by.cause if trace.broken_by else None,
    )
