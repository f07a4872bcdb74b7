"""Where a row is worked on: its image, in which the repository lies at `/testbed`."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from polar_mitm.sandboxes import images
from polar_mitm.sandboxes.base import Own, SandboxError
from polar_mitm.tasks.swebench.setting import Setting

WORKDIR: Final = PurePosixPath("/testbed")
SOLUTION: Final = PurePosixPath("/solution")
LOGS: Final = PurePosixPath("/logs/agent")

# As the oracle of a Harbor task does: what it prints goes to the session's logs.
_SOLVE: Final = f"#!/bin/sh\nexec git -C {WORKDIR} apply --verbose {SOLUTION}/gold.patch\n"


@dataclass(slots=True, frozen=True)
class RowPlace:
    image: str
    workdir: PurePosixPath
    home: PurePosixPath
    own: Own


def prepare(setting: Setting, session: Path) -> RowPlace:
    """`session` is the session's folder. Raises SandboxError and OSError."""
    image = setting.row.image
    if not images.has_image(image):
        raise SandboxError(f"there is no image {image} here, which {setting.row.instance_id} names: pull it first")
    user = images.user(image)
    mounts = _oracle(setting, session) if setting.oracle else {}
    return RowPlace(image, WORKDIR, images.home_of(image, user), Own(user, mounts))


def _oracle(setting: Setting, session: Path) -> dict[PurePosixPath, Path]:
    solution, logs = session / "solution", session / "logs" / "agent"
    for folder in (solution, logs):
        folder.mkdir(parents=True)
        folder.chmod(0o777)  # the user of the container need not be its root
    (solution / "gold.patch").write_text(setting.row.patch, encoding="utf-8", newline="")
    (solution / "solve.sh").write_text(_SOLVE)
    (solution / "solve.sh").chmod(0o755)
    return {SOLUTION: solution, LOGS: logs}
