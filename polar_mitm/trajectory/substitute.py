"""Sampled ids in the place of the re-rendered ones of a later prompt, and how far the two are apart."""

from difflib import SequenceMatcher

from polar_mitm.capture.ids import common_prefix, pack
from polar_mitm.trajectory.ends import EndTokens
from polar_mitm.trajectory.seen import Seen
from polar_mitm.trajectory.trace import Drift

ALIGNED = 2000
"""Tokens that are aligned one by one (a second or so at worst); in longer ones only both ends are compared."""


def substitution(call: Seen, parent: Seen, ends: EndTokens, limit: float) -> tuple[int, Drift] | None:
    """Where `call`'s prompt goes on after the parent's re-rendered answer, and the drift.

    None when that cannot be told, because no end of turn closes the answer, or when more than `limit` (a share, 0 to
    1) of the longer side differs.
    """
    assert call.prompt is not None
    rest = call.prompt.read(parent.prompt_len, call.prompt_len)
    shared = call.prompt.shared(parent.whole) - parent.prompt_len if parent.whole else 0
    if ends.all(parent.sampled[shared:]):
        # Only the end of turn differs. Where nothing closes the answer instead, what follows does not belong to it.
        end: int | None = shared if ends.all(rest[shared : shared + 1]) else shared - 1
    else:
        end = ends.first(rest)
    if end is None:
        return None
    sampled = parent.sampled.tolist()
    closed = ends.all(sampled[-1:])
    # An answer that was cut off has no end of turn; the one that the template puts there stays context.
    rendered = rest[: end + 1] if closed else rest[:end]
    common = common_tokens(sampled, rendered)
    longer = max(len(sampled), len(rendered))
    if longer - common > limit * longer:
        return None
    drift = Drift(sampled_tokens=len(sampled), rendered_tokens=len(rendered), common_tokens=common)
    return parent.prompt_len + len(rendered), drift


def common_tokens(left: list[int], right: list[int]) -> int:
    """How many tokens the two have in common, in order."""
    front = common_prefix(pack(left), pack(right))
    left, right = left[front:], right[front:]
    back = common_prefix(pack(left[::-1]), pack(right[::-1]))
    left, right = left[: len(left) - back], right[: len(right) - back]
    if max(len(left), len(right)) > ALIGNED:
        return front + back
    blocks = SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
    return front + back + sum(block.size for block in blocks)
