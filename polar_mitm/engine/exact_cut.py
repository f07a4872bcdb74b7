"""Where a reply ends in a rendered prompt, and how what follows it joins the ids that were sampled. Pure.

A template writes a conversation anew for every prompt, so an earlier reply never comes back for certain as it was
sampled. What follows the reply is taken from the rendered prompt; everything up to there, from the sampled ids.

The place is found by rendering the conversation twice, the second time with other words in the first message after the
reply. Up to those words both prompts are alike, and between the reply and the words stands what the template writes
there and nothing else: no reply's and no message's text. The last token there that ends a reply ends this one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from polar_mitm.chat import Json
from polar_mitm.prompts import Broken

type Follower = Literal["user", "tool"]
"""The role of the message after a reply."""

type Cuts = Mapping[Follower, int]
"""By follower: the token that a template writes first after a reply. It ends the reply, or begins the message."""

_BLOCK: Final = 4096
"""Ids compared at once: slices compare at the speed of C."""


@dataclass(slots=True, frozen=True)
class Continuation:
    """The earlier call whose reply a request's history continues."""

    ids: list[int]
    """Its prompt, then its response, as the engine saw and sampled them."""
    prompt_len: int
    ended: bool
    """Whether the last id ended the reply: not so where the limit or a stop string did."""
    follows: int
    """Index, in the request's messages, of the first one after the reply."""


class NotBuilt(Exception):
    """The prompt cannot be built from what was sampled."""

    def __init__(self, broken: Broken, why: str) -> None:
        super().__init__(why)
        self.broken: Broken = broken
        self.why = why


def follower(messages: Sequence[Json], index: int) -> Follower:
    """The role of the message there. NotBuilt when there is none, or one that no template's end is known for."""
    role = messages[index]["role"] if index < len(messages) else "no"
    match role:
        case "user" | "tool":
            return role
        case _:
            raise NotBuilt("template", f"{role} message follows the reply")


def other_words(messages: Sequence[Json], index: int) -> list[Json]:
    """The same messages, but for the words of the one at `index`: they differ from the first letter on."""
    words = str(messages[index]["content"]).lstrip()
    changed = {**messages[index], "content": "other" if not words.startswith("o") else "changed"}
    return [*messages[:index], changed, *messages[index + 1 :]]


def tail_start(rendered: Sequence[int], other: Sequence[int], cut: int, *, at_least: int = 0) -> int:
    """Index in `rendered` of the `cut` token that ends the reply before the words by which `other` differs.

    `at_least`: the reply cannot have ended before this. NotBuilt when there is no such place.
    """
    alike = agreeing(rendered, other)
    if alike == len(rendered):
        raise NotBuilt("template", "the template does not show the message after the reply")
    for index in range(alike - 1, at_least - 1, -1):
        if rendered[index] == cut:
            return index
    raise NotBuilt("template", "the template writes no end of the reply where one was expected")


def joined(continuation: Continuation, rendered: Sequence[int], start: int) -> list[int]:
    """The sampled ids, then the rendered ones from the end of the reply on.

    Where the model ended its reply itself, the template's end is not written again; NotBuilt when it is another one.
    """
    ids = continuation.ids
    if continuation.ended:
        if ids[-1] != rendered[start]:
            what = f"the model ended its reply with token {ids[-1]}, the template writes {rendered[start]} there"
            raise NotBuilt("end_token", what)
        start += 1
    return [*ids, *rendered[start:]]


def continues(rendered: Sequence[int], continuation: Continuation) -> bool:
    """Whether the template wrote the reply as it was sampled, so that the rendered prompt continues it."""
    ids = continuation.ids
    return len(rendered) > len(ids) and agreeing(rendered, ids) == len(ids)


def agreeing(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    end = min(len(one), len(other))
    at = 0
    while at < end and one[at : at + _BLOCK] == other[at : at + _BLOCK]:
        at += _BLOCK
    while at < end and one[at] == other[at]:
        at += 1
    return min(at, end)


def cut_after(first: Sequence[int], second: Sequence[int], other: Sequence[int], cut: int | None = None) -> int | None:
    """The token that ends a reply, learned from three prompts; None when they do not agree on one.

    `first` and `second` differ in the reply alone, `first` and `other` in the words after it alone. What `first` and
    `second` end with alike holds no letter of the reply, so the end that the words lead to must lie in it, and be the
    first such token there: in a text reply, which nothing closes, the very first token.
    `cut` is the token to be confirmed, for a reply that closes its calls before it ends.
    """
    alike = agreeing(first[::-1], second[::-1])
    after = first[len(first) - alike :]
    token = after[:1] if cut is None else [cut]
    if not token or token[0] not in after:
        return None
    try:
        start = tail_start(first, other, token[0])
    except NotBuilt:
        return None
    return token[0] if start == len(first) - alike + list(after).index(token[0]) else None
