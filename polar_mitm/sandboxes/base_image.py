"""The image of the container sandbox for scenarios that name none: a small Debian, made on this machine."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from polar_mitm.sandboxes.base import SandboxError
from polar_mitm.sandboxes.images import engine, has_image

BASE_IMAGE: Final = "localhost/polar-base:latest"
SUITE: Final = "bookworm"


def make_base_image(say: Callable[[str], None]) -> None:
    """Make it, where it is not there yet. Takes a minute. Raises SandboxError with the mend."""
    if has_image(BASE_IMAGE):
        return
    program = shutil.which("debootstrap")
    if program is None or os.geteuid() != 0:
        what = "it takes root" if program else "debootstrap is not installed: apt-get install debootstrap"
        mend = f"or give any Debian-like image the name {BASE_IMAGE}, or name an image in the scenario"
        raise SandboxError(f"the base image cannot be made here: {what}; {mend}")
    say(f"making {BASE_IMAGE} with debootstrap (about a minute)")
    with tempfile.TemporaryDirectory(prefix="polar-image-") as scratch:
        root = Path(scratch) / "root"
        _run([program, "--variant=minbase", SUITE, str(root)])
        for unneeded in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
            shutil.rmtree(root / unneeded, ignore_errors=True)
        archive = Path(scratch) / "root.tar"
        _run(["tar", "-C", str(root), "-cf", str(archive), "."])
        _run([engine(), "import", str(archive), BASE_IMAGE])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise SandboxError(f"{Path(command[0]).name} failed: {(done.stderr or done.stdout).strip()[-1000:]}")
