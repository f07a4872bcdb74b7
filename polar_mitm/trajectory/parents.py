"""Which earlier call a request means to continue.

Told by the ids of tool calls that polar minted, then by the messages, then by the token ids alone. Whether its tokens
really continue that call is `relate`'s question.
"""

from collections.abc import Sequence
from typing import Any, Literal

from polar_mitm.trajectory.messages import answers, mint_of, same_answer
from polar_mitm.trajectory.seen import Seen, Session, repeated, side

RIVALS = 64
"""Calls that are weighed against each other as one call's parent; more would be a client in a retry loop."""


class Parents:
    """The calls seen so far, as parents. A call is looked up before it is added, so it is never its own ancestor."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.by_id: dict[str, Seen] = {}
        self._by_text: dict[tuple[str | None, str], list[Seen]] = {}
        self._redelivered: set[str | None] = set()
        """Calls whose answer reached the harness by a retry."""

    def add(self, call: Seen) -> None:
        self.by_id[call.call_id] = call
        if call.delivery == "delivered":
            self._redelivered.add(repeated(call))
        if repeated(call) or call.twin:
            return
        if call.answered:
            call.spoken.mark("asked", call.number)
        if call.prompt and call.whole:
            call.whole.mark("whole", call.number)
            call.prompt.mark("prompt", call.number)
            if call.answered:
                self._by_text.setdefault((call.agent, call.text.strip()), []).append(call)

    def find(self, call: Seen) -> list[Seen]:
        """The parent; several when no sign tells which, the likeliest last; none for a root."""
        claimed = self._claimed(call)
        # Of answers to one prompt the messages and the delivery say better than tokens which one came back: a lost one
        # can be the beginning of it, or end as the template does.
        told = [other for other in claimed if self._told(call, other)] or claimed
        told = [other for other in told if self._arrived(other)] or told
        # The parent by its messages is the later turn, unless its tokens leave before an exact one's end.
        least = max((self.shared(call, other) for other in told), default=0)
        exact = self._deepest(call, "whole", least, unlike=told)
        told = [other for other in told if other.whole is not None]
        if both := [other for other in exact if other in told]:
            return self._sifted(call, both)
        if told and (not exact or exact[0].whole_len <= least):
            return self._sifted(call, told)
        return self._sifted(call, exact or self._deepest(call, "prompt"))

    def shared(self, call: Seen, other: Seen) -> int:
        """Leading tokens that the call's prompt shares with the other's prompt + response."""
        return call.prompt.shared(other.whole) if call.prompt and other.whole else 0

    def returned(self, call: Seen, parent: Seen) -> bool:
        """An answer stands where the parent's belongs, or the last answer is the parent's."""
        last = self._last_answer(call)
        return last is not None and (self._answer(call, parent) is not None or answers(last[1], parent))

    def came_back(self, call: Seen, parent: Seen) -> bool:
        """The parent's answer stands in this call's messages as it was sampled."""
        answer = self._answer(call, parent)
        return answer is not None and same_answer(answer, parent)

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
            return self._by_text.get((call.agent, text.strip()), [])[-RIVALS:]
        return []

    def _deepest(
        self, call: Seen, word: Literal["whole", "prompt"], least: int = 0, unlike: Sequence[Seen] = ()
    ) -> list[Seen]:
        """The calls with the longest sequence that this prompt begins with, of the same agent if there is one.

        `whole`: of prompt + response. `prompt`: of a prompt that is shorter than this one, of the same agent only. None
        is shorter than `least`; of answers to the prompt of one in `unlike`, no other is found, and none that was lost.
        """
        assert call.prompt is not None
        others: list[Seen] = []
        for node in call.prompt.up():
            if node.end < least:
                break
            found = [self.session.calls[number] for number in node.marks.get(word, ())[-RIVALS:]]
            if word == "prompt":
                found = [other for other in found if not side(other) and other.prompt_len < call.prompt_len]
            found = [other for other in found if other in unlike or self._possible(other, unlike)]
            if same := [other for other in found if other.sampled and other.agent == call.agent]:
                return same
            others = others or [other for other in found if other.sampled]
        return others if word == "whole" else []

    def _possible(self, call: Seen, unlike: Sequence[Seen]) -> bool:
        return self._arrived(call) and not any(_rivals(call, one) for one in unlike)

    # What tells them apart

    def _sifted(self, call: Seen, rivals: Sequence[Seen]) -> list[Seen]:
        kept = list(rivals)
        for sieve in (self._minted_last, self._closest, self._same_place, self._unchanged, self._delivered):
            if len(kept) > 1:
                kept = sieve(call, kept) or kept
        return kept

    def _minted_last(self, call: Seen, rivals: Sequence[Seen]) -> list[Seen]:
        last = self._last_answer(call)
        minted = self._minted(last[1]) if last else None
        return [other for other in rivals if other is minted]

    def _closest(self, call: Seen, rivals: Sequence[Seen]) -> list[Seen]:
        """Those whose sampled tokens come back furthest."""
        shared = [self.shared(call, other) for other in rivals]
        most = max(shared)
        return [other for other, length in zip(rivals, shared, strict=True) if length == most]

    def _same_place(self, call: Seen, rivals: Sequence[Seen]) -> list[Seen]:
        """Those whose answer belongs where the last answer stands."""
        last = self._last_answer(call)
        return [other for other in rivals if last and other.spoken.end == last[0]]

    def _unchanged(self, call: Seen, rivals: Sequence[Seen]) -> list[Seen]:
        return [other for other in rivals if self.came_back(call, other)]

    def _delivered(self, call: Seen, rivals: Sequence[Seen]) -> list[Seen]:
        return [other for other in rivals if self._arrived(other)]

    def _arrived(self, call: Seen) -> bool:
        return call.sent or (call.call_id in self._redelivered and not call.broken)

    def _told(self, call: Seen, other: Seen) -> bool:
        """The messages say that this answer came back."""
        answer = self._answer(call, other)
        return answer is not None and answers(answer, other)

    # The messages

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

    def _answer(self, call: Seen, parent: Seen) -> dict[str, Any] | None:
        """The message that follows the parent's own in this conversation, when it is an answer."""
        start = parent.spoken.end
        if call.spoken.shared(parent.spoken) < start or start >= call.spoken.end:
            return None
        message = self.session.bodies[call.spoken.read(start, start + 1)[0]]
        return message if message.get("role") == "assistant" else None

    def _minted(self, answer: dict[str, Any]) -> Seen | None:
        """The call that minted the ids of this answer's tool calls."""
        minted = (self.by_id.get(name) for name in mint_of(answer))
        return next((call for call in minted if call is not None and not call.twin), None)


def _rivals(one: Seen, other: Seen) -> bool:
    """Answers to one prompt."""
    return one.prompt is other.prompt or one.spoken is other.spoken
