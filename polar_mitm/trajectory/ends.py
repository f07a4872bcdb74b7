"""The end-of-turn tokens of the served template, learned from what was sampled.

When the engine ends a turn by itself, the last token it sampled is an end of turn. A template can have several.
"""

from collections.abc import Collection, Iterable, Sequence

from polar_mitm.trajectory.seen import Seen


class EndTokens:
    """`given` are those that the caller knows of, from the model's tokenizer or template."""

    def __init__(self, calls: Iterable[Seen], given: Collection[int] = ()) -> None:
        ends: set[int] = set()
        inside: set[int] = set()
        for call in calls:
            if not call.sampled or call.invalid:
                continue
            inside.update(call.sampled[:-1])
            if call.finish_reason in ("stop", "tool_calls") and not call.stops and not _forced(call):
                ends.add(call.sampled[-1])
        # What ends a turn is never followed by anything of it.
        self.ids = frozenset(given) | (ends - inside)

    def all(self, ids: Sequence[int]) -> bool:
        """Whether there are ids, and they are ends of turn all of them."""
        return len(ids) > 0 and all(token in self.ids for token in ids)

    def first(self, ids: Sequence[int]) -> int | None:
        """Index of the first end of turn among the ids."""
        return next((place for place, token in enumerate(ids) if token in self.ids), None)


def _forced(call: Seen) -> bool:
    """A grammar can choose the last token of a call."""
    return any(start < len(call.sampled) <= end for start, end in call.forced)
