"""The tables that commands print, and the same as rows for `--json`."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from polar_mitm.capture.record import Call
from polar_mitm.proxy.lines import printable
from polar_mitm.rollout.outcome import Outcome, mean_logprob


def outcomes_table(outcomes: Iterable[Outcome]) -> Table:
    """A row a sample: calls, prompt and response tokens, mean logprob, reward, seconds.

    `outcome_lines` follow it: a terminal of 80 columns has no room for folders and finish reasons.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("sample", "status", "calls", "prompt", "response", "logprob", "reward", "seconds"):
        table.add_column(name, justify="left" if name == "status" else "right", no_wrap=True)
    for row in outcome_rows(outcomes):
        table.add_row(
            str(row["sample"]),
            f"[{'green' if row['status'] == 'completed' else 'red'}]{row['status']}[/]",
            str(row["calls"]),
            str(row["prompt_tokens"]),
            str(row["response_tokens"]),
            _number(row["mean_logprob"]),
            _number(row["reward"]),
            f"{row['seconds']:.1f}",
        )
    return table


def outcome_lines(outcomes: Iterable[Outcome]) -> list[str]:
    """A line a sample: where it lies, and how its calls finished."""
    lines = []
    for row in outcome_rows(outcomes):
        finished = ", ".join(f"{count} {reason}" for reason, count in row["finish_reasons"].items())
        lines.append(f"{row['sample']:6}  {row['folder']}  {finished}")
    return lines


def outcome_rows(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """The session records with what the table adds; token counts are sums over the calls, seconds are wall time."""
    rows = []
    for outcome in outcomes:
        session = outcome.session
        rows.append(
            {
                **session.model_dump(by_alias=True),
                "mean_logprob": outcome.mean_logprob,
                "finish_reasons": outcome.finish_reasons,
                "seconds": outcome.seconds,
                "folder": str(shown(outcome.folder)),
            }
        )
    return rows


def shown(path: Path) -> Path:
    """The path as a person would type it here: relative when it lies below the working folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def many(number: int, thing: str) -> str:
    """`1 session`, `2 sessions`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def calls_table(rows: Iterable[dict[str, Any]]) -> Table:
    """A row a call, numbered from 1. `omitted` counts what the model was not given; `--json` names it."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for name in ("call", "prompt", "response", "logprob", "finish", "valid", "omitted", "seconds"):
        table.add_column(
            name, justify="left" if name in ("finish", "valid") else "right", min_width=max(map(len, name.split()))
        )
    table.columns[4].min_width = len("tool_calls")
    table.add_column("what", no_wrap=True, ratio=1)
    for number, row in enumerate(rows, 1):
        table.add_row(
            str(number),
            str(row["prompt_tokens"]),
            str(row["response_tokens"]),
            _number(row["mean_logprob"]),
            Text(printable(row["finish_reason"] or "-")),
            "yes" if row["valid"] else "[yellow]no[/]",
            str(len(row["not_carried"])),
            f"{row['seconds']:.1f}",
            Text(printable(_what(row))),
        )
    return table


def _what(row: dict[str, Any]) -> str:
    return str(row["what"]) if row["kind"] == "turn" else f"{row['kind']}: {row['what']}"


def call_row(call: Call) -> dict[str, Any]:
    response = call.response
    if call.error:
        what = f"{call.error.fault}: {call.error.what}"
    elif response and response.tool_calls:
        what = ", ".join(f"{tool['function']['name']} {tool['function']['arguments']}" for tool in response.tool_calls)
    else:
        what = response.text if response else ""
    return {
        "call_id": call.identity.call_id,
        "parent_call_id": call.parent_call_id,
        "provider": call.origin.provider,
        "kind": call.origin.kind,
        "kind_reason": call.origin.kind_reason,
        "prompt_tokens": len(call.prompt_ids),
        "response_tokens": len(response.response_ids) if response else 0,
        "mean_logprob": mean_logprob([call]),
        "finish_reason": response.finish_reason if response else None,
        "valid": call.checks.valid,
        "invalid_reason": call.checks.invalid_reason,
        "delivery": call.delivery.status,
        "seconds": call.identity.finished_at - call.identity.started_at,
        "not_carried": [lost.model_dump() for lost in call.request.not_carried],
        "what": " ".join(what.split())[:80],
    }


def not_carried(rows: Iterable[dict[str, Any]]) -> dict[str, int]:
    """By field of the requests: on how many of these calls the model was not given it, the most frequent first."""
    counts = Counter(field for row in rows for field in {lost["field"] for lost in row["not_carried"]})
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
