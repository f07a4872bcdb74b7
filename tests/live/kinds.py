"""`make live-kinds`: sub-agents and compactions of every harness that has them, on a real engine; the table in
docs/harnesses.md.

Both are scripted (`scenarios/sub_agent.yaml`, `scenarios/compaction.yaml`), and `lineage` says what must come of them.
Each row is written as soon as it is measured.
"""

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from polar_mitm.harnesses import HARNESSES, HarnessMissing
from tests.live.compress import in_a_terminal
from tests.live.lineage import compaction_scenario, wrong_with_compaction, wrong_with_sub_agent
from tests.live.page import Row, Table, line
from tests.live.polar import SCENARIOS, Left, left, run, served

KINDS = Table(
    "agents",
    ("harness", "sub-agent", "compaction"),
    lambda row: (row[0].partition(" ")[0],),
    [(one,) for one in HARNESSES],
)
NO_AGENTS = "none: it has no sub-agents"
WITHOUT = {
    "pi": (NO_AGENTS, ""),
    "pi-frozen": (NO_AGENTS, ""),
    "mini-swe-agent": (NO_AGENTS, "none: it never compacts"),
    "command": ("none: its own affair", "none: its own affair"),
}


def measured(harness: str, engine_url: str) -> Row:
    """The row of this harness: for each of both what was recorded, or what is wrong with it."""
    sub_agent, compaction = WITHOUT.get(harness, ("", ""))
    try:
        title = f"{harness} {HARNESSES[harness].find().version}".strip()
    except HarnessMissing as missing:
        return (harness, sub_agent or f"no: {missing}", compaction or f"no: {missing}")
    with tempfile.TemporaryDirectory(prefix="polar-kinds-") as folder:
        work = Path(folder)
        if not sub_agent:
            sub_agent = shown(SCENARIOS / "sub_agent.yaml", harness, engine_url, work / "sub", wrong_with_sub_agent)
        if not compaction and harness == "gemini-cli":
            there = asyncio.run(in_a_terminal(engine_url, work / "compaction"))
            compaction = told(there, wrong_with_compaction(harness, there)) + ", in a terminal"
        elif not compaction:
            scenario = compaction_scenario(harness, work)
            compaction = shown(scenario, harness, engine_url, work / "compaction", wrong_with_compaction)
    return (title, sub_agent, compaction)


def shown(scenario: Path, harness: str, engine_url: str, out: Path, wrong: Callable[[str, Left], str]) -> str:
    ended = run("run-task", scenario, "--harness", harness, "--engine-url", engine_url, "--out", out, "--json")
    there = left(out) if out.exists() else []
    if not there:
        return f"no: {(ended.stderr.strip().splitlines() or [f'exit code {ended.returncode}'])[-1]}"
    return told(there[0], wrong(harness, there[0]))


def told(there: Left, problems: str) -> str:
    counted = Counter(call.origin.kind for call in there.calls)
    return (
        f"no: {problems}" if problems else f"yes: {', '.join(f'{number} {kind}' for kind, number in counted.items())}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--harness", action="append", choices=list(HARNESSES))
    arguments = parser.parse_args()
    broken = 0
    with served() as url:
        for harness in arguments.harness or HARNESSES:
            row = measured(harness, url)
            print(line(row), flush=True)
            KINDS.put([row])
            broken += any(cell.startswith("no: ") for cell in row)
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
