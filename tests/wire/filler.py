"""Text that says nothing, in place of a harness's prose: as long, on the same lines, and known by its invented words.

A line's filler depends on that line alone, so a text that grows by a line keeps the lines it had. What differs from run
to run (dates, times, ids) does not count, so a second recording of the same harness gives the same filler.
"""

import re
from hashlib import shake_128
from itertools import cycle
from typing import Final

from polar_mitm.proxy.kinds import OF_THIS, SUMMARY, TITLE

WORDS: Final = (
    ("u", "e"),
    ("ka", "mi", "so", "tu"),
    ("bel", "dor", "nim", "rav"),
    ("folu", "kemi", "pado", "tisa"),
    ("bruno", "galim", "sevek", "wodan"),
    ("halora", "jimeka", "nustel", "vopira"),
    ("dalumen", "korvasi", "pelimon", "zatrebu"),
)
"""Invented words, by length from one letter up: filler is made of these and spaces."""

KNOWN: Final = frozenset(word for words in WORDS for word in words)

# `<system-reminder>`: a name that a program looks for, like a field's, and no prose.
TAG = re.compile(r"</?[A-Za-z][\w-]{0,38}>")

# What begins Claude Code's first system block, a line of hashes; polar keeps it out of the prompt by these words.
BILLING: Final = "x-anthropic-billing-header:"

# The single words by which polar tells a side request, with the marks around them: a letter there would hide the word.
_SIGNS = "|".join(sign.pattern for sign in (TITLE, SUMMARY, OF_THIS))

_KEPT = re.compile(rf"{TAG.pattern}|{BILLING}|[^\w\s]*(?i:{_SIGNS})[^\w\s]*")

# What differs between two runs of one version, or is one digit longer in another; each becomes one fixed text.
_CHANGING = (
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "0" * 36),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{6,64}\b"), "0" * 8),
    (re.compile(r"\b(?=\w*\d)[a-z]{2,12}_[0-9A-Za-z]{16,64}\b"), "0" * 24),
    (re.compile(r"\b(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b"), "Sunday"),
    (re.compile(r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b"), "Sun"),
    (re.compile(r"\b(January|February|March|April|June|July|August|September|October|November|December)\b"), "March"),
    (re.compile(r"\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b"), "Mar"),
    (re.compile(r"\d+\.\d+ ?(ms|s|seconds)\b"), "0.0 s"),
    (re.compile(r"\d+"), "0"),
)


def filler(text: str) -> str:
    """Filler for a text. Tags stay, the beginning of the billing line, and the words that polar looks for."""
    return "\n".join(map(_line, text.split("\n")))


def is_filler(text: str) -> bool:
    """Whether there is nothing in the text but invented words and what `filler` keeps."""
    return all(word in KNOWN for word in _KEPT.sub(" ", text).split())


def settled(text: str) -> str:
    """The text without what differs from run to run."""
    for pattern, fixed in _CHANGING:
        text = pattern.sub(fixed, text)
    return text


def _line(line: str) -> str:
    if line.startswith(BILLING):
        return BILLING + _words(line.removeprefix(BILLING), BILLING)
    line = settled(line)
    pieces: list[str] = []
    end = 0
    for kept in _KEPT.finditer(line):
        pieces += [_words(line[end : kept.start()], line), kept[0]]
        end = kept.end()
    return "".join([*pieces, _words(line[end:], line)])


def _words(text: str, seed: str) -> str:
    """Words as long as the text together, with its white space at the ends. `seed` picks them."""
    core = text.strip()
    if not core:
        return text
    picks = cycle(shake_128(seed.encode()).digest(64))
    words = []
    left = len(core)
    while left:
        longest = min(len(WORDS), left)
        # A space and at least one letter must fit after a word that is not the last.
        length = left if left <= len(WORDS) else 2 + next(picks) % min(longest - 1, left - 3)
        choices = WORDS[length - 1]
        words.append(choices[next(picks) % len(choices)])
        left -= length + 1 if left > length else length
    start = text.index(core)
    return text[:start] + " ".join(words) + text[start + len(core) :]
