"""The token ledger: every token that the engine sampled for a session, in exactly one bin, with a reason.

`balance` looks at the finished traces anew and believes nothing of how they were made.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from polar_mitm.errors import Failed
from polar_mitm.trajectory.chains import Chain
from polar_mitm.trajectory.fate import REPLACED, Fate
from polar_mitm.trajectory.seen import Seen, Session, repeated
from polar_mitm.trajectory.trace import Bin, Entry, Ledger, Trace


class LedgerError(Failed):
    """A session whose sampled tokens are not all accounted for, each once. Training on it would be wrong."""

    def __init__(self, session_id: str, what: str, mend: str) -> None:
        super().__init__(f"the token ledger of session {session_id} does not balance: {what} ({mend})")
        self.session_id = session_id
        self.what = what


def entries(session: Session, fates: Sequence[Fate], chains: Iterable[Chain], *, masked: str | None) -> Ledger:
    """The ledger of a session. A call without tokens has an entry of 0, so that every call stands in it."""
    kept = {id(member.call): member.kept for chain in chains for member in chain.members}
    found: list[Entry] = []
    for call, fate in zip(session.calls, fates, strict=True):
        found += _entries(call, fate, kept.get(id(call)), masked)
    bins: Counter[Bin] = Counter()
    for entry in found:
        bins[entry.bin] += entry.tokens
    return Ledger(
        sampled=sum(len(call.sampled) for call in session.calls),
        bins={name: count for name, count in bins.items() if count},
        entries=found,
    )


def _entries(call: Seen, fate: Fate, kept: int | None, masked: str | None) -> list[Entry]:
    total = len(call.sampled)
    if fate.bin != "trained" or kept is None or not total:
        original = repeated(call)
        reason = f"answered from {original}: nothing was sampled" if original else fate.reason
        return [Entry(call_id=call.call_id, bin=fate.bin, tokens=total, reason=reason)]
    found: list[Entry] = []

    def add(name: Bin, tokens: int, reason: str) -> None:
        if tokens:
            found.append(Entry(call_id=call.call_id, bin=name, tokens=tokens, reason=reason))

    forced = {place for start, end in call.forced for place in range(start, end)}
    inside = sum(place < kept for place in forced)
    if masked is None:
        add("trained", kept - inside, fate.reason)
    else:
        add("masked", kept - inside, masked)
    add("forced", len(forced), "a grammar chose these tokens")
    add(REPLACED.bin, total - kept - (len(forced) - inside), REPLACED.reason)
    return found


def balance(session: Session, traces: Sequence[Trace], ledger: Ledger) -> None:
    """Raises LedgerError unless every sampled token is in one bin and every trained one is trained once, as sampled."""
    session_id = session.record.session_id

    def check(holds: bool, what: str) -> None:
        if not holds:
            raise LedgerError(session_id, what, "leave the session out, and report it: this is a defect of polar")

    sampled = {call.call_id: 0 for call in session.calls}
    for call in session.calls:
        sampled[call.call_id] += len(call.sampled)
    total = sum(sampled.values())
    check(ledger.sampled == total, f"it says {ledger.sampled} sampled tokens, and the calls have {total}")
    check(sum(ledger.bins.values()) == total, f"its bins sum to {sum(ledger.bins.values())} of {total} sampled tokens")
    counted: Counter[str] = Counter()
    trained: Counter[str] = Counter()
    for entry in ledger.entries:
        counted[entry.call_id] += entry.tokens
        trained[entry.call_id] += entry.tokens if entry.bin == "trained" else 0
    for name, tokens in sampled.items():
        check(counted[name] == tokens, f"call {name} sampled {tokens} tokens, and its entries hold {counted[name]}")
    _check_traces({call.call_id: call for call in session.calls}, traces, trained, check)
    expected = session.record.response_tokens
    if total < expected:
        what = f"session.json counts {expected} sampled tokens, and the calls have {total}"
        raise LedgerError(session_id, what, "calls are missing from its file: put the original back")


def _check_traces(
    calls: dict[str, Seen], traces: Sequence[Trace], trained: Counter[str], check: Callable[[bool, str], None]
) -> None:
    seen: set[str] = set()
    for trace in traces:
        lengths = {len(trace.response_ids), len(trace.loss_mask), len(trace.logprobs)}
        check(len(lengths) == 1, f"the arrays of trace {trace.trace_id} have lengths {sorted(lengths)}")
        at = 0
        for turn in trace.turns:
            name, span = turn.call_id, slice(turn.start, turn.end)
            check(name not in seen, f"call {name} stands in two places")
            seen.add(name)
            call = calls[name]
            check(not any(trace.loss_mask[at : turn.start]), f"trace {trace.trace_id} trains what was not sampled")
            at = turn.end
            length = turn.end - turn.start
            check(trace.response_ids[span] == call.sampled[:length].tolist(), f"the ids of call {name} are not its own")
            ones = sum(trace.loss_mask[span])
            check(ones == trained[name], f"call {name} has {trained[name]} trained tokens, its trace trains {ones}")
            if ones:
                same = trace.logprobs[span] == call.logprobs[:length].tolist()
                check(same, f"the logprobs of call {name} are not its own")
        check(not any(trace.loss_mask[at:]), f"trace {trace.trace_id} trains what was not sampled")
    for name, tokens in trained.items():
        check(not tokens or name in seen, f"call {name} has {tokens} trained tokens and stands in no trace")
