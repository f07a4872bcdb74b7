"""`make live-matrix`: every harness x intercept mode x sandbox on a real engine; the table in docs/harnesses.md.

A cell is one run of the scenario write_file: it works when the harness ended well, made the file with its own tool, and
every call was recorded whole. Cells that cannot work say why. Each row is written as soon as it is measured.
"""

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import get_args

from polar_mitm.harnesses import HARNESSES, HarnessMissing
from polar_mitm.harnesses.base import Intercept
from polar_mitm.rollout.ways_in import refusal
from polar_mitm.sandboxes import SANDBOXES
from polar_mitm.sandboxes.base_image import BASE_IMAGE
from tests.live.page import DOCS, Row, Table, line
from tests.live.polar import left, run, scenario_for, served

MODES: tuple[Intercept, ...] = get_args(Intercept.__value__)
MATRIX = Table(
    "matrix",
    ("harness", "mode", "sandbox", "works", "calls", "file made", "seconds"),
    lambda row: (row[0].partition(" ")[0], row[1], row[2]),
    [(harness, mode, sandbox) for harness, sandbox, mode in product(HARNESSES, SANDBOXES, MODES)],
)
PYTHON_IMAGE = f"""\
FROM {BASE_IMAGE}
RUN apt-get update && apt-get install -y --no-install-recommends python3 && rm -rf /var/lib/apt/lists/*
"""
CANNOT = "cannot: "
"""By design, as opposed to `no: `, which is a run that failed."""


@dataclass(slots=True, frozen=True)
class Cell:
    harness: str
    mode: Intercept
    sandbox: str

    @property
    def name(self) -> Row:
        return (self.harness, self.mode, self.sandbox)


def measured(cell: Cell, engine_url: str) -> Row:
    """The row of this cell."""
    place = SANDBOXES[cell.sandbox]
    try:
        title = f"{cell.harness} {HARNESSES[cell.harness].find().version}".strip()
    except HarnessMissing as missing:
        return (cell.harness, cell.mode, cell.sandbox, f"no: {missing}", "", "", "")
    start = (title, cell.mode, cell.sandbox)
    if problems := place.check():
        return (*start, f"no: {'; '.join(problems)}", "", "", "")
    if why := refusal(cell.mode, place):
        return (*start, CANNOT + why.partition(": use ")[0], "", "", "")
    with tempfile.TemporaryDirectory(prefix="polar-matrix-") as folder:
        return (*start, *_ran(cell, engine_url, Path(folder) / "out"))


def _ran(cell: Cell, engine_url: str, out: Path) -> Row:
    scenario = scenario_for(cell.harness)
    if (cell.harness, cell.sandbox) == ("command", "container"):
        scenario = _with_python(scenario, out.parent)
    started = time.monotonic()
    ended = run(
        *("run-task", scenario, "--engine-url", engine_url, "--out", out, "--json"),
        *("--harness", cell.harness, "--sandbox", cell.sandbox, "--intercept", cell.mode),
    )
    seconds = f"{time.monotonic() - started:.1f}"
    there = left(out) if out.exists() else []
    if not there:
        said = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
        return (f"no: {said}", "0", "no", seconds)
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
    return (f"no: {why}" if why else "yes", str(len(calls)), "yes" if made else "no", seconds)


def _with_python(scenario: Path, folder: Path) -> Path:
    """The same scenario with an image of its own, for its program is Python's, which polar's image has not."""
    (folder / "image").mkdir()
    (folder / "image" / "Dockerfile").write_text(PYTHON_IMAGE)
    own = folder / scenario.name
    own.write_text(f"{scenario.read_text()}container: {{build: image}}\n")
    return own


def asked(arguments: argparse.Namespace) -> list[Cell]:
    """The cells to measure, in the table's order."""
    there = MATRIX.rows(DOCS.read_text())
    known = {name for name, row in there.items() if not row[3].startswith("no: ")}
    cells = [
        Cell(harness, mode, sandbox)
        for harness, sandbox, mode in product(
            arguments.harness or HARNESSES, arguments.sandbox or SANDBOXES, arguments.mode or MODES
        )
    ]
    return [cell for cell in cells if not (arguments.missing and cell.name in known)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--harness", action="append", choices=list(HARNESSES))
    parser.add_argument("--sandbox", action="append", choices=list(SANDBOXES))
    parser.add_argument("--mode", action="append", choices=MODES)
    parser.add_argument("--missing", action="store_true", help="only what the table has not, or has as failed")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="cells at a time")
    arguments = parser.parse_args()
    broken = 0
    with served() as url, ThreadPoolExecutor(arguments.at_once) as pool:
        running = [pool.submit(measured, cell, url) for cell in asked(arguments)]
        for done in as_completed(running):
            row = done.result()
            print(line(row), flush=True)
            MATRIX.put([row])
            broken += row[3].startswith("no: ")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
