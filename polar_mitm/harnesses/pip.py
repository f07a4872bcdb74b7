"""Packages of PyPI in polar's home, each in a virtual environment of its own."""

import json
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from polar_mitm.harnesses.base import HarnessMissing, Installed, InstallFailed, Pip, install_folder
from polar_mitm.harnesses.versions import version_tuple

TIMEOUT_S = 1800

MANIFEST = "polar-pip.json"

LIBRARIES = "libraries"
"""The folder with what Python and the package load of this machine's libraries, its loader among them: an image has
others or none. Given to the loader, they are for this one process; a variable would reach all that the agent runs."""

UNUSED = ("_tkinter", "_test", "nis.")
"""Beginnings of names of Python's own modules that bring many libraries, and no agent needs."""

NO_NETWORK = (
    "Failed to establish a new connection",
    "NewConnectionError",
    "Connection refused",
    "error sending request",
    "dns error",
    "ProxyError",
    "Temporary failure in name resolution",
)
NO_VERSION = ("No matching distribution found", "no version of", "No solution found")


def manifest(name: str, source: Pip, version: str) -> dict[str, object]:
    """What the marker says once the package is there. Another Python needs an environment of its own."""
    return {"package": source.package, "version": version, "python": sys.base_prefix, "libraries": LIBRARIES}


def fetch(name: str, source: Pip, version: str, folder: Path) -> None:
    """Make the environment in an empty folder and install the package. Raises InstallFailed."""
    wanted = f"{source.package}=={version}"
    python = folder / "venv" / "bin" / "python"
    try:
        if uv := _uv():
            _run([uv, "venv", "--quiet", "--python", sys.executable, str(folder / "venv")])
            _run([uv, "pip", "install", "--quiet", "--python", str(python), wanted])
        else:
            venv.create(folder / "venv", with_pip=True)
            _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted])
    except subprocess.CalledProcessError as error:
        said = "\n".join((error.stderr or error.stdout or "").strip().splitlines()[-20:])
        raise InstallFailed(f"{_reason(name, source, version, said)}:\n{said}") from error
    except subprocess.TimeoutExpired as error:
        raise InstallFailed(f"installing {wanted} did not end within {TIMEOUT_S} s") from error
    _keep_libraries(folder)
    (folder / MANIFEST).write_text(json.dumps(manifest(name, source, version), indent=2))


def find_module(name: str, source: Pip, minimum: str) -> Installed:
    """The package's program, run by its own Python. Raises HarnessMissing."""
    folder = install_folder(name)
    python = folder / "venv" / "bin" / "python"
    distribution = source.package.replace("-", "_")
    found = sorted((folder / "venv").glob(f"lib/python3*/site-packages/{distribution}-*.dist-info"))
    if not found:
        raise HarnessMissing(name, "is not installed")
    if not python.exists():  # a link to the Python that made it
        raise HarnessMissing(name, "is installed but the Python that it was made with is gone")
    version = found[-1].name.removeprefix(f"{distribution}-").removesuffix(".dist-info")
    if version_tuple(version) < version_tuple(minimum):
        raise HarnessMissing(name, f"{version} is too old, {minimum} is the oldest that works")
    base = Path(sys.base_prefix)
    shown = [folder] if base.is_relative_to("/usr") else [folder, base]
    loader = next((folder / LIBRARIES).glob("ld-*"), None)
    start = [str(loader), "--library-path", str(folder / LIBRARIES)] if loader else []
    return Installed(version, shown, [*start, str(python), "-m", source.module])


def _keep_libraries(folder: Path) -> None:
    """Copy the libraries that the environment needs beside it. Nothing where its Python has no loader, as on macOS."""
    python = folder / "venv" / "bin" / "python"
    if not any(library.name.startswith("ld-") for library in _libraries(python)):
        return
    own = Path(sys.base_prefix).glob("lib/python3*/lib-dynload/*.so")
    modules = [path for path in own if not path.name.startswith(UNUSED)]
    target = folder / LIBRARIES
    target.mkdir()
    for library in _libraries(python, *modules, *(folder / "venv").rglob("*.so")):
        if not library.is_relative_to(folder):
            shutil.copy(library, target / library.name)


def _libraries(*programs: Path) -> set[Path]:
    ldd = shutil.which("ldd")
    if ldd is None:
        return set()
    listed = subprocess.run([ldd, *map(str, programs)], capture_output=True, text=True, check=False).stdout
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", listed)}


def _uv() -> str | None:
    """uv, which takes seconds for what pip takes minutes: beside this Python, else on PATH."""
    return shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)


def _reason(name: str, source: Pip, version: str, said: str) -> str:
    if any(words in said for words in NO_NETWORK):
        return f"the package index could not be reached, so {name} is not installed; check the network"
    if any(words in said for words in NO_VERSION):
        return (
            f"there is no version {version} of {source.package}: `polar harness install {name}` takes {source.version}"
        )
    return f"{source.package} {version} could not be installed"
