"""python -m bench.scale [--lines 100 300 1000 3000 10000] [--whole]

What a session costs by the length of the line. Writes a section of docs/benchmarks.md, docs/scale.svg and
docs/figures/scale.json. Exit code 1 when the longest line costs more than twice what the shortest one does.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from bench.report import PAGE, machine, markdown, show, write_section
from bench.scale.plot import plot
from bench.scale.run import Figures, Plan, measure, memory_in_line
from polar_mitm.json_text import dumps

COLUMNS = (
    "sessions in line",
    "measured",
    "in flight",
    "submit, server ms",
    "run, server ms",
    "gateway ms",
    "seconds",
)
WINDOW = (400, 1200)
"""Of the lines that are much longer."""
SHORT, FEW, MANY = 100, 1, 9
"""Two runs of so many sessions with so many calls each: what differs is the calls."""
LINED = (1000, 6000)
"""Sessions in line between which the memory of each is measured."""
TEXT = """\
`make bench-scale`, on {machine}: tasks of one session each stand in line, then two gateways run up to
{in_flight} of them at once. The harness only sleeps and makes {calls} calls; the engine is a stand-in; the server, its
database (SQLite), the proxy, the capture, the traces, the reports and a callback for each task are real. Milliseconds
are of one processor for one session; other work on the machine makes them more, so compare the rows. Lines of more
than {last:,} are measured from the end of session {first} to that of session {last:,}, the others in line behind them.

{table}
![Cost of a session by the length of the line](scale.svg)

A call's part is that of runs with {few} and {many} calls each; the harness's own client is in it. Database bytes are
what the file and its log grow by, rows those of all tables.

| what | comes to |
| --- | ---: |
{costs}
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scale")
    parser.add_argument("--lines", type=int, nargs="+", default=[100, 300, 1000, 3000, 10_000])
    parser.add_argument("--whole", action="store_true", help="run all sessions of every line to the end")
    given = parser.parse_args()
    found = [_measure(_plan(length, whole=given.whole)) for length in sorted(given.lines)]
    relayed, few, many = (
        _measure(Plan(SHORT, relayed=True)),
        _measure(Plan(SHORT, calls=FEW)),
        _measure(Plan(SHORT, calls=MANY)),
    )
    with tempfile.TemporaryDirectory(prefix="polar-scale-") as out:
        in_line = asyncio.run(memory_in_line(*LINED, Path(out)))
    costs = _costs(found, relayed, few, many) | {"server_memory_bytes_per_session_in_line": in_line}
    rows = [_row(figures) for figures in found]
    show("scale", COLUMNS, rows)
    _write(found, costs, rows)
    first, last = found[0], found[-1]
    grown = (last.server_ms + last.gateway_ms) / (first.server_ms + first.gateway_ms)
    print(f"a session with {last.sessions:,} in line costs {grown:.2f} times what one with {first.sessions:,} does")
    return 1 if grown > 2 else 0


def _plan(length: int, *, whole: bool) -> Plan:
    return Plan(length, window=None if whole or length <= WINDOW[1] else WINDOW)


def _measure(plan: Plan) -> Figures:
    with tempfile.TemporaryDirectory(prefix="polar-scale-") as out:
        figures = asyncio.run(measure(plan, Path(out)))
    print(figures, flush=True)
    return figures


def _row(figures: Figures) -> tuple[str, ...]:
    return (
        f"{figures.sessions:,}",
        f"{figures.measured:,}",
        f"{figures.in_flight}",
        f"{1000 * figures.submit_s / figures.sessions:.1f}",
        f"{1000 * figures.server_s / figures.measured:.1f}",
        f"{figures.gateway_ms:.1f}",
        f"{figures.wall_s:.0f}",
    )


def _costs(found: list[Figures], relayed: Figures, few: Figures, many: Figures) -> dict[str, float]:
    """What one session, one call or one place in line comes to, of the longest line that tells it."""
    longest = found[-1]
    wholes = [figures for figures in found if figures.measured == figures.sessions]
    small, whole = wholes[0], wholes[-1]
    more = whole.sessions - small.sessions
    call_ms = (many.gateway_ms - few.gateway_ms) / (many.calls - few.calls)
    return {
        "server_cpu_ms_per_session": longest.server_ms,
        "gateway_cpu_ms_per_session": longest.gateway_ms,
        "gateway_cpu_ms_per_call": call_ms,
        "gateway_cpu_ms_per_session_without_calls": longest.gateway_ms - longest.calls * call_ms,
        "calls_per_session": longest.calls,
        "database_bytes_per_session": (whole.database_bytes - small.database_bytes) / more,
        "database_rows_per_session": (whole.database_rows or 0) / whole.sessions,
        "files_bytes_per_session": whole.files_bytes / whole.sessions,
        "network_bytes_per_session": (relayed.network_bytes or 0) / relayed.sessions,
        "gateway_memory_bytes_per_session_in_flight": longest.in_flight_bytes / longest.in_flight,
    }


def _write(found: list[Figures], costs: dict[str, float], rows: list[tuple[str, ...]]) -> None:
    docs = PAGE.parent
    (docs / "figures").mkdir(exist_ok=True)
    lines = [asdict(figures) for figures in found]
    (docs / "figures" / "scale.json").write_bytes(
        dumps({"machine": machine(), "costs": costs, "lines": lines}, indent=True) + b"\n"
    )
    at = [figures.sessions for figures in found]
    drawn = {
        "gateway": [figures.gateway_ms for figures in found],
        "server": [figures.server_ms for figures in found],
    }
    if len(at) > 1:
        svg = plot("Cost of a session by the length of the line", "sessions in line", "processor ms", at, drawn)
        (docs / "scale.svg").write_text(svg)
    text = TEXT.format(
        machine=machine(),
        in_flight=2 * Plan(1).running,
        calls=Plan(1).calls,
        few=FEW,
        many=MANY,
        first=WINDOW[0],
        last=WINDOW[1],
        table=markdown(COLUMNS, rows),
        costs="\n".join(f"| {name.replace('_', ' ')} | {value:,.1f} |" for name, value in costs.items()),
    )
    write_section("Scale of the rollout server", text)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT):  # the latter is ignored by what a shell runs in the background
        signal.signal(number, signal.default_int_handler)
    sys.exit(main())
