"""`make live-matrix`: every harness x intercept mode x sandbox on a real engine; the table in docs/harnesses.md.

A cell is one run of the scenario write_file: it works when the harness ended well, made the file with its own tool, and
every call was recorded whole. Cells that this machine cannot run say why.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from polar_mitm.engine.local import LocalEngine
from polar_mitm.harnesses import HARNESSES, HarnessMissing
from polar_mitm.harnesses.base import Intercept
from polar_mitm.rollout.ways_in import refusal
from polar_mitm.sandboxes import SANDBOXES
from tests.live.lineage import compaction_scenario, wrong_with_compaction, wrong_with_sub_agent
from tests.live.polar import SCENARIOS, Left, left, run, scenario_for

DOCS = Path(__file__).parents[2] / "docs" / "harnesses.md"
MODES: tuple[Intercept, ...] = get_args(Intercept.__value__)


NO_AGENTS = "it has no sub-agents"
WITHOUT = {
    "mini-swe-agent": (NO_AGENTS, "it never compacts"),
    "command": (NO_AGENTS, "its own affair"),
}
WITHOUT_ONE = {
    "pi": (NO_AGENTS, ""),
    "pi-frozen": (NO_AGENTS, ""),
    "gemini-cli": ("", "it compresses between two prompts of a person, and has one"),
}


@dataclass(slots=True, frozen=True)
class Cell:
    harness: str
    version: str
    mode: str
    sandbox: str
    why: str
    """Why it does not work; empty where it does."""
    calls: int = 0
    made: bool = False
    seconds: float = 0.0
    cannot: bool = False
    """By design."""

    def row(self) -> str:
        works = "yes" if not self.why else f"no: {self.why}"
        made = "yes" if self.made else "no"
        name = f"{self.harness} {self.version}".strip()
        return f"| {name} | {self.mode} | {self.sandbox} | {works} | {self.calls} | {made} | {self.seconds:.1f} |"


def cells(engine_url: str, harnesses: Sequence[str]) -> Iterator[Cell]:
    for harness in harnesses:
        try:
            version, missing = HARNESSES[harness].find().version, ""
        except HarnessMissing as error:
            version, missing = "", str(error)
        for sandbox, place in SANDBOXES.items():
            problems = [missing] if missing else place.check()
            for mode in MODES:
                if problems:
                    yield Cell(harness, version, mode, sandbox, "; ".join(problems))
                elif why := refusal(mode, place):
                    yield Cell(harness, version, mode, sandbox, why.partition(": use ")[0], cannot=True)
                else:
                    yield measured(engine_url, harness, version, mode, sandbox)


def measured(engine_url: str, harness: str, version: str, mode: str, sandbox: str) -> Cell:
    with tempfile.TemporaryDirectory(prefix="polar-matrix-") as folder:
        out = Path(folder) / "out"
        started = time.monotonic()
        ended = run(
            *("run-task", scenario_for(harness), "--engine-url", engine_url, "--out", out, "--json"),
            *("--harness", harness, "--sandbox", sandbox, "--intercept", mode),
        )
        seconds = time.monotonic() - started
        there = left(out) if out.exists() else []
        if not there:
            said = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
            return Cell(harness, version, mode, sandbox, said, seconds=seconds)
        session, calls = there[0].session, there[0].calls
        text = there[0].folder.path / "workspace" / "out.txt"
        made = text.exists() and text.read_text() == "hello\n"
        invalid = [call.checks.invalid_reason or "invalid" for call in calls if not call.checks.valid]
        why = ""
        if session.status != "completed":
            why = f"{session.status}: {session.status_reason}"
        elif not made:
            why = "the file is not there"
        elif invalid:
            why = f"{len(invalid)} of {len(calls)} calls are invalid: {invalid[0]}"
        return Cell(harness, version, mode, sandbox, why, len(calls), made, seconds)


def agents(engine_url: str, harnesses: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Harness, what came of a sub-agent, what came of a compaction; each `yes, N calls` or why not."""
    for harness in harnesses:
        if harness in WITHOUT:
            yield (harness, *WITHOUT[harness])
            continue
        with tempfile.TemporaryDirectory(prefix="polar-matrix-") as folder:
            work = Path(folder)
            sub_agent, compaction = WITHOUT_ONE.get(harness, ("", ""))
            sub_agent = sub_agent or shown(
                engine_url, SCENARIOS / "sub_agent.yaml", harness, work / "sub", wrong_with_sub_agent
            )
            compaction = compaction or shown(
                engine_url, compaction_scenario(harness, work), harness, work / "compaction", wrong_with_compaction
            )
        yield harness, sub_agent, compaction


