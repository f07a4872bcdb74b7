"""python -m bench.chaos [--sessions 2000] [--faults 200] [--seed 0] [--keep DIR]

Prints its figures. Exit code 1 when anything was lost or doubled, a callback was not delivered or a slot not returned.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from bench.chaos.run import Plan, run
from bench.report import show


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos")
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between faults")
    parser.add_argument("--limit", type=float, default=1800, help="seconds for all of it")
    parser.add_argument("--keep", type=Path, help="folder for what the processes wrote, which stays")
    given = parser.parse_args()
    plan = Plan(given.sessions, given.faults, given.seed, pause_s=given.pause, limit_s=given.limit)
    with tempfile.TemporaryDirectory(prefix="polar-chaos-") as temporary:
        out = (given.keep or Path(temporary)).absolute()
        out.mkdir(parents=True, exist_ok=True)
        found = asyncio.run(run(plan, out))
    show(f"chaos, seed {plan.seed}", ("", "count"), [(name, f"{value:,}") for name, value in found.figures.items()])
    for line in found.wrong[:50]:
        print(line, file=sys.stderr)
    print(f"{len(found.wrong)} things are wrong")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
