"""Runs the `polar` command as a person does, and looks at what it left."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson
import psutil

from polar_mitm.capture.reader import read_calls
from polar_mitm.capture.record import Call
from polar_mitm.capture.session import SessionFolder, SessionRecord
from polar_mitm.engine.local import LocalEngine

POLAR = Path(sys.executable).with_name("polar")
SCENARIOS = Path(__file__).parents[2] / "scenarios"
LIMIT_S = 240.0
"""A loaded machine of two cores took 60 s for a run that takes 3 s alone."""


def run(
    *arguments: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None, limit_s: float = LIMIT_S
) -> subprocess.CompletedProcess[str]:
    command = [str(POLAR), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, env=env, cwd=cwd, check=False)


@contextmanager
def served() -> Iterator[str]:
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


def scenario_for(harness: str) -> Path:
    """The scenario whose first turn makes the file out.txt."""
    return SCENARIOS / ("command.yaml" if harness == "command" else "write_file.yaml")


@dataclass
class Left:
    """A finished session, read back from its folder."""

    folder: SessionFolder
    session: SessionRecord
    calls: list[Call]


def left(out: Path) -> list[Left]:
    """Every session under `out`, oldest first."""
    folders = [SessionFolder(path.parent) for path in sorted(out.glob("*/session.json"))]
    return [Left(folder, folder.load(), list(read_calls(folder.calls))) for folder in folders]


def only(out: Path) -> Left:
    sessions = left(out)
    assert len(sessions) == 1
    return sessions[0]


def survivors(session_id: str) -> list[str]:
    """Command lines of processes that still carry the session in their environment or arguments."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *process.environ().values()]
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        if any(session_id in word for word in words):
            found.append(" ".join(process.cmdline()))
    return found


def rows(printed: str) -> list[dict[str, object]]:
    """The samples of `polar run-task --json`."""
    value = orjson.loads(printed)["samples"]
    assert isinstance(value, list)
    return value
