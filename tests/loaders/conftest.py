"""The run that every loader reads, exported once by `polar export`; and the loaders' environments."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live_engine import at_home
from tests.loaders.environments import LOADERS, ready
from tests.loaders.runs import write_run
from tests.needs import need

SCRIPTS = Path(__file__).with_name("scripts")
LIMIT_S = 300

type Load = Callable[..., str]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`exported("trl")` is what `polar export --format trl` wrote of the run, as a program of its own."""
    run = write_run(tmp_path_factory.mktemp("run"))
    made: dict[str, Path] = {}

    def export(name: str) -> Path:
        if name not in made:
            out = tmp_path_factory.mktemp("exported") / "out"
            polar = [sys.executable, "-c", "from polar_mitm.cli import app; app()"]
            command = [*polar, "export", str(run), "--format", name, "--out", str(out)]
            subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
            made[name] = out
        return made[name]

    return export


@pytest.fixture(scope="session")
def load() -> Load:
    """`load("trl", "script.py", ...)` runs it in that environment and returns what it printed."""

    def run(name: str, script: str, *arguments: object) -> str:
        with at_home():
            loader = LOADERS[name]
            need([] if ready(loader) else [f"the loader {name} is not here: make loaders"])
            command = [str(loader.python), str(SCRIPTS / script), *map(str, arguments)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert ran.returncode == 0, ran.stderr[-3000:]
        return ran.stdout

    return run
