"""Trajectories on a terminal: traces, the ledger, and breaks with both sides decoded."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from polar_mitm.cli.tables import many
from polar_mitm.tokens.pieces import pieces, text_of, visible
from polar_mitm.tokens.vocabulary import Vocabulary
from polar_mitm.trajectory.digest import Digest, counted, lineage
from polar_mitm.trajectory.totals import Totals
from polar_mitm.trajectory.trace import Bin, Break

BINS = {"trained": "green", "forced": "color(69)", "context": "dim"}
"""Colours of bins; tokens in any other one are lost to training."""


def show_session(console: Console, path: Path, digest: Digest) -> None:
    """A row a trace, how its calls stood to each other, and what became of each token."""
    console.print(Text(visible(f"{path}  {_facts(digest)}"), style="bold"), soft_wrap=True)
    table = _table("trace", "lineage", "turns", "prompt", "then", "trained", "weight", "begins because")
    for trace in digest.traces:
        table.add_row(
            trace.number,
            lineage(trace.lineage),
            f"{trace.turns:,}",
            f"{trace.prompt:,}",
            f"{trace.response:,}",
            f"{trace.trained:,}",
            f"{trace.weight:.2f}" + ("" if trace.exact else " ~"),
            trace.cause or "",
        )
    console.print(table)
    if not all(trace.exact for trace in digest.traces):
        console.print(Text("~ sampled tokens stand in for re-rendered ones before a trained token", style="dim"))
    console.print(Text(f"calls   {counted(digest.relations.items())}"), soft_wrap=True)
    _show_ledger(console, digest.bins, digest.sampled)
    for name, reason, tokens in digest.reasons:
        if name != "trained":
            console.print(Text(visible(f"        {name} {tokens:,}: {reason}"), style="dim"), soft_wrap=True)
    if digest.masked:
        console.print(Text(visible(f"nothing of it is trained: {digest.masked}"), style="yellow"), soft_wrap=True)


def show_run(console: Console, digests: Mapping[Path, Digest]) -> None:
    """A row a session, under it whose it is; its outcome is the reward, or why there is none."""
    table = _table("session", "outcome", "calls", "traces", "sampled", "trained")
    for digest in digests.values():
        table.add_row(
            Text(visible(digest.session_id)).append(
                f"\n  {visible(digest.whose)}" if digest.whose else "", style="dim"
            ),
            digest.status if digest.reward is None else f"reward {digest.reward:g}",
            f"{digest.calls:,}",
            f"{len(digest.traces):,}",
            f"{digest.sampled:,}",
            f"{digest.bins.get('trained', 0):,}",
        )
    console.print(table)


def show_totals(console: Console, totals: Totals) -> None:
    """Of a run: calls by relation, breaks by cause, tokens by bin."""
    console.print()
    sizes = ((totals.sessions, "session"), (totals.calls, "call"), (totals.traces, "trace"))
    console.print(Text(", ".join(many(number, thing) for number, thing in sizes), style="bold"))
    console.print(Text(f"calls   {counted(totals.relations.items())}"), soft_wrap=True)
    console.print(Text(f"breaks  {counted(totals.causes.items())}"), soft_wrap=True)
    _show_ledger(console, totals.bins, totals.sampled)
    for caution, turns in totals.cautions.most_common():
        console.print(Text(f"caution {turns:,} trained turns: {caution}", style="yellow"), soft_wrap=True)


def show_breaks(console: Console, path: Path, breaks: Sequence[Break], vocabulary: Vocabulary | None) -> None:
    """Each with the cause and both sides around the first token that differs, which ▸ stands before."""
    console.print()
    console.print(
        Text(visible(f"{path}: {len(breaks)} break{'' if len(breaks) == 1 else 's'}"), style="bold"), soft_wrap=True
    )
    for broken in breaks:
        where = f"{broken.call_id} leaves {broken.parent_call_id} at token {broken.position:,}: "
        console.print(Text(visible(where)).append(broken.cause, style="bold yellow"), soft_wrap=True)
        console.print(Text(visible(f"  {broken.why}")), soft_wrap=True)
        shared = _shared(broken.parent_around, broken.prompt_around)
        sides = {"sampled ": (broken.parent_around, "green"), "now     ": (broken.prompt_around, "red")}
        cut = _same_text([ids[shared:] for ids, _ in sides.values()], vocabulary)
        for name, (ids, style) in sides.items():
            console.print(_side(name, ids, style, shared, vocabulary, cut=cut), soft_wrap=True)
        if cut:
            console.print(Text("  the text is the same: it is cut into other tokens, which | parts", style="dim"))


def _side(name: str, ids: Sequence[int], style: str, shared: int, vocabulary: Vocabulary | None, *, cut: bool) -> Text:
    """One side of a break on a line of its own: what a line end in the text is, its sign shows. With `cut` the tokens
    from the first that differs on are told apart, and named by their ids."""
    line = Text(f"  {name}")
    for piece in pieces(ids, vocabulary):
        if piece.start <= shared < piece.end:
            line.append("▸", style="bold")
        elif cut and piece.start > shared:
            line.append("|", style="bold")
        line.append(visible(piece.text).replace("\n", ""), style=style if piece.end > shared else "dim")
    if cut:
        line.append(f"   {' '.join(map(str, ids[shared:]))}", style="dim")
    return line


def _same_text(sides: Sequence[Sequence[int]], vocabulary: Vocabulary | None) -> bool:
    """Whether the texts are the same as far as both go."""
    if vocabulary is None:
        return False
    one, other = (text_of(ids, vocabulary) for ids in sides)
    return bool(one and other) and (one.startswith(other) or other.startswith(one))


def _facts(digest: Digest) -> str:
    reward = "no reward" if digest.reward is None else f"reward {digest.reward:g}"
    made = digest.builder if digest.rewritten == "fork" else f"{digest.builder}, {digest.rewritten}"
    return ", ".join(filter(None, [digest.whose, digest.status, reward, made]))


def _show_ledger(console: Console, bins: Mapping[Bin, int] | Mapping[str, int], sampled: int) -> None:
    line = Text("tokens  ")
    for place, (name, tokens) in enumerate(sorted(bins.items(), key=lambda item: -item[1])):
        line.append(" + " if place else "").append(f"{name} {tokens:,}", style=BINS.get(name, "yellow"))
    console.print(line.append(f"{' ' if bins else ''}= {sampled:,} sampled"), soft_wrap=True)


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        left = name in ("session", "outcome", "trace", "lineage", "begins because")
        table.add_column(name, justify="left" if left else "right", no_wrap=name not in ("session", "begins because"))
    return table


def _shared(left: Iterable[int], right: Iterable[int]) -> int:
    """How many ids both begin with."""
    place = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        place += 1
    return place
