"""Why a prompt does not continue what was sampled: where the two part, and the cause.

The position and the ids around it are facts. The cause is told from the messages and tools of both requests: the first
thing in which they differ. Where they do not, it is the template or the tokenizer.
"""

from collections.abc import Callable, Sequence

from polar_mitm.trajectory.causes import Finding, Message, of_answer, of_message, of_system, of_tools
from polar_mitm.trajectory.messages import answers
from polar_mitm.trajectory.relate import Link
from polar_mitm.trajectory.seen import Seen, Session
from polar_mitm.trajectory.trace import Break

type Decode = Callable[[Sequence[int]], str]
"""The text of token ids."""

BEFORE, AFTER = 8, 24
"""Tokens shown before the first one that differs, and from it on."""


def explain(session: Session, link: Link, decode: Decode | None = None) -> Break:
    """The break between a call and the parent that its link names."""
    call, parent = link.call, link.parent
    assert parent is not None and parent.whole is not None and call.prompt is not None
    start, end = max(0, link.shared - BEFORE), link.shared + AFTER
    sampled = parent.whole.read(start, min(end, parent.whole_len))
    rendered = call.prompt.read(start, min(end, call.prompt_len))
    cause, why = _Look(session, link, call, parent).finding()
    return Break(
        call_id=call.call_id,
        parent_call_id=parent.call_id,
        position=link.shared,
        parent_around=sampled,
        prompt_around=rendered,
        parent_text=decode(sampled) if decode else None,
        prompt_text=decode(rendered) if decode else None,
        cause=cause,
        why=why,
    )


class _Look:
    def __init__(self, session: Session, link: Link, call: Seen, parent: Seen) -> None:
        self.session = session
        self.link = link
        self.call = call
        self.parent = parent

    def finding(self) -> Finding:
        link = self.link
        if link.bare == "compacted" and link.source is not None:
            return "compaction", f"the conversation begins anew after the summary of {link.source.call_id}"
        if link.tokens == "template_tail":
            return "template_tail", "the answer ended with another end-of-turn token than the template puts there"
        found = self._history() if link.shared < self.parent.prompt_len else None
        return found or self._answer()

    def _history(self) -> Finding | None:
        """The first difference between what the parent was asked and the same part of this request."""
        session, call, parent = self.session, self.call, self.parent
        if call.tools != parent.tools:
            return of_tools(session.tools(parent), session.tools(call))
        place = call.spoken.shared(parent.spoken)
        if place < parent.spoken.end:
            return self._differing(place)
        if call.template != parent.template:
            return "unknown", "the engine's chat template changed between the two calls"
        if self._at(call, place) is not None and self._reply() is None:
            return "message_edited", "the answer was left out of the history"
        if any(_thinks(message) for message in session.messages(parent)):
            return "reasoning_stripped", "the template leaves out the thinking of earlier turns once others follow"
        return "unknown", call.built_why or "messages and tools are the same, and their tokens are not"

    def _differing(self, place: int) -> Finding:
        session, call, parent = self.session, self.call, self.parent
        old, new = self._at(parent, place), self._at(call, place)
        if new is None or old is None:
            return "truncation", f"the history has {call.spoken.end} messages, and had {parent.spoken.end}"
        if "system" in (old.get("role"), new.get("role")):
            return of_system(old, new, session.messages(parent), session.messages(call))
        later = call.spoken.read(place, place + 1)[0] in parent.spoken.read(place, parent.spoken.end)
        if later or answers(new, parent):
            return "truncation", f"messages from place {place} on were taken out of the history"
        if old.get("role") != new.get("role"):
            return (
                "message_edited",
                f"message {place} was of {old.get('role')}, and another one of {new.get('role')} is there",
            )
        return of_message(f"message {place} ({old.get('role')})", old, new)

    def _answer(self) -> Finding:
        reply = self._reply()
        if reply is not None:
            return of_answer(self.parent, reply)
        return "unknown", self.call.built_why or "no message of this request stands where the answer was"

    def _reply(self) -> Message | None:
        """The message that stands where the parent's answer belongs, when it is an answer."""
        message = self._at(self.call, self.parent.spoken.end)
        return message if message is not None and message.get("role") == "assistant" else None

    def _at(self, call: Seen, place: int) -> Message | None:
        numbers = call.spoken.read(place, place + 1)
        return self.session.bodies[numbers[0]] if numbers else None


def _thinks(message: Message) -> bool:
    return bool(message.get("reasoning")) or "</think>" in str(message.get("content"))
