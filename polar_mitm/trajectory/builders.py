"""From a session's folder to its trajectory.

    trajectory = build(Path("runs/ses_..."))

Nothing is guessed and nothing dropped: a call that cannot be put where it belongs stands in a trace of its own, and
each token it sampled in the ledger.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from polar_mitm.trajectory.chains import Builder, Chain, Chains, Kin, Member, Rewritten
from polar_mitm.trajectory.credit import share
from polar_mitm.trajectory.ends import EndTokens
from polar_mitm.trajectory.explain import Decode, explain
from polar_mitm.trajectory.fate import REPLACED, Fate, fates
from polar_mitm.trajectory.ledger import balance, entries
from polar_mitm.trajectory.masking import group_of
from polar_mitm.trajectory.masking import masked as own_mask
from polar_mitm.trajectory.messages import part_of
from polar_mitm.trajectory.relate import Link, relate
from polar_mitm.trajectory.seen import Session, TrajectoryError, read_session
from polar_mitm.trajectory.trace import Break, Lineage, Trace, Trajectory, Turn

KINDS = frozenset({"turn", "subagent", "retry"})
"""Kinds of calls that are trained by default: those that do the task."""

type Unrewarded = Literal["mask", "keep"]


@dataclass(slots=True, frozen=True, kw_only=True)
class Options:
    """How trajectories are built.

    `rewritten` says what becomes of a prompt in which the answer came back re-rendered: `fork` begins a new trace
    (exact), `substitute` lets the sampled ids stand in for the re-rendered ones as long as no more than `drift_limit`
    (0 to 1) of the answer's tokens differ. `unrewarded`: a session without a reward is masked, or kept as it is.
    `end_tokens` are ends of turn that the caller knows; those that were sampled are learned. `decode` gives the text
    of ids, for breaks.
    """

    builder: Builder = "prefix_merging"
    rewritten: Rewritten = "fork"
    drift_limit: float = 0.5
    kinds: Collection[str] = KINDS
    unrewarded: Unrewarded = "mask"
    end_tokens: Collection[int] = ()
    decode: Decode | None = None


def build(folder: Path, options: Options | None = None) -> Trajectory:
    """The trajectory of one session's folder, its ledger balanced.

    Raises OSError, SessionFileError and CallFileError when the folder cannot be read, TrajectoryError when its calls
    are not one session's, and LedgerError when the ledger does not balance.
    """
    return Building(read_session(folder), options or Options()).trajectory()


class Building:
    """A session on its way to a trajectory. `traces` makes one at a time, for sessions whose traces are large."""

    def __init__(self, session: Session, options: Options, *, masked: str | None = None) -> None:
        """`masked`: why nothing of it is to be trained, besides what speaks against it of itself."""
        self.session = session
        self.options = options
        keep = options.unrewarded == "keep"
        self.masked = own_mask(session.record, torn=session.torn, keep_unrewarded=keep) or masked
        self.ends = EndTokens(session.calls, options.end_tokens)
        self.links: list[Link] = relate(session, self.ends)
        self.fates: list[Fate] = fates(self.links, options.kinds)
        chains = Chains(options.builder, options.rewritten, options.drift_limit, self.ends)
        self.chains: list[Chain] = chains.build(self.links, self.fates)
        self.relations = chains.relations
        self.weights = share([0 if self.masked else _trained(chain) for chain in self.chains])
        self._check_rewards()

    def trajectory(self, advantage: float | None = None) -> Trajectory:
        record = self.session.record
        traces = list(self.traces(advantage))
        ledger = entries(self.session, self.fates, self.chains, masked=self.masked)
        balance(self.session, traces, ledger)
        return Trajectory(
            session_id=record.session_id,
            task_id=record.task_id,
            sample=record.sample,
            attempt=record.attempt,
            group_id=group_of(record),
            rollout_id=record.session_id,
            builder=self.options.builder,
            rewritten=self.options.rewritten,
            status=record.status,
            masked=self.masked,
            harness=record.harness,
            scenario=record.scenario,
            reward=record.reward,
            rewards=dict(record.rewards),
            traces=traces,
            relations=dict(Counter(self.relations)),
            breaks=[trace.broken_by for trace in traces if trace.broken_by is not None],
            ledger=ledger,
        )

    def traces(self, advantage: float | None = None) -> Iterator[Trace]:
        for chain, weight in zip(self.chains, self.weights, strict=True):
            yield self._trace(chain, weight, advantage)

    def _trace(self, chain: Chain, weight: float, advantage: float | None) -> Trace:
        record, first, last = self.session.record, chain.members[0], chain.members[-1]
        assert first.call.prompt is not None
        response_ids: list[int] = []
        loss_mask: list[int] = []
        logprobs: list[float] = []
        turns: list[Turn] = []
        for before, member in pairwise([None, *chain.members]):
            assert member is not None and member.call.prompt is not None
            if before is not None:
                context = member.call.prompt.read(member.start, member.call.prompt_len)
                response_ids += context
                loss_mask += [0] * len(context)
                logprobs += [0.0] * len(context)
            start = len(response_ids)
            mask = self._mask(member)
            response_ids += member.call.sampled[: member.kept].tolist()
            loss_mask += mask
            logprobs += _logprobs(member)
            turns.append(self._turn(member, start, start + member.kept, any(mask)))
        # Not validated: of a long session that would copy every message once a trace.
        return Trace.model_construct(
            trace_id=self._name(chain),
            session_id=record.session_id,
            lineage=Lineage(
                kind=chain.kin,
                within=chain.within,
                of_trace=self._name(chain.of_chain) if chain.of_chain else None,
                of_call=chain.of_call.call_id if chain.of_call else None,
            ),
            prompt_ids=first.call.prompt.read(0, first.call.prompt_len),
            response_ids=response_ids,
            loss_mask=loss_mask,
            logprobs=logprobs,
            turns=turns,
            broken_by=self._break(chain),
            exact=all(member.drift is None for member in chain.members),
            reward=self._reward(chain),
            rewards=dict(record.rewards),
            weight=weight,
            advantage=advantage if weight else None,
            messages=self.session.messages(last.call),
            tools=self.session.tools(last.call),
            reply=_reply(member=last),
            model=last.call.model,
        )

    def _mask(self, member: Member) -> list[int]:
        mask = [int(member.fate.bin == "trained" and self.masked is None)] * member.kept
        for start, end in member.call.forced:
            mask[start:end] = [0] * len(mask[start:end])
        return mask

    def _turn(self, member: Member, start: int, end: int, trained: bool) -> Turn:
        call, fate = member.call, member.fate
        if fate.bin == "trained" and self.masked is not None:
            fate = Fate("masked", self.masked)
        elif fate.bin == "trained" and not trained and call.sampled:
            fate = Fate("forced", "a grammar chose every token") if member.kept else REPLACED
        return Turn(
            call_id=call.call_id,
            start=start,
            end=end,
            relation=member.relation,
            kind=call.kind,
            started_at=call.started_at,
            finish_reason=call.finish_reason,
            policy_version=call.policy_version,
            weight_versions=call.weight_versions,
            logprobs_mode=call.logprobs_mode,
            sampling=call.sampling,
            tools=[str(part_of(made, "name")) for made in call.tool_calls],
            bin=fate.bin,
            reason="" if fate.bin == "trained" else fate.reason,
            drift=member.drift,
            reward=self.session.record.step_rewards.get(call.call_id),
        )

    def _reward(self, chain: Chain) -> float | None:
        """The session's, unless the evaluator gave this trace one of its own."""
        own = self.session.record.trace_rewards
        names = [member.call.call_id for member in chain.members if member.call.call_id in own]
        return own[names[-1]] if names else self.session.record.reward

    def _check_rewards(self) -> None:
        known = {call.call_id for call in self.session.calls}
        record = self.session.record
        for name in [*record.step_rewards, *record.trace_rewards]:
            if name not in known:
                what = f"it has a reward for call {name}, which is none of the session's"
                raise TrajectoryError(self.session.folder / "session.json", what, "name a call of calls.jsonl")

    def _break(self, chain: Chain) -> Break | None:
        return explain(self.session, chain.broken, self.options.decode) if chain.broken else None

    def _name(self, chain: Chain) -> str:
        return f"{self.session.record.session_id}/{chain.number}"


def _trained(chain: Chain) -> int:
    return sum(trainable(member) for member in chain.members)


def trainable(member: Member) -> int:
    """How many of its ids are trained, in a session that is."""
    if member.fate.bin != "trained":
        return 0
    forced = {place for start, end in member.call.forced for place in range(start, min(end, member.kept))}
    return member.kept - len(forced)


def _logprobs(member: Member) -> list[float]:
    """0.0 for each token of an invalid call: it may lack some, or have ones that are no numbers."""
    if member.call.invalid is not None:
        return [0.0] * member.kept
    return member.call.logprobs[: member.kept].tolist()


def _reply(member: Member) -> dict[str, object]:
    call = member.call
    reply: dict[str, object] = {"role": "assistant", "content": call.text}
    if call.reasoning:
        reply["reasoning"] = call.reasoning
    if call.tool_calls:
        reply["tool_calls"] = call.tool_calls
    return reply


__all__ = ["KINDS", "Builder", "Building", "Kin", "Options", "Rewritten", "build"]
