"""Puts the page together, a session at a time, and keeps it within its limits."""

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from polar_mitm.tokens.pieces import NAMES, pieces, visible
from polar_mitm.tokens.vocabulary import Vocabulary
from polar_mitm.trajectory.digest import Digest, counted, lineage, number
from polar_mitm.trajectory.page.spans import Budget, Run, context, sampled
from polar_mitm.trajectory.totals import Totals
from polar_mitm.trajectory.trace import Break, Trace, Trajectory, Turn

PARTS: Final = Path(__file__).with_name("parts")

TOKENS: Final = 60_000
"""Tokens on a page, which is then some 5 MB: a phone still scrolls it."""
SESSIONS: Final = 50
TRACES: Final = 100
"""Of one session, with their tokens; the others stand in the tables."""
TURN: Final = (1200, 300)
"""Tokens at the beginning and at the end of what one call sampled."""
PROMPT: Final = (100, 200)
FORKED: Final = (0, 120)
"""Of the prompt of a trace that another one leads to."""
BETWEEN: Final = (120, 120)
"""Of the context between two turns."""
MESSAGES: Final = 6
"""Of a request, the last ones."""
LETTERS: Final = 600
"""Of a message."""


@dataclass(slots=True)
class Page:
    """`add` each session, then `html`."""

    title: str
    tokens: int = TOKENS
    _totals: Totals = field(default_factory=Totals)
    _rows: list[tuple[str, str, Digest]] = field(default_factory=list)
    _sections: list[Markup] = field(default_factory=list)
    _notes: dict[str, None] = field(default_factory=dict)
    _budget: Budget = field(init=False)

    def __post_init__(self) -> None:
        self._budget = Budget(self.tokens)

    def add(self, name: str, trajectory: Trajectory, vocabulary: Vocabulary | None, note: str) -> None:
        """`name` says which session it is, and is where a person finds it; `note` where the vocabulary comes from."""
        digest = Digest.of(trajectory)
        self._totals.add(trajectory)
        anchor = f"s{len(self._rows)}" if len(self._sections) < SESSIONS else ""
        self._rows.append((anchor, name, digest))
        self._notes[note] = None
        if anchor:
            traces = trajectory.traces[:TRACES]
            section = _template("session.html.j2").render(
                anchor=anchor,
                name=name,
                digest=digest,
                ledger=_ledger(digest.bins, digest.sampled),
                traces=[_Trace(trace, vocabulary, self._budget) for trace in traces],
                more=len(trajectory.traces) - len(traces),
            )
            self._sections.append(Markup(section))

    def html(self) -> str:
        style, script = _part("page.css"), _part("page.js")
        return _template("page.html.j2").render(
            title=self.title,
            style=Markup(style),
            script=Markup(script),
            policy="; ".join(
                [
                    "default-src 'none'",
                    f"style-src '{_hash(style)}'",
                    f"script-src '{_hash(script)}'",
                    "base-uri 'none'",
                    "form-action 'none'",
                ]
            ),
            totals=self._totals,
            ledger=_ledger(self._totals.bins, self._totals.sampled),
            levels=NAMES,
            rows=self._rows,
            sections=self._sections,
            more=len(self._rows) - len(self._sections),
            full=self._budget.left == 0,
            limit=self.tokens,
            notes=list(self._notes),
        )


@dataclass(slots=True)
class _Trace:
    """A trace as the template shows it. Its tokens are taken from the budget in the order in which they are shown."""

    trace: Trace
    vocabulary: Vocabulary | None
    budget: Budget

    @property
    def number(self) -> str:
        return number(self.trace.trace_id)

    @property
    def lineage(self) -> str:
        return lineage(self.trace.lineage)

    @property
    def sampled(self) -> int:
        return sum(turn.end - turn.start for turn in self.trace.turns)

    def prompt(self) -> Run:
        head, tail = FORKED if self.trace.lineage.of_trace else PROMPT
        return context(self.trace.prompt_ids, self.vocabulary, self.budget, head=head, tail=tail)

    def turns(self) -> Iterator[tuple[Turn, int, Run, Run]]:
        """Each with the length of the context before it, that context, and what was sampled."""
        at = 0
        for turn in self.trace.turns:
            ids = self.trace.response_ids[at : turn.start]
            before = context(ids, self.vocabulary, self.budget, head=BETWEEN[0], tail=BETWEEN[1])
            own = sampled(self.trace, turn.start, turn.end, self.vocabulary, self.budget, head=TURN[0], tail=TURN[1])
            yield turn, len(ids), before, own
            at = turn.end

    def messages(self) -> list[tuple[str, str]]:
        """Role and text of the last messages, and of the reply."""
        return [_message(message) for message in [*self.trace.messages[-MESSAGES:], self.trace.reply] if message]

    @property
    def earlier(self) -> int:
        return max(0, len(self.trace.messages) - MESSAGES)

    @property
    def tools(self) -> list[str]:
        return [str(tool.get("function", tool).get("name")) for tool in self.trace.tools]

    def sides(self, broken: Break) -> list[tuple[str, Markup]]:
        """What was sampled and what stands there now: what both have, then what differs, marked."""
        shared = next(
            (
                place
                for place, (one, other) in enumerate(zip(broken.parent_around, broken.prompt_around, strict=False))
                if one != other
            ),
            min(len(broken.parent_around), len(broken.prompt_around)),
        )
        return [
            ("sampled", _side(broken.parent_around, shared, self.vocabulary)),
            ("now", _side(broken.prompt_around, shared, self.vocabulary)),
        ]


def _side(ids: Sequence[int], shared: int, vocabulary: Vocabulary | None) -> Markup:
    text = [(visible(piece.text), piece.end > shared) for piece in pieces(ids, vocabulary)]
    same = "".join(part for part, differs in text if not differs)
    return Markup("{}<mark>{}</mark>").format(same, "".join(part for part, differs in text if differs))


def _message(message: Mapping[str, Any]) -> tuple[str, str]:
    content = message.get("content") or ""
    said = [content if isinstance(content, str) else orjson.dumps(content, default=str).decode()]
    if message.get("reasoning"):
        said.insert(0, f"(thinking) {message['reasoning']}")
    said += [orjson.dumps(tool.get("function", tool)).decode() for tool in message.get("tool_calls") or []]
    text = "\n".join(part for part in said if part)
    more = len(text) - LETTERS
    return str(message.get("role")), text if more <= 0 else f"{text[:LETTERS]} … {more:,} characters"


def _ledger(bins: Mapping[Any, int], total: int) -> list[tuple[str, int, float, float]]:
    """By size: bin, tokens, and from where to how far it reaches on a bar that is 100 wide."""
    rows, at = [], 0.0
    for name, tokens in sorted(bins.items(), key=lambda item: -item[1]):
        width = 100 * tokens / total if total else 0.0
        rows.append((str(name), tokens, at, width))
        at += width
    return rows


def _hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _part(name: str) -> str:
    return (PARTS / name).read_text(encoding="utf-8")


def _shown(value: object) -> object:
    """Text of others can hold signs that turn a line around; what is markup was made here."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


_ENVIRONMENT: Final = Environment(
    loader=FileSystemLoader(PARTS),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_shown,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters["count"] = lambda value: f"{value:,}"
_ENVIRONMENT.filters["of"] = lambda value, noun: f"{value:,} {noun}{'' if value == 1 else 's'}"
_ENVIRONMENT.filters["counted"] = lambda counts: counted(counts.items())
_template = _ENVIRONMENT.get_template
