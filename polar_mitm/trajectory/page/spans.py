"""Tokens as HTML: a span a piece, with its level of log-probability and whether it is trained."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from polar_mitm.tokens.pieces import level, pieces, visible
from polar_mitm.tokens.vocabulary import Vocabulary
from polar_mitm.trajectory.trace import Trace

type Spans = Callable[[int, int], Markup]


@dataclass(slots=True)
class Budget:
    """How many tokens the page may still show: each is some 60 bytes of it."""

    left: int

    def take(self, wanted: int) -> int:
        given = min(wanted, self.left)
        self.left -= given
        return given


@dataclass(slots=True, frozen=True)
class Run:
    """Tokens that stand together: those of the beginning, how many are left out, those of the end."""

    head: Markup
    hidden: int
    tail: Markup


def context(ids: Sequence[int], vocabulary: Vocabulary | None, budget: Budget, *, head: int, tail: int) -> Run:
    """Tokens that were given: not sampled, not trained."""

    def spans(start: int, end: int) -> Markup:
        made = []
        for piece in pieces(ids[start:end], vocabulary):
            text = escape(visible(piece.text))
            made.append(Markup("<i>{}</i>").format(text) if piece.special else text)
        return Markup("").join(made)

    return _run(len(ids), budget, spans, head=head, tail=tail)


def sampled(
    trace: Trace, start: int, end: int, vocabulary: Vocabulary | None, budget: Budget, *, head: int, tail: int
) -> Run:
    """Tokens [start, end) of the trace's response, which one call sampled."""

    def spans(first: int, last: int) -> Markup:
        return Markup("").join(_sampled(trace, start + first, start + last, vocabulary))

    return _run(end - start, budget, spans, head=head, tail=tail)


def _sampled(trace: Trace, start: int, end: int, vocabulary: Vocabulary | None) -> Iterator[Markup]:
    """The class says level and mask; `data-t` what a tap tells: ids and the log-probability of each."""
    for piece in pieces(trace.response_ids[start:end], vocabulary):
        first, last = start + piece.start, start + piece.end
        logprobs = trace.logprobs[first:last]
        held = level(sum(logprobs))
        trained = all(trace.loss_mask[first:last])
        told = ", ".join(
            f"{token_id} {logprob:.3f}"
            for token_id, logprob in zip(trace.response_ids[first:last], logprobs, strict=True)
        )
        name = f"{'t' if trained else 'm'} {'lx' if held is None else f'l{held}'}"
        yield Markup('<b class="{}" data-t="{} · {}">{}</b>').format(name, first, told, visible(piece.text))


def _run(length: int, budget: Budget, spans: Spans, *, head: int, tail: int) -> Run:
    """All of it where it is short and the budget allows, else head and tail."""
    shown = budget.take(min(length, head + tail))
    if shown == length:
        return Run(spans(0, length), 0, Markup(""))
    first = shown * head // (head + tail)
    return Run(spans(0, first), length - shown, spans(length - (shown - first), length))
