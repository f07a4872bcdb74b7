"""python -m bench.ray [--sessions 400] [--keep DIR]

A Ray cluster of four nodes in a network namespace of its own, a gateway on each. While 120 sessions run, an actor is
killed, later a node removed. Prints its figures. Exit code 1 when a session was lost or doubled. Needs Linux, root or
user namespaces, and `pip install ray` as pinned in pyproject.toml.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from bench.ray.run import Plan, run
from bench.report import show

INSIDE = "POLAR_RAY_SHOW_INSIDE"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ray")
    parser.add_argument("--sessions", type=int, default=400)
    parser.add_argument("--keep", type=Path, help="folder for what the processes wrote, which stays")
    given = parser.parse_args()
    if not os.environ.get(INSIDE):
        _enter()
    with tempfile.TemporaryDirectory(prefix="polar-ray-", ignore_cleanup_errors=True) as temporary:
        out = (given.keep or Path(temporary)).absolute()
        out.mkdir(parents=True, exist_ok=True)
        found = asyncio.run(run(Plan(sessions=given.sessions), out))
    shown = [(name, value if isinstance(value, str) else f"{value:,}") for name, value in found.figures.items()]
    show("gateways on Ray", ("", ""), shown)
    for line in found.wrong[:50]:
        print(line, file=sys.stderr)
    print(f"{len(found.wrong)} things are wrong")
    return 1 if found.wrong else 0


def _enter() -> None:
    """This program again, where nothing but loopback is there: nodes of Ray's bind the machine's own address else."""
    root = Path(__file__).parents[2]
    os.environ |= {INSIDE: "1", "PYTHONPATH": str(root), "RAY_raylet_start_wait_time_s": "120"}
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    again = [sys.executable, "-m", "bench.ray", *sys.argv[1:]]
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    os.chdir(root)
    os.execvp("unshare", ["unshare", *user, "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *again])


if __name__ == "__main__":
    sys.exit(main())
