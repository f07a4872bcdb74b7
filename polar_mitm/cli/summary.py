"""The table at the end of a run of many samples, and how it stands while it runs."""

import time
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from polar_mitm.rollout.outcome import Outcome
from polar_mitm.rollout.summary import Row

_FIRST_OUT: Final = ("+-", "tokens", "tasks", "calls", "s")
"""Columns that a narrow terminal goes without, in this order."""


def summary_table(rows: Sequence[Row], width: int) -> Table:
    """A row for each scenario and harness; `+-` is the standard error of the mean reward.

    Where `width` characters have no room for all, columns are left out, and a line under the table names them.
    """
    left_out: list[str] = []
    table = _summary_table(rows, left_out)
    for name in _FIRST_OUT:
        if _least(table) <= width:
            break
        left_out.append(name)
        table = _summary_table(rows, left_out)
    if left_out:
        table.caption = f"left out, for a wider terminal or --json: {', '.join(left_out)}"
        table.caption_justify = "left"
    return table


def _least(table: Table) -> int:
    """The width below which a column would be cut."""
    console = Console(width=10_000)
    return Measurement.get(console, console.options, table).minimum


def _summary_table(rows: Sequence[Row], left_out: Collection[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    several = len({row.cell[2:] for row in rows}) > 1
    for name in ("scenario", "harness", *(("where",) if several else ())):
        table.add_column(name, overflow="fold", no_wrap=name == "harness", min_width=len("scenario"))
    ks = {row.k for row in rows}
    at_k = "pass@k" if len(ks) != 1 or None in ks else f"pass@{ks.pop()}"
    columns = [_columns(row, at_k) for row in rows]
    names = [name for name in columns[0] if name not in left_out] if columns else []
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for row, cells in zip(rows, columns, strict=True):
        where = (f"{row.cell.sandbox} {row.cell.intercept}",) if several else ()
        table.add_row(row.cell.scenario, row.cell.harness, *where, *(cells[name] for name in names))
    return table


def _columns(row: Row, at_k: str) -> dict[str, str]:
    """By header. Rows of different k name theirs; pass@1 stands there once."""
    own = f" @{row.k}" if at_k == "pass@k" and row.k is not None and row.pass_at_k is not None else ""
    return {
        "tasks": str(row.tasks),
        "graded": f"{row.graded}/{row.samples}",
        "pass@1": _number(row.pass_at_1),
        at_k: _number(row.pass_at_k) + own,
        "reward": _number(row.mean_reward),
        "+-": _number(row.standard_error),
        "calls": str(row.calls),
        "tokens": str(row.response_tokens),
        "s": f"{row.seconds:.1f}",
    }


def summary_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The same for `--json`."""
    return [
        {**row.cell._asdict(), **{name: value for name, value in asdict(row).items() if name != "cell"}} for row in rows
    ]


class Tally:
    """How a run stands: samples ended, mean reward, samples a minute."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.ended = 0
        self._rewards: list[float] = []
        self._began = time.monotonic()

    def add(self, outcome: Outcome) -> str:
        """Count a sample that ended just now; one line on where the run stands."""
        self.ended += 1
        if outcome.session.reward is not None:
            self._rewards.append(outcome.session.reward)
        mean = f", mean reward {sum(self._rewards) / len(self._rewards):.2f}" if self._rewards else ""
        minutes = (time.monotonic() - self._began) / 60
        return f"{self.ended}/{self.samples}{mean}, {self.ended / max(minutes, 1e-9):.1f} a minute"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
