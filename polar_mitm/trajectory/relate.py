"""How each call of a session stands to the calls before it.

Token ids say whether a prompt continues what was sampled. Which call it means to continue is told by the ids of tool
calls that polar minted, then by the messages, then by the tokens alone. A parent is always a call that was asked
earlier, whatever a record says, so there are no cycles. What no sign tells apart is `ambiguous`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from polar_mitm.trajectory.ends import EndTokens
from polar_mitm.trajectory.seen import Seen, Session, repeated
from polar_mitm.trajectory.summary import caller_of, quotes
from polar_mitm.trajectory.trace import Relation

SIDE = frozenset({"title", "classifier", "count", "compaction", "probe"})
"""Kinds of calls that do not advance a conversation."""

RIVALS = 64
"""Calls that are weighed against each other as one call's parent; more would be a client in a retry loop."""


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


def side(call: Seen) -> bool:
    return call.kind in SIDE


def relate(session: Session, ends: EndTokens) -> list[Link]:
    """A link for each call, in the order in which they were asked."""
    relating = _Relating(session, ends)
    return [relating.link(call) for call in session.calls]


class _Relating:
    def __init__(self, session: Session, ends: EndTokens) -> None:
        self.session = session
        self.ends = ends
        self.by_id: dict[str, Seen] = {}
        self.answers: dict[tuple[str | None, str], list[Seen]] = {}
        self.groups: dict[object, list[Link]] = {}
        self.links: dict[str, Link] = {}
        self.compactions: list[Seen] = []
        self.askers: list[Seen] = []
        """Calls that asked for tools."""
        self.followed: set[str] = set()
        """Calls that a later one continues."""
        self.resumed: set[str] = set()
        """Compactions that a conversation began after."""

    def link(self, call: Seen) -> Link:
        link = self._link(call)
        link.bare = link.relation
        self._remember(link)
        return link

    def _link(self, call: Seen) -> Link:
        if repeated(call):
            return Link(call, "retried", "root", self.by_id.get(repeated(call) or ""))
        if call.prompt is None:
            return Link(call, "side_request" if side(call) else "unplaced", "root")
        link = self._continued(call)
        if side(call):
            link.relation = "side_request"
        elif compaction := self._compaction(call, link.parent):
            link.relation, link.source = "compacted", compaction
            if link.parent is None or link.parent.number < compaction.number:
                link.parent = self._before(compaction)
                link.shared = self._shared(call, link.parent) if link.parent else 0
                link.tokens = self._tokens(call, link.parent, link.shared) if link.parent else "root"
        elif call.kind == "subagent" and (link.parent is None or link.parent.agent != call.agent):
            link.relation = "subagent"
            link.source = link.parent or caller_of(self.session, call, self._callers(call), self.followed)
        return link

    def _continued(self, call: Seen) -> Link:
        claimed = self._claimed(call)
        # The parent by its messages is the later turn, unless its tokens leave before an exact one's end.
        least = max((self._shared(call, other) for other in claimed), default=0)
        exact = self._deepest(call, "whole", least)
        if both := [other for other in exact if other in claimed]:
            return self._chosen(call, both)
        if claimed and (not exact or exact[0].whole_len <= least):
            return self._chosen(call, claimed)
        return self._chosen(call, exact or self._deepest(call, "prompt"))

    def _chosen(self, call: Seen, rivals: Sequence[Seen]) -> Link:
        if not rivals:
            return Link(call, "root", "root")
        for sieve in (self._minted_last, self._closest, self._same_place, self._answer_stands, _delivered):
            if len(rivals) > 1:
                rivals = sieve(call, rivals) or rivals
        parent = rivals[-1]
        shared = self._shared(call, parent)
        tokens = self._tokens(call, parent, shared)
        returned = tokens in ("extends", "template_tail") or self._returned(call, parent)
        if len(rivals) > 1 and returned:
            return Link(call, "ambiguous", tokens, parent, shared, returned, tuple(rivals))
        return Link(call, tokens, tokens, parent, shared, returned)

    def _tokens(self, call: Seen, parent: Seen, shared: int) -> Relation:
        if parent.continuable and shared == parent.whole_len:
            return "extends"
        if shared < parent.prompt_len or not parent.continuable:
            return "diverges"
        tail = parent.sampled[shared - parent.prompt_len :]
        assert call.prompt is not None
        rendered = call.prompt.read(shared, min(shared + 1, call.prompt_len))
        if self.ends.all(tail) and (self.ends.all(rendered) or self._came_back(call, parent)):
            return "template_tail"
        return "rewritten"

    # Which calls it may continue

    def _claimed(self, call: Seen) -> list[Seen]:
        """The calls that the messages say it continues: several when they were asked the same."""
        if call.built_from is not None and (base := self.by_id.get(call.built_from)) is not None and not base.twin:
            return [base]
        place, last = self._last_answer(call) or (0, None)
        minted = self._minted(last) if last is not None else None
        for node in call.spoken.up():
            asked = [self.session.calls[number] for number in node.marks.get("asked", ())[-RIVALS:]]
            asked = [other for other in asked if other.agent == call.agent]
            if asked and node.end < call.spoken.end:
                # A longer history than the last answer's is that of a call whose own answer was left out.
                if minted is None or node.end > place:
                    return asked
                break
        if minted is not None and minted.prompt is not None:
            return [minted]
        if last is not None and not last.get("tool_calls") and isinstance(text := last.get("content"), str) and text:
            return self.answers.get((call.agent, text.strip()), [])[-RIVALS:]
        return []

    def _deepest(self, call: Seen, word: Literal["whole", "prompt"], least: int = 0) -> list[Seen]:
        """The calls with the longest sequence that this prompt begins with, of the same agent if there is one.

        `whole`: of prompt + response. `prompt`: of a prompt that is shorter than this one, of the same agent only. None
        is shorter than `least`.
        """
        assert call.prompt is not None
        others: list[Seen] = []
        for node in call.prompt.up():
            if node.end < least:
                break
            found = [self.session.calls[number] for number in node.marks.get(word, ())[-RIVALS:]]
            if word == "prompt":
                found = [other for other in found if not side(other) and other.prompt_len < call.prompt_len]
            if same := [other for other in found if other.sampled and other.agent == call.agent]:
                return same
            others = others or [other for other in found if other.sampled]
        return others if word == "whole" else []

    def _last_answer(self, call: Seen) -> tuple[int, dict[str, Any]] | None:
        """The last assistant message of the request, with its index."""
        end, step = call.spoken.end, 8
        while end > 0:
            start = max(0, end - step)
            numbers = call.spoken.read(start, end)
            for place in reversed(range(len(numbers))):
                if (message := self.session.bodies[numbers[place]]).get("role") == "assistant":
                    return start + place, message
            end, step = start, step * 2
        return None

    def _minted(self, answer: dict[str, Any]) -> Seen | None:
        """The call that minted the ids of this answer's tool calls."""
        for tool_call in _dicts(answer.get("tool_calls")):
            name = tool_call.get("id")
            if isinstance(name, str) and (call := self.by_id.get(name[:-2])) is not None and not call.twin:
                return call
        return None

    # What tells rivals apart

    def _minted_last(self, call: Seen, rivals: Sequence[Seen]) -> list[Seen]:
        last = self._last_answer(call)
        minted = self._minted(last[1]) if last else None
        return [other for other in rivals if other is minted]

    def _same_place(self, call: Seen, rivals: Sequence[Seen]) -> list[Seen]:
        """Those whose answer belongs where the last answer stands."""
        last = self._last_answer(call)
        return [other for other in rivals if last and other.spoken.end == last[0]]

    def _closest(self, call: Seen, rivals: Sequence[Seen]) -> list[Seen]:
        """Those whose sampled tokens come back furthest."""
        shared = [self._shared(call, other) for other in rivals]
        most = max(shared)
        return [other for other, length in zip(rivals, shared, strict=True) if length == most]

    def _answer_stands(self, call: Seen, rivals: Sequence[Seen]) -> list[Seen]:
        return [other for other in rivals if self._came_back(call, other)]

    def _came_back(self, call: Seen, parent: Seen) -> bool:
        """The parent's answer stands in this call's messages as it was sampled."""
        answer = self._answer(call, parent)
        return answer is not None and same_answer(answer, parent)

    def _returned(self, call: Seen, parent: Seen) -> bool:
        last = self._last_answer(call)
        return last is not None and (self._answer(call, parent) is not None or answers(last[1], parent))

    def _answer(self, call: Seen, parent: Seen) -> dict[str, Any] | None:
        """The message that follows the parent's own in this conversation, when it is an answer."""
        start = parent.spoken.end
        if call.spoken.shared(parent.spoken) < start or start >= call.spoken.end:
            return None
        message = self.session.bodies[call.spoken.read(start, start + 1)[0]]
        return message if message.get("role") == "assistant" else None

    def _shared(self, call: Seen, other: Seen) -> int:
        return call.prompt.shared(other.whole) if call.prompt and other.whole else 0

    # Sub-agents and compactions

    def _callers(self, call: Seen) -> Iterator[Seen]:
        """Calls that asked for tools, the latest first."""
        for other in reversed(self.askers):
            if call.caller is None or other.agent in (None, call.caller):
                yield other

    def _compaction(self, call: Seen, parent: Seen | None) -> Seen | None:
        """The compaction that this conversation begins after: one it quotes, or else the last that nothing followed."""
        latest = list(islice((c for c in reversed(self.compactions) if c.agent == call.agent), RIVALS))
        latest = [compaction for compaction in latest if parent is None or parent.number < compaction.number]
        if quoted := next((c for c in latest if quotes(self.session, call, c)), None):
            return quoted
        if parent is not None or call.kind == "subagent":
            return None
        return next((compaction for compaction in latest if compaction.call_id not in self.resumed), None)

    def _before(self, compaction: Seen) -> Seen | None:
        return self.links[compaction.call_id].parent

    def _remember(self, link: Link) -> None:
        call = link.call
        self.by_id[call.call_id] = call
        self.links[call.call_id] = link
        if not side(call):
            self.followed.update(other.call_id for other in (link.parent, *link.rivals) if other is not None)
            if link.bare == "compacted" and link.source is not None:
                self.resumed.add(link.source.call_id)
        if repeated(call) or call.twin or not call.prompt or not call.whole:
            return
        call.whole.mark("whole", call.number)
        call.prompt.mark("prompt", call.number)
        if call.answered:
            call.spoken.mark("asked", call.number)
            self.answers.setdefault((call.agent, call.text.strip()), []).append(call)
        if call.kind == "compaction" and call.answered:
            self.compactions.append(call)
        if call.tool_calls and not side(call):
            self.askers.append(call)
        if not side(call) and call.sampled:
            self._group(link)

    def _group(self, link: Link) -> None:
        call = link.call
        keys = ((call.agent, "prompt", id(call.prompt)), (call.agent, "asked", id(call.spoken), call.tools))
        group = next((self.groups[key] for key in keys if key in self.groups), link.siblings)
        if group and link.relation not in ("ambiguous", "compacted"):
            link.relation = "retried"
        group.append(link)
        link.siblings = group
        for key in keys:
            self.groups.setdefault(key, group)


def same_answer(message: dict[str, Any], call: Seen) -> bool:
    """Whether the message says what the call's response said: text, tools and arguments, whatever the ids."""
    told = [(_part(c, "name"), _part(c, "arguments")) for c in _dicts(message.get("tool_calls"))]
    made = [(_part(c, "name"), _part(c, "arguments")) for c in call.tool_calls]
    return (message.get("content") or "") == call.text and told == made


def answers(message: dict[str, Any], call: Seen) -> bool:
    """Whether the message is that call's answer: by the ids of its tool calls, or else by its text."""
    calls = list(_dicts(message.get("tool_calls")))
    if calls or not call.text:
        return any(str(made.get("id"))[:-2] == call.call_id for made in calls)
    return message.get("role") == "assistant" and same_answer(message, call)


def _part(tool_call: dict[str, Any], name: str) -> object:
    function = tool_call.get("function")
    return function.get(name) if isinstance(function, dict) else None


def _dicts(value: object) -> Iterable[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _delivered(call: Seen, rivals: Sequence[Seen]) -> list[Seen]:
    return [other for other in rivals if other.delivery == "delivered"]