def shown(engine_url: str, scenario: Path, harness: str, out: Path, wrong: Callable[[str, Left], str]) -> str:
    ended = run("run-task", scenario, "--harness", harness, "--engine-url", engine_url, "--out", out, "--json")
    there = left(out) if out.exists() else []
    if not there:
        return f"no: {(ended.stderr.strip().splitlines() or [''])[-1]}"
    problems = wrong(harness, there[0])
    return f"no: {problems}" if problems else f"yes, {len(there[0].calls)} calls"


def written(text: str, mark: str, lines: Sequence[str]) -> str:
    """`text` with the lines between the two marks."""
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->\n"
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    return "".join([head, begin, *(f"{line}\n" for line in lines), end, tail])


def facts() -> list[str]:
    """What the harness modules say of themselves, as a table."""
    heads = ("harness", "from", "known good", "speaks (base-url, proxy)", "first prompt", "session ids", "takes")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, harness in HARNESSES.items():
        known = harness.FACTS
        source = f"{type(known.source).__name__.lower()} `{known.source.package}`" if known.source else "-"
        speaks = ", ".join(dict.fromkeys(known.providers.values()))
        ids = sorted({word for words in known.session_ids.values() for word in words})
        cells = [
            f"`{name}`",
            source,
            ", ".join(known.known_good) or "-",
            speaks,
            f"{known.first_prompt:,}" if known.first_prompt else "-",
            ", ".join(f"`{word}`" for word in ids) or "-",
            ", ".join(f"`{word}`" for word in sorted(known.takes)) or "-",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def side_requests() -> list[str]:
    lines = ["| harness | side requests, and what they get |", "|---|---|"]
    for name, harness in HARNESSES.items():
        lines.append(f"| `{name}` | {'; '.join(harness.FACTS.side_requests) or 'none'} |")
    return lines


@contextmanager
def engine() -> Iterator[str]:
    """The URL of a vLLM that serves tiny: the one at $POLAR_TEST_ENGINE_URL, else the local one."""
    if url := os.environ.get("POLAR_TEST_ENGINE_URL"):
        yield url
        return
    local = LocalEngine()
    running = asyncio.run(local.start("tiny", say=print))
    try:
        yield running.url
    finally:
        asyncio.run(local.stop())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--facts", action="store_true", help="write what the modules say, and run nothing")
    parser.add_argument("--harness", action="append", choices=list(HARNESSES), help="run these alone, write nothing")
    arguments = parser.parse_args()
    text = written(written(DOCS.read_text(), "facts", facts()), "side requests", side_requests())
    if arguments.facts:
        DOCS.write_text(text)
        return
    rows = ["| harness | mode | sandbox | works | calls | file made | seconds |", "|---|---|---|---|---|---|---|"]
    broken = 0
    with engine() as url:
        for cell in cells(url, arguments.harness or list(HARNESSES)):
            print(cell.row(), flush=True)
            rows.append(cell.row())
            broken += bool(cell.why) and not cell.cannot
        more = ["| harness | sub-agent | compaction |", "|---|---|---|"]
        for row in agents(url, arguments.harness or list(HARNESSES)):
            more.append(f"| {' | '.join(row)} |")
            print(more[-1], flush=True)
            broken += any(cell.startswith("no: ") for cell in row)
    if not arguments.harness:
        DOCS.write_text(written(written(text, "matrix", rows), "agents", more))
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
