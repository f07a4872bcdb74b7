"""The table at the end of a run of many samples, and how it stands while it runs."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from polar_mitm.rollout.outcome import Outcome
from polar_mitm.rollout.summary import Row


def summary_table(rows: Sequence[Row]) -> Table:
    """A row for each scenario and harness; `+-` is the standard error of the mean reward."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    several = len({row.cell[2:] for row in rows}) > 1
    for name in ("scenario", "harness", *(("where",) if several else ())):
        table.add_column(name, overflow="fold", no_wrap=name == "harness", min_width=len("scenario"))
    for name in ("tasks", "graded", "pass@1", "pass@k", "reward", "+-", "calls", "tokens", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.cell.scenario,
            row.cell.harness,
            *((f"{row.cell.sandbox} {row.cell.intercept}",) if several else ()),
            str(row.tasks),
            f"{row.graded}/{row.samples}",
            _number(row.pass_at_1),
            _number(row.pass_at_k),
            _number(row.mean_reward),
            _number(row.standard_error),
            str(row.calls),
            str(row.response_tokens),
            f"{row.seconds:.1f}",
        )
    return table


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
