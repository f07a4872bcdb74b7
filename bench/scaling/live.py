"""What real sessions cost on real parts: processor seconds of polar and of the agent, and the agent's memory.

Sessions of `five_turns`, few and then more of them in one process: the difference is without the start of the process.
"""

import asyncio
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from bench.scaling.costs import FIGURES
from polar_mitm.capture.find import find_calls
from polar_mitm.capture.reader import read_calls
from polar_mitm.trajectory.run import build_run

SCENARIO = Path(__file__).parent.parent.parent / "scenarios" / "five_turns.yaml"
FEW, MANY = 2, 8
LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Live:
    """Of one harness."""

    calls: float
    """Of a session."""
    prompt_tokens: float
    """Of a call."""
    polar_call_s: float
    """polar's processor seconds a call: proxy, capture, building, grading."""
    harness_call_s: float
    """The agent's, with its tools."""
    harness_bytes: int
    """Memory of one agent, at most."""
    calls_bytes: float
    """Of calls.jsonl, as it is, by token of a session's longest prompt."""
    flows_bytes: float
    """Of flows.mitm, by token of every prompt."""


@dataclass(slots=True)
class _Run:
    own_s: float = 0.0
    children_s: float = 0.0
    most_bytes: int = 0


async def measure(harness: str, engine_url: str) -> Live:
    """Raises RuntimeError when a session did not complete."""
    with tempfile.TemporaryDirectory() as scratch:
        few = await _run(harness, engine_url, FEW, Path(scratch) / "few")
        many = await _run(harness, engine_url, MANY, Path(scratch) / "many")
        files = list(find_calls(Path(scratch) / "many"))
        sessions = [list(read_calls(file)) for file in files]
        calls = [call for session in sessions for call in session]
        longest = sum(max(len(call.prompt_ids) for call in session) for session in sessions)
        calls_bytes = sum(file.stat().st_size for file in files)
        flows_bytes = sum((file.parent / "flows.mitm").stat().st_size for file in files)
        ended = [trajectory.status for trajectory in build_run(Path(scratch) / "many")]
    if ended != ["completed"] * MANY:
        raise RuntimeError(f"{harness}: of {MANY} sessions {ended}")
    more = len(calls) * (MANY - FEW) / MANY
    return Live(
        calls=len(calls) / MANY,
        prompt_tokens=sum(len(call.prompt_ids) for call in calls) / len(calls),
        polar_call_s=(many.own_s - few.own_s) / more,
        harness_call_s=(many.children_s - few.children_s) / more,
        harness_bytes=many.most_bytes,
        calls_bytes=calls_bytes / longest,
        flows_bytes=flows_bytes / sum(len(call.prompt_ids) for call in calls),
    )


async def _run(harness: str, engine_url: str, samples: int, out: Path) -> _Run:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from polar_mitm.cli import app; app()", "run-task", str(SCENARIO)),
        *("--harness", harness, "--sandbox", "host", "--engine-url", engine_url, "--out", str(out)),
        *("--samples", str(samples), "--concurrency", "1", "--json"),
        stdout=asyncio.subprocess.DEVNULL,
    )
    watched, seen = psutil.Process(process.pid), _Run()
    while process.returncode is None:
        try:
            times = watched.cpu_times()
            held = sum(_memory(child) for child in watched.children(recursive=True))
        except psutil.NoSuchProcess:
            break
        seen.own_s = max(seen.own_s, times.user + times.system)
        seen.children_s = max(seen.children_s, times.children_user + times.children_system)
        seen.most_bytes = max(seen.most_bytes, held)
        await asyncio.sleep(LOOK_S)
    if await process.wait():
        raise RuntimeError(f"polar run-task ended with {process.returncode}")
    return seen


def _memory(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().uss)
    except psutil.Error:
        return 0


async def main(engine_url: str, harnesses: list[str]) -> None:
    found = {harness: asdict(await measure(harness, engine_url)) for harness in harnesses}
    FIGURES.mkdir(exist_ok=True)
    (FIGURES / "live.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:] or ["pi", "claude-code"]))
