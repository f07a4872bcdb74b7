"""Many sessions at once, and a run that is killed again and again: what is left behind, and what is lost.

    python -m bench.soak [--sessions 50] [--concurrency 8] [--kills 10] [--write] --engine-url URL

Runs pi in bwrap on a scripted scenario through the real `polar run-task`. Tells what there was
of processes, network namespaces, mounts, unix sockets, control groups and temporary folders before and after; the
memory of polar's process over time; and how often each sample was done. Exit code 1 when anything is left or a sample
is not done exactly once. Bounded: each run has a time limit. Nothing else should run polar on the machine meanwhile,
or this in namespaces of its own.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from bench.report import machine, markdown, write_section
from polar_mitm.capture.folder import SessionFolder

TITLE = "Many sessions at once"
POLAR = Path(sys.executable).with_name("polar")
SCENARIO = """\
name: soak
instruction: Do the steps.
harness: pi
model: tiny
sandbox: bwrap
script:
  - shell: "echo one > out.txt"
  - shell: "sleep 1; echo two >> out.txt"
evaluator:
  type: command
  run: test "$(wc -l < out.txt)" = 2
"""
LIMIT_S = 1800.0


def census() -> dict[str, int]:
    """What this machine has of the things that a run makes."""
    temporary = {Path(tempfile.gettempdir()), Path("/tmp")}
    return {
        "processes of a run": sum(1 for process in psutil.process_iter() if _of_a_run(process)),
        "network namespaces": len({_namespace(process) for process in psutil.process_iter()} - {None}),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "unix sockets of polar": Path("/proc/net/unix").read_text().count("/polar-"),
        "control groups of polar": len(list(Path("/sys/fs/cgroup").glob("**/polar-*"))),
        "temporary folders of polar": sum(len(list(place.glob("polar-ses_*"))) for place in temporary),
    }


def _of_a_run(process: psutil.Process) -> bool:
    try:
        return any(word.startswith("polar-bridge") or "/ses_" in word for word in process.cmdline())
    except psutil.Error:
        return False


def _namespace(process: psutil.Process) -> str | None:
    try:
        return str(Path(f"/proc/{process.pid}/ns/net").readlink())
    except OSError:
        return None


def run(arguments: list[str], *, kill_after_s: float | None = None) -> tuple[int | None, list[tuple[float, float]]]:
    """The command's exit code, None when it was killed; and its memory in MiB by seconds."""
    began, memory = time.monotonic(), []
    with subprocess.Popen([POLAR, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        seen = psutil.Process(process.pid)
        while process.poll() is None:
            elapsed = time.monotonic() - began
            try:
                memory.append((elapsed, seen.memory_info().rss / 2**20))
            except psutil.Error:
                break
            if elapsed > (kill_after_s if kill_after_s is not None else LIMIT_S):
                process.kill()
                process.wait()
                return None, memory
            time.sleep(0.5)
        return process.wait(), memory


def done(out: Path) -> Counter[int]:
    records = [SessionFolder(path.parent).load() for path in out.glob("*/session.json")]
    return Counter(record.sample for record in records if record.status == "completed" and record.sample is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--engine-url", default=os.environ.get("POLAR_ENGINE_URL"))
    parser.add_argument("--write", action="store_true", help="put the figures into docs/benchmarks.md")
    given = parser.parse_args()
    if not given.engine_url:
        parser.error("name a running engine: --engine-url or $POLAR_ENGINE_URL")
    load = os.getloadavg()[0]
    failed = False
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        scenario = Path(folder) / "soak.yaml"
        scenario.write_text(SCENARIO)
        common = ["run-task", str(scenario), "--engine-url", given.engine_url, "--samples", str(given.sessions)]
        common += ["--concurrency", str(given.concurrency), "--json"]

        before = census()
        began = time.monotonic()
        code, memory = run([*common, "--out", f"{folder}/whole"])
        seconds = time.monotonic() - began
        after = census()
        whole = done(Path(folder) / "whole")
        failed |= code != 0 or whole != Counter(range(given.sessions))

        chance = random.Random(1)
        killed = 0
        for _ in range(given.kills):
            code, _ = run(
                [*common, "--out", f"{folder}/killed", "--resume"], kill_after_s=chance.uniform(2, seconds / 4)
            )
            killed += code is None
        code, _ = run([*common, "--out", f"{folder}/killed", "--resume"])
        last = census()
        resumed = done(Path(folder) / "killed")
        failed |= code != 0 or resumed != Counter(range(given.sessions))
        begun = len(list((Path(folder) / "killed").glob("ses_*")))
    failed |= any(after[name] > before[name] or last[name] > before[name] for name in before)
    thirds = [memory[len(memory) * third // 3 : len(memory) * (third + 1) // 3] for third in range(3)]
    means = ", ".join(f"{sum(mib for _, mib in part) / len(part):.0f}" for part in thirds if part)
    left = [[name, str(before[name]), str(after[name]), str(last[name])] for name in before]
    text = (
        f"`make soak`, on {machine()}, {os.cpu_count()} processors, load average {load:.0f} at the start.\n\n"
        f"{given.sessions} sessions of pi in bwrap, {given.concurrency} at once: {len(whole)} done in {seconds:.0f} s. "
        f"Memory of polar's process, mean MiB by thirds of the run: {means}.\n"
        f"Killed {killed} times at random and resumed: {len(resumed)} samples, each done "
        f"{max(resumed.values(), default=0)} time; {begun} sessions were begun.\n\n"
        + markdown(["left on the machine", "before", "after", "after the kills"], left)
    )
    print(text)
    if given.write:
        write_section(TITLE, text)
    sys.exit(failed)


if __name__ == "__main__":
    main()
