"""How each call of a session stands to the calls before it.

Token ids say whether a prompt continues what was sampled; which call it means to continue is `parents`'. A parent is
always a call that was asked earlier, whatever a record says, so there are no cycles. What no sign tells apart is
`ambiguous`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from polar_mitm.trajectory.ends import EndTokens
from polar_mitm.trajectory.parents import RIVALS, Parents
from polar_mitm.trajectory.seen import Seen, Session, repeated, side
from polar_mitm.trajectory.summary import LOOKED_AT, caller_of, quotes, summed_up
from polar_mitm.trajectory.trace import Relation


@dataclass(slots=True, eq=False)
class Link:
    """A call, and what it continues."""

    call: Seen
    relation: Relation
    tokens: Relation
    """How its token ids stand to the parent's, whatever the relation is called: `root`, `extends`, `template_tail`,
    `rewritten` or `diverges`."""
    parent: Seen | None = None
    shared: int = 0
    """Leading tokens that its prompt shares with the parent's prompt + response."""
    returned: bool = False
    """The parent's answer came back in this call's messages: the harness went on from it."""
    rivals: tuple[Seen, ...] = ()
    """The calls of which one is the parent, when nothing tells which."""
    source: Seen | None = None
    """The call that started this sub-agent, or the compaction that this conversation begins after."""
    siblings: list["Link"] = field(default_factory=list)
    """All calls of the same agent that ask the same, this one included; shared between them."""
    bare: Relation = "root"
    """The relation it would have, were it no retry."""


def relate(session: Session, ends: EndTokens) -> list[Link]:
    """A link for each call, in the order in which they were asked."""
    relating = _Relating(session, ends)
    return [relating.link(call) for call in session.calls]


class _Relating:
    def __init__(self, session: Session, ends: EndTokens) -> None:
        self.session = session
        self.ends = ends
        self.parents = Parents(session)
        self.groups: dict[object, list[Link]] = {}
        self.links: dict[str, Link] = {}
        self.compactions: list[Seen] = []
        self.askers: list[Seen] = []
        """Calls that asked for tools."""
        self.turns: list[Seen] = []
        self.resumed: dict[str, Seen] = {}
        """By compaction, the call that a conversation began with after it."""

    def link(self, call: Seen) -> Link:
        link = self._link(call)
        link.bare = link.relation
        self._remember(link)
        return link

    def _link(self, call: Seen) -> Link:
        if original := repeated(call):
            return Link(call, "retried", "root", self.parents.by_id.get(original))
        if call.prompt is None:
            return Link(call, "side_request" if side(call) else "unplaced", "root")
        link = self._continued(call)
        if side(call):
            link.relation = "side_request"
        elif compaction := self._compaction(link):
            link.relation, link.source = "compacted", compaction
            if link.parent is None or link.parent.number <= compaction.number:
                link.parent = self.links[compaction.call_id].parent or self._summed_up(compaction)
                link.shared = self.parents.shared(call, link.parent) if link.parent else 0
                link.tokens = self._tokens(call, link.parent, link.shared) if link.parent else "root"
        elif call.kind == "subagent" and (link.parent is None or link.parent.agent != call.agent):
            link.relation = "subagent"
            if not link.rivals:
                link.source = link.parent or caller_of(self.session, call, self._callers(call))
        return link

    def _continued(self, call: Seen) -> Link:
        parents = self.parents.find(call)
        if not parents:
            return Link(call, "root", "root")
        parent = parents[-1]
        shared = self.parents.shared(call, parent)
        tokens = self._tokens(call, parent, shared)
        returned = tokens in ("extends", "template_tail") or self.parents.returned(call, parent)
        if len(parents) > 1 and returned:
            return Link(call, "ambiguous", tokens, parent, shared, returned, tuple(parents))
        return Link(call, tokens, tokens, parent, shared, returned)

    def _tokens(self, call: Seen, parent: Seen, shared: int) -> Relation:
        if parent.continuable and shared == parent.whole_len:
            return "extends"
        if shared < parent.prompt_len or not parent.continuable:
            return "diverges"
        tail = parent.sampled[shared - parent.prompt_len :]
        assert call.prompt is not None
        rendered = call.prompt.read(shared, min(shared + 1, call.prompt_len))
        if self.ends.all(tail) and (self.ends.all(rendered) or self.parents.came_back(call, parent)):
            return "template_tail"
        return "rewritten"

    def _callers(self, call: Seen) -> Iterator[Seen]:
        """Calls that asked for tools, the latest first."""
        for other in reversed(self.askers):
            if call.caller is None or other.agent in (None, call.caller):
                yield other

    def _compaction(self, link: Link) -> Seen | None:
        """The compaction that this conversation begins after: one it quotes, or else the last that nothing followed."""
        call, parent = link.call, link.parent
        if parent in self.compactions and link.tokens == "diverges":
            return parent  # its summary is the last answer, and its own request is no part of this one
        latest = list(islice((c for c in reversed(self.compactions) if c.agent == call.agent), RIVALS))
        latest = [compaction for compaction in latest if parent is None or parent.number < compaction.number]
        if quoted := next((c for c in latest if quotes(self.session, call, c)), None):
            return quoted
        if parent is not None or call.kind == "subagent":
            return None
        for compaction in latest:
            first = self.resumed.get(compaction.call_id)
            if first is None or first.prompt is call.prompt:
                return compaction
        return None

    def _summed_up(self, compaction: Seen) -> Seen | None:
        """The last turn of the conversation that a compaction with no parent tells of."""
        before = (turn for turn in reversed(self.turns) if turn.number < compaction.number)
        turns = list(islice((turn for turn in before if turn.agent == compaction.agent), LOOKED_AT))
        told = summed_up(self.session, compaction, turns)
        for turn in turns:
            at: Seen | None = turn
            while told is not None and at is not None and at.number > told.number:
                at = self.links[at.call_id].parent
            if at is told:
                return turn  # which the request may leave out: the last words are kept as they are
        return None

    def _remember(self, link: Link) -> None:
        call = link.call
        self.parents.add(call)
        self.links[call.call_id] = link
        if link.bare == "compacted" and link.source is not None:
            self.resumed.setdefault(link.source.call_id, call)
        if repeated(call) or call.twin or not call.whole:
            return
        if call.kind == "compaction" and call.answered:
            self.compactions.append(call)
        if call.tool_calls and not side(call):
            self.askers.append(call)
        if call.sampled and not side(call):
            self.turns.append(call)
            self._group(link)

    def _group(self, link: Link) -> None:
        call = link.call
        # After every compaction a conversation may begin with the same words.
        begun = (call.agent, link.source.call_id if link.bare == "compacted" and link.source else None)
        keys = ((*begun, "prompt", id(call.prompt)), (*begun, "asked", id(call.spoken), call.tools))
        group = next((self.groups[key] for key in keys if key in self.groups), link.siblings)
        if group and link.relation != "ambiguous":
            link.relation = "retried"
        group.append(link)
        link.siblings = group
        for key in keys:
            self.groups.setdefault(key, group)
