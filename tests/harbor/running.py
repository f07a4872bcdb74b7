"""harbor itself, in its own environment: `harbor run` on task folders, with the oracle and podman."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polar_mitm.sandboxes import SANDBOXES
from polar_mitm.sandboxes.base_image import BASE_IMAGE
from polar_mitm.sandboxes.images import has_image, run_arguments
from tests.live_engine import at_home
from tests.loaders.environments import LOADERS, ready
from tests.needs import need

TASKS = Path(__file__).with_name("tasks")
LIMIT_S = 900
HARBOR = "harbor"


class _Loader:
    @property
    def python(self) -> Path:
        with at_home():
            return LOADERS[HARBOR].python


LOADER = _Loader()


def need_harbor() -> None:
    with at_home():
        there = ready(LOADERS[HARBOR])
    need([] if there else ["harbor is not here, or not as its lock file has it: run `make loaders`"])


def need_images() -> None:
    need(SANDBOXES["container"].check())
    need([] if has_image(BASE_IMAGE) else [f"there is no image {BASE_IMAGE}: make it with `polar sandbox image`"])


@dataclass(slots=True, frozen=True)
class Trial:
    rewards: dict[str, float] | None
    error: str | None
    """The exception's type. There may be rewards all the same: an agent that took too long is graded."""


def harbor_run(tasks: Path, out: Path) -> dict[str, Trial]:
    """Every task of a folder, by its name."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(out),
        "HARBOR_TELEMETRY": "0",
        "PYTHONPATH": str(Path(__file__).parent),
        "PODMAN_RUN_ARGUMENTS": json.dumps(run_arguments(BASE_IMAGE)),
    }
    program = LOADER.python.with_name("harbor")
    options = ["--agent", "oracle", "--env", "podman_environment:PodmanEnvironment", "--yes", "--quiet"]
    command = [str(program), "run", "--path", str(tasks), *options, "--n-concurrent", "2"]
    command += ["--jobs-dir", str(out), "--job-name", "job"]
    done = subprocess.run(
        command, env=environment, cwd=out, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    results = [json.loads(path.read_text()) for path in out.glob("job/*/result.json")]
    assert results, done.stdout + done.stderr
    return {Path(result["task_id"]["path"]).name: _trial(result) for result in results}


def _trial(result: dict[str, Any]) -> Trial:
    verified, failed = result["verifier_result"], result["exception_info"]
    return Trial(verified and verified["rewards"], failed and failed["exception_type"])
