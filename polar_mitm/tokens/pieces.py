"""Token ids as text that can be read and shown safely.

A token can be a part of a character, so the unit of what is shown is a piece: the fewest tokens whose bytes end where a
character ends.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from polar_mitm.tokens.vocabulary import Vocabulary

LEVELS: Final = (0.9, 0.5, 0.1, 0.01)
"""Probabilities that part the levels of `level`: sure, likely, open, unlikely, surprising."""
NAMES: Final = ("p ≥ 0.9", "p ≥ 0.5", "p ≥ 0.1", "p ≥ 0.01", "p < 0.01")


@dataclass(slots=True, frozen=True)
class Piece:
    """Tokens [start, end) of the ids they were made of."""

    start: int
    end: int
    text: str
    """As UTF-8 says; a byte that is none is `⟨e2⟩`, an id without bytes `⟨id 7⟩`. Not safe to show: see `visible`."""
    special: bool = False
    """It is one token of the template."""


def pieces(ids: Sequence[int], vocabulary: Vocabulary | None) -> Iterator[Piece]:
    """The ids in order, each in exactly one piece. Without a vocabulary each is its number."""
    start, held = 0, b""
    for place, token_id in enumerate(ids):
        content = vocabulary.bytes_of(token_id) if vocabulary else None
        special = content is not None and vocabulary is not None and vocabulary.is_special(token_id)
        if (content is None or special) and held:
            yield Piece(start, place, _text(held))
            start, held = place, b""
        if content is None:
            yield Piece(place, place + 1, f"⟨{'id ' if vocabulary else ''}{token_id}⟩")
            start = place + 1
        elif special:
            yield Piece(place, place + 1, _text(content), special=True)
            start = place + 1
        else:
            if held and not _is_begun(held + content) and not _is_whole(held + content):
                yield Piece(start, place, _text(held))
                start, held = place, b""
            held += content
            if not _is_begun(held):
                yield Piece(start, place + 1, _text(held))
                start, held = place + 1, b""
    if held:
        yield Piece(start, len(ids), _text(held))


def text_of(ids: Sequence[int], vocabulary: Vocabulary | None) -> str:
    """The text of all pieces, joined."""
    return "".join(piece.text for piece in pieces(ids, vocabulary))


def spelled(content: bytes | None) -> str:
    """One token's own bytes: its text, and `⟨e2⟩` for each byte of a character that it holds only in part."""
    return "⟨?⟩" if content is None else _text(content)


def level(logprob: float) -> int | None:
    """0 (sure) to 4 (surprising); None for what is no log-probability."""
    if math.isnan(logprob):
        return None
    return sum(logprob < math.log(bound) for bound in LEVELS)


def visible(text: str) -> str:
    """The text with nothing in it that steers a terminal or turns the line around.

    Line ends are `↵` and a line end, tabs `⇥` and a blank, other control characters their pictures; what else does not
    print is `⟨U+202E⟩`.
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(sign: str) -> str:
    if sign.isprintable():
        return sign
    code = ord(sign)
    match sign:
        case "\n":
            return "↵\n"
        case "\t":
            return "⇥ "
        case "\x7f":
            return "␡"
    return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"


def _text(content: bytes) -> str:
    text = content.decode(errors="surrogateescape")
    return "".join(f"⟨{ord(sign) - 0xDC00:02x}⟩" if "\udc80" <= sign <= "\udcff" else sign for sign in text)


def _is_whole(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_begun(content: bytes) -> bool:
    """Whether it is UTF-8 but for a last character that is not finished."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return error.end == len(content) and error.reason == "unexpected end of data"
    return False
