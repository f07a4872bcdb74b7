"""What becomes of each call's sampled tokens, before any trace is built: trainable, or in which bin and why."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from polar_mitm.trajectory.relate import Link
from polar_mitm.trajectory.seen import Seen, repeated
from polar_mitm.trajectory.trace import Bin


@dataclass(slots=True, frozen=True)
class Fate:
    """`trained`: to be trained, but for spans that a grammar forced."""

    bin: Bin
    reason: str


REPLACED = Fate("context", "the engine saw another end of turn in their place")
"""Of sampled ends of turn that the template put others for."""
TRAINED = Fate("trained", "sampled in this context")


def fates(links: Sequence[Link], kinds: Collection[str]) -> list[Fate]:
    """A fate for each link. `kinds` are the kinds of calls that are trained."""
    return _Fates(links, kinds).all()


@dataclass(slots=True, frozen=True)
class _Among:
    """The valid answers to one prompt."""

    chosen: str | None
    """One that the harness went on from."""
    disputed: bool
    """It went on from one, and no sign tells from which."""
    arrived: list[str]
    """The last two that were delivered."""


class _Fates:
    def __init__(self, links: Sequence[Link], kinds: Collection[str]) -> None:
        self.links = links
        self.kinds = kinds
        self.groups: dict[int, _Among] = {}
        self.continued: dict[str, str] = {}
        """By call id, a call that goes on from its answer."""
        self.repeats = {
            repeated(link.call) for link in links if repeated(link.call) and link.call.delivery == "delivered"
        }
        """Calls whose answer reached the harness by a retry."""
        self.rivals: dict[str, str] = {}
        """Calls that cannot be told apart as the parent of the call that is named."""
        for link in links:
            if link.rivals:
                if link.relation == "ambiguous" and _same_prompt(link.rivals):
                    self.rivals.update({rival.call_id: link.call.call_id for rival in link.rivals})
            elif link.parent is not None and link.returned:
                # A side request, which may be a compaction, has the answer in its history as well.
                self.continued.setdefault(link.parent.call_id, link.call.call_id)

    def all(self) -> list[Fate]:
        return [self._fate(link) for link in self.links]

    def _fate(self, link: Link) -> Fate:
        call = link.call
        if call.twin:
            return Fate("quarantined", "another record has the same call id")
        if call.invalid is not None:
            return Fate("invalid", call.invalid)
        if call.kind not in self.kinds:
            return Fate("side_request", f"{call.kind}: {call.kind_reason}" if call.kind_reason else call.kind)
        if follower := self.rivals.get(call.call_id):
            why = f"{follower} continues this answer or another one to the same prompt: no sign tells which"
            return Fate("quarantined", why)
        if call.call_id in self.continued:
            return TRAINED
        return self._last(link)

    def _last(self, link: Link) -> Fate:
        """Of a call that nothing continues."""
        call = link.call
        among = self._among(link)
        if among.chosen is not None:
            return Fate("superseded", f"the harness went on from {among.chosen}, which answers the same prompt")
        if among.disputed:
            return Fate("superseded", "the harness went on from another answer to the same prompt")
        others = [name for name in among.arrived if name != call.call_id]
        if not self._arrived(call):
            if others:
                return Fate("superseded", f"{others[-1]} answers the same prompt, and was delivered")
            return _undelivered(call)
        if others:
            return Fate("quarantined", f"{others[-1]} answers the same prompt: no sign tells which counted")
        return TRAINED

    def _among(self, link: Link) -> "_Among":
        """What became of all answers to this call's prompt."""
        if id(link.siblings) not in self.groups:
            calls = [sibling.call for sibling in link.siblings if not sibling.call.twin and not sibling.call.invalid]
            self.groups[id(link.siblings)] = _Among(
                chosen=next((call.call_id for call in calls if call.call_id in self.continued), None),
                disputed=any(call.call_id in self.rivals for call in calls),
                arrived=[call.call_id for call in calls if self._arrived(call)][-2:],
            )
        return self.groups[id(link.siblings)]

    def _arrived(self, call: Seen) -> bool:
        return call.sent or (call.call_id in self.repeats and not call.broken)


def _undelivered(call: Seen) -> Fate:
    if call.finish_reason == "abort":
        return Fate("aborted", call.failure or "the engine gave up this request")
    if call.failure is not None:
        return Fate("undelivered", f"the harness was told an error instead: {call.failure}")
    if call.delivery == "aborted":
        return Fate("aborted", "the client left before the answer")
    return Fate("undelivered", "the answer did not arrive whole")


def _same_prompt(rivals: Sequence[Seen]) -> bool:
    """Answers to one prompt, of which the harness used one. Other rivals are turns of their own."""
    return all(rival.prompt is rivals[0].prompt or rival.spoken is rivals[0].spoken for rival in rivals)
