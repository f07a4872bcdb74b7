"""Why a prompt does not continue what was sampled: where the two part, and the cause that the messages tell."""

from collections.abc import Callable, Sequence

from polar_mitm.trajectory.relate import Link
from polar_mitm.trajectory.seen import Session
from polar_mitm.trajectory.trace import Break

type Decode = Callable[[Sequence[int]], str]
"""The text of token ids."""

BEFORE, AFTER = 8, 24
"""Tokens shown before and from the first one that differs."""


def explain(session: Session, link: Link, decode: Decode | None = None) -> Break:
    call, parent = link.call, link.parent
    assert parent is not None and parent.whole is not None and call.prompt is not None
    start, end = max(0, link.shared - BEFORE), link.shared + AFTER
    sampled = parent.whole.read(start, min(end, parent.whole_len))
    rendered = call.prompt.read(start, min(end, call.prompt_len))
    return Break(
        call_id=call.call_id,
        parent_call_id=parent.call_id,
        position=link.shared,
        parent_around=sampled,
        prompt_around=rendered,
        parent_text=decode(sampled) if decode else None,
        prompt_text=decode(rendered) if decode else None,
        cause="unknown",
        why="",
    )
