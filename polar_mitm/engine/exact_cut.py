"""Where a reply ends in a rendered prompt, and how what follows it joins the ids that were sampled. Pure.

A template writes a conversation anew for every prompt, so an earlier reply never comes back for certain as it was
sampled. What follows the reply is taken from the rendered prompt; everything up to there, from the sampled ids.

The place is found by rendering the conversation twice, the second time with other words in the first message after the
reply. Up to those words both prompts are alike, and between the reply and the words stands what the template writes
there and nothing else: no reply's and no message's text. A token that is known to stand there once is the last of its
kind before the words, and shows the place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from polar_mitm.chat import Json
from polar_mitm.prompts import Broken

type Follower = Literal["user", "tool"]
"""The role of the message after a reply."""


@dataclass(slots=True, frozen=True)
class End:
    """What a template writes between a reply and the words of the message after it."""

    known: frozenset[int]
    """Tokens that stand there once: a model may end its reply with any of them, and what follows goes on after it."""
    first: int | None
    """The one that what follows begins with, where the model did not end its reply itself; None: it is not known."""
    before: tuple[int, ...] = ()
    """What the template writes before `first`."""


type Ends = Mapping[Follower, End]

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


def cut_of(continuation: Continuation, end: End) -> int:
    """The token that shows where the reply ends. NotBuilt when there is none that is sure to."""
    if not continuation.ended:
        if end.first is None:
            raise NotBuilt("template", "what the template writes first after such a reply is not known")
        return end.first
    if (last := continuation.ids[-1]) not in end.known:
        raise NotBuilt("end_token", f"the model ended its reply with token {last}, which the template does not")
    return last


def joined(continuation: Continuation, rendered: Sequence[int], start: int, end: End) -> list[int]:
    """The sampled ids, then the rendered ones from the end of the reply on.

    Where the model ended its reply itself, what ended it is not written again.
    """
    if continuation.ended:
        start += 1
    elif tuple(rendered[max(0, start - len(end.before)) : start]) == end.before:
        start -= len(end.before)
    return [*continuation.ids, *rendered[start:]]


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


def written_between(first: Sequence[int], second: Sequence[int], other: Sequence[int]) -> list[int]:
    """What a template writes between a reply and the words after it, learned from three prompts.

    `first` and `second` differ in the reply alone, `first` and `other` in the words alone. What `first` and `second`
    end with alike holds no letter of the reply. Empty where the template does not show both.
    """
    alike = agreeing(first[::-1], second[::-1])
    words = agreeing(first, other)
    if alike == len(first) or words == len(first):
        return []
    return list(first[len(first) - alike : words])


def end_of(between: Sequence[int], *likely: int) -> End | None:
    """The end of a reply by what is written between it and the words; None where no token in it shows the place.

    `likely` are tokens to begin with where the model did not end its reply; without any, the earliest that shows it.
    """
    once = [token for token in between if between.count(token) == 1]
    if not once:
        return None
    if likely:
        return End(frozenset(once), next((token for token in likely if token in once), None))
    return End(frozenset(once), once[0], tuple(between[: list(between).index(once[0])]))
