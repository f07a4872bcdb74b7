"""Chains: which calls of a session stand in one token sequence, in what order, and where a new one begins."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from polar_mitm.trajectory.ends import EndTokens
from polar_mitm.trajectory.fate import Fate
from polar_mitm.trajectory.relate import Link
from polar_mitm.trajectory.seen import Seen, side
from polar_mitm.trajectory.substitute import substitution
from polar_mitm.trajectory.trace import Drift, Relation, Within


def leads(member: "Member") -> bool:
    """Whether the conversation goes on from it; a side request and an answer that was lost are dead ends."""
    return member.fate.bin in ("trained", "invalid") and not side(member.call)


CONTINUING: Final = ("extends", "template_tail", "rewritten")
"""Relations of a prompt that begins with all of its parent's."""

type Builder = Literal["per_request", "prefix_merging"]
type Rewritten = Literal["fork", "substitute"]
type Kin = Literal["main", "subagent", "compaction", "rewind", "fork", "side"]


@dataclass(slots=True, eq=False)
class Member:
    """A call in a chain."""

    link: Link
    fate: Fate
    relation: Relation
    kept: int
    """How many of its sampled ids stand in the chain: the first ones. All but a replaced template tail."""
    start: int
    """From here on its prompt ids are new to the chain; what is before stands there already. 0 for the first."""
    drift: Drift | None = None

    @property
    def call(self) -> Seen:
        return self.link.call


@dataclass(slots=True, eq=False)
class Chain:
    number: int
    members: list[Member]
    kin: Kin
    within: Within
    of_chain: "Chain | None" = None
    of_call: Seen | None = None
    broken: Link | None = None
    """The first call's link, when it should have continued another chain's last call and does not."""

    @property
    def tip(self) -> Seen:
        return self.members[-1].call


class Chains:
    """Puts calls into chains, in the order in which they were asked. `limit`: see `substitute`."""

    def __init__(self, builder: Builder, rewritten: Rewritten, limit: float, ends: EndTokens) -> None:
        self.chains: list[Chain] = []
        self.relations: list[Relation] = []
        self._of: dict[str, Chain] = {}
        self._continued: dict[str, Seen] = {}
        self._builder = builder
        self._rewritten = rewritten
        self._limit = limit
        self._ends = ends

    def build(self, links: Sequence[Link], fates: Sequence[Fate]) -> list[Chain]:
        for link, fate in zip(links, fates, strict=True):
            self.relations.append(self._add(link, fate))
        return self.chains

    def _add(self, link: Link, fate: Fate) -> Relation:
        call = link.call
        if not call.continuable:
            return link.relation
        member = Member(link, fate, link.relation, len(call.sampled), 0)
        if link.parent is not None and link.tokens in CONTINUING and leads(member):
            first = self._continued.setdefault(link.parent.call_id, call)
            if first is not call and link.relation in CONTINUING:
                member.relation = "rewound"
        chain = self._chain(link.parent)
        if self._builder == "prefix_merging" and chain and self._continues(member, chain) and self._join(chain, member):
            self._of[call.call_id] = chain
            return member.relation
        self._begin(member, chain)
        return member.relation

    def _continues(self, member: Member, chain: Chain) -> bool:
        link = member.link
        return leads(member) and chain.tip is link.parent and link.bare in CONTINUING

    def _join(self, chain: Chain, member: Member) -> bool:
        link, last = member.link, chain.members[-1]
        parent = last.call
        if link.tokens == "extends":
            member.start = parent.whole_len
        elif link.tokens == "template_tail" and self._rewritten == "fork":
            # The end of turn that the engine saw stands in the chain: every later token keeps its exact context.
            last.kept, member.start = link.shared - parent.prompt_len, link.shared
        elif self._rewritten == "substitute" and (cut := substitution(link.call, parent, self._ends, self._limit)):
            member.start, member.drift = cut
        else:
            return False
        chain.members.append(member)
        if chain.within == "side":
            chain.within = _within(link.call, None, "main")  # it was no side request: the conversation goes on from it
        return True

    def _begin(self, member: Member, parent: Chain | None) -> None:
        link = member.link
        if link.rivals:
            parent = None
        elif link.source is not None and link.bare == "subagent":
            parent = self._chain(link.source)
        kin = self._kin(member, parent)
        chain = Chain(len(self.chains), [member], kin, _within(link.call, parent, kin))
        chain.of_chain, chain.of_call = parent, link.source or (None if link.rivals else link.parent)
        if not side(link.call) and not link.rivals and _broken(link):
            chain.broken = link
        self.chains.append(chain)
        self._of.setdefault(link.call.call_id, chain)

    def _kin(self, member: Member, parent: Chain | None) -> Kin:
        link = member.link
        if side(link.call):
            return "side"
        if link.bare == "subagent":
            return "subagent"
        if link.bare == "compacted":
            return "compaction"
        if self._builder == "per_request" and link.tokens == "extends" and parent is not None:
            return parent.kin
        if link.rivals:
            return "fork"
        if link.parent is None:
            return "main"
        return "rewind" if member.relation in ("rewound", "retried") else "fork"

    def _chain(self, call: Seen | None) -> Chain | None:
        return self._of.get(call.call_id) if call is not None else None


def _within(call: Seen, parent: Chain | None, kin: Kin) -> Within:
    """Whose conversation it is."""
    if kin in ("side", "subagent"):
        return "side" if kin == "side" else "subagent"
    if parent is not None and parent.within != "side":
        return parent.within
    return "subagent" if call.kind == "subagent" else "main"


def _broken(link: Link) -> bool:
    """Whether it continues a call's conversation, and not its tokens."""
    return link.parent is not None and link.parent.whole is not None and link.tokens not in ("root", "extends")
