"""Real harnesses that wait long for an answer: does the keep-alive hold each of them until it is there?

    python -m bench.keepalive_harnesses [--seconds 1260] [HARNESS ...]

Each harness runs a task of one question through the real `polar run-task`, all at the same time, each in front of a
stand-in engine that is silent for so long and then answers. A harness has waited when it ended well, asked its question
once, and got the answer. Exit code 1 when one has not. What 20 minutes or more gave is written into docs/proxy.md.
"""

import argparse
import asyncio
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.report import show
from polar_mitm.capture.folder import SessionFolder
from polar_mitm.capture.reader import read_calls
from polar_mitm.capture.record import Call
from polar_mitm.harnesses import HARNESSES
from tests.fakes.vllm import FakeVllm, Reply

POLAR = Path(sys.executable).with_name("polar")
DOCS = Path(__file__).parent.parent / "docs" / "proxy.md"
BEGIN, END = "<!-- keep-alives -->\n", "<!-- end of keep-alives -->\n"
WAITING = ("claude-code", "codex", "qwen-code", "pi", "gemini-cli", "opencode")
PROMISED_S = 1200.0
ROOM_S = 600.0
"""For a harness to start, and to do what it will after the answer."""
ANSWER = "It is Paris."
SCENARIO = f"""\
name: keepalive
instruction: What is the capital of France?
harness: pi
sandbox: bwrap
intercept: base-url
model: tiny
evaluator:
  type: command
  run: test "$POLAR_ANSWER" = "{ANSWER}"
"""
COLUMNS = ("harness", "version", "API", "silent for, s", "asked", "held")


@dataclass(slots=True, frozen=True)
class Waited:
    harness: str
    turns: list[Call]
    why: str
    """What went wrong; empty where it waited."""

    def row(self) -> tuple[str, ...]:
        turns = self.turns
        longest = max((call.identity.finished_at - call.identity.started_at for call in turns), default=0.0)
        api = turns[0].origin.provider if turns else "-"
        version = HARNESSES[self.harness].find().version
        asked = "once" if len(turns) == 1 else f"{len(turns)} times"
        return self.harness, version, api, f"{longest:,.0f}", asked, f"no: {self.why}" if self.why else "yes"


async def waited(harness: str, seconds: float, folder: Path) -> Waited:
    scenario, out = folder / "keepalive.yaml", folder / harness
    scenario.write_text(SCENARIO)
    async with FakeVllm(Reply(ANSWER, delay_s=seconds)) as engine:
        run = await asyncio.create_subprocess_exec(
            *(POLAR, "run-task", scenario, "--harness", harness, "--engine-url", engine.url, "--out", out),
            *("--timeout", str(seconds + ROOM_S)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await run.communicate()
    sessions = [SessionFolder(path.parent) for path in out.glob("*/session.json")] if out.exists() else []
    if not sessions:
        return Waited(harness, [], (said.decode().strip().splitlines() or [f"exit code {run.returncode}"])[-1])
    session = sessions[0].load()
    turns = [call for call in read_calls(sessions[0].calls) if call.origin.kind not in ("title", "classifier")]
    left = sum(call.delivery.status != "delivered" for call in turns)
    if left:
        why = f"left {left} of {len(turns)} calls"
    elif session.status != "completed":
        why = f"{session.status}: {session.status_reason}"
    else:
        why = "" if len(turns) == 1 else "asked more than once"
    return Waited(harness, turns, why)


def publish(rows: list[tuple[str, ...]]) -> None:
    """Put the rows into the table of docs/proxy.md, in the place of those of the same harnesses."""
    head, _, rest = DOCS.read_text().partition(BEGIN)
    table, _, tail = rest.partition(END)
    kept = {line.split(" | ")[0].removeprefix("| "): line for line in table.splitlines()[2:]}
    kept |= {row[0]: f"| {' | '.join(row)} |" for row in rows}
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *kept.values()]
    DOCS.write_text("".join([head, BEGIN, *(f"{line}\n" for line in lines), END, tail]))


async def main(harnesses: list[str], seconds: float) -> int:
    with tempfile.TemporaryDirectory(prefix="polar-keepalive-") as folder:
        outcomes = await asyncio.gather(*(waited(harness, seconds, Path(folder)) for harness in harnesses))
    rows = [outcome.row() for outcome in outcomes]
    show(f"silent for {seconds:,.0f} s", COLUMNS, rows)
    if seconds >= PROMISED_S:
        publish(rows)
    return int(any(outcome.why for outcome in outcomes))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("harness", nargs="*", help="All six when left out.")
    parser.add_argument("--seconds", type=float, default=1260.0)
    chosen = parser.parse_args()
    raise SystemExit(asyncio.run(main(chosen.harness or list(WAITING), chosen.seconds)))
