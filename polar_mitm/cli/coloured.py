"""Tokens on a terminal: coloured by how likely the model held them, with what was forced set apart."""

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from polar_mitm.tokens.pieces import NAMES, level, pieces, spelled, visible
from polar_mitm.tokens.vocabulary import Vocabulary

COLOURS = ("color(35)", "color(106)", "color(178)", "color(208)", "bold color(196)")
"""By level. Of middling brightness, so that they can be read on black and on white."""
UNMASKED = "dim"
FORCED = "italic color(69)"
HEAD, TAIL = 80, 200
"""Tokens of a prompt that are shown: its end is what is new."""

type Spans = Sequence[tuple[int, int]]


def sampled(ids: Sequence[int], logprobs: Sequence[float], forced: Spans, vocabulary: Vocabulary | None) -> Text:
    """What the model sampled. Forced spans stand in ⟦ ⟧, so that they are told without colour too."""
    text = Text()
    inside = False
    for piece in pieces(ids, vocabulary):
        is_forced = _in(piece.start, forced)
        if is_forced != inside:
            text.append("⟦" if is_forced else "⟧", style=FORCED)
            inside = is_forced
        held = level(sum(logprobs[piece.start : piece.end])) if piece.end <= len(logprobs) else None
        text.append(visible(piece.text), style=FORCED if is_forced else UNMASKED if held is None else COLOURS[held])
    if inside:
        text.append("⟧", style=FORCED)
    return text


def context(ids: Sequence[int], vocabulary: Vocabulary | None, *, full: bool) -> Text:
    """Tokens that were given, dimmed; of a long run its head and tail."""
    text = Text(style="dim")
    for part, hidden in cut(ids, full=full):
        if hidden:
            text.append(f" … {hidden:,} tokens … ", style="not dim italic")
        for piece in pieces(part, vocabulary):
            text.append(visible(piece.text), style="not dim cyan" if piece.special else "")
    return text


def cut(ids: Sequence[int], *, full: bool, head: int = HEAD, tail: int = TAIL) -> Iterator[tuple[Sequence[int], int]]:
    """What to show of these ids: runs, and how many are left out before each."""
    if full or len(ids) <= head + tail:
        yield ids, 0
    else:
        yield ids[:head], 0
        yield ids[len(ids) - tail :], len(ids) - head - tail


def legend() -> Text:
    text = Text("colour: ")
    for name, style in zip(NAMES, COLOURS, strict=True):
        text.append(name, style=style).append("   ")
    return text.append("⟦forced⟧", style=FORCED)


def token_table(ids: Sequence[int], logprobs: Sequence[float], forced: Spans, vocabulary: Vocabulary | None) -> Table:
    """A row a token: its place, id, log-probability, and its own bytes; `⟨e2⟩` is a byte of a character in parts."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("place", "id", "logprob"):
        table.add_column(name, justify="right")
    table.add_column("mask")
    table.add_column("token", overflow="fold")
    for place, token_id in enumerate(ids):
        logprob = logprobs[place] if place < len(logprobs) else float("nan")
        held = level(logprob)
        table.add_row(
            str(place),
            str(token_id),
            Text(f"{logprob:.3f}", style="" if held is None else COLOURS[held]),
            "forced" if _in(place, forced) else "",
            Text(_one_line(spelled(vocabulary.bytes_of(token_id))) if vocabulary else ""),
        )
    return table


def _one_line(text: str) -> str:
    """With blanks to be seen: most tokens begin with one."""
    return visible(text).replace("\n", "").replace(" ", "␣")


def _in(place: int, spans: Spans) -> bool:
    return any(start <= place < end for start, end in spans)
