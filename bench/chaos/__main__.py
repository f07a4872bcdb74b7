"""python -m bench.chaos [--sessions 2000] [--faults 200] [--seed 0] [--postgresql] [--write]

Prints its figures. Exit code 1 when anything was lost or doubled, a callback was not delivered or a slot not returned.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.chaos.plant import PLANTS
from bench.chaos.run import Plan, run
from bench.report import machine, markdown, show, write_section
from tests.rollout.postgres import cluster

COLUMNS = ("", "count")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos")
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between faults")
    parser.add_argument("--limit", type=float, default=1800, help="seconds for all of it")
    parser.add_argument("--keep", type=Path, help="folder for what the processes wrote, which stays")
    parser.add_argument("--postgresql", action="store_true", help="on a cluster of its own in place of SQLite")
    parser.add_argument("--write", action="store_true", help="write the figures into docs/benchmarks.md")
    parser.add_argument("--plant", choices=PLANTS, help="spoil the database before the check, which has to say so")
    given = parser.parse_args()
    plan = Plan(given.sessions, given.faults, given.seed, pause_s=given.pause, limit_s=given.limit, plant=given.plant)
    with ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="polar-chaos-"))
        if given.postgresql:
            plan = replace(plan, database=stack.enter_context(cluster()).format("postgres"))
        out = (given.keep or Path(temporary)).absolute()
        out.mkdir(parents=True, exist_ok=True)
        found = asyncio.run(run(plan, out))
    kind = "PostgreSQL" if given.postgresql else "SQLite"
    rows = [(name.strip(), f"{value:,}") for name, value in found.figures.items()]
    show(f"chaos on {kind}, seed {plan.seed}", COLUMNS, rows)
    if given.write:
        command = "make chaos ARGS=--postgresql" if given.postgresql else "make chaos"
        text = f"`{command}`, on {machine()}: {len(found.wrong)} things were wrong.\n\n"
        write_section(f"The rollout server under faults, on {kind}", text + markdown(COLUMNS, rows))
    for line in found.wrong[:50]:
        print(line, file=sys.stderr)
    print(f"{len(found.wrong)} things are wrong")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT):  # the latter is ignored by what a shell runs in the background
        signal.signal(number, signal.default_int_handler)
    sys.exit(main())
