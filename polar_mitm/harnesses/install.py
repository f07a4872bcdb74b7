"""Installing a harness into polar's home, from npm or PyPI. Never touches the user's own installs."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from polar_mitm.harnesses import HARNESSES, npm, pip
from polar_mitm.harnesses.base import Harness, HarnessMissing, Installed, InstallFailed, Npm, Source, install_folder

__all__ = ["InstallFailed", "install"]

_VERSION = re.compile(r"\d+(\.\d+)+[0-9A-Za-z.+-]*")


def install(name: str, say: Callable[[str], None], version: str | None = None) -> Installed:
    """Install the harness, unless it is there, and start it once to see that it runs. None is its pinned version.

    What was installed before is replaced only when the new one is complete. Another process that installs the same
    harness is waited for. `say` gets a line of progress at a time. Raises InstallFailed; KeyError for a name of none.
    """
    harness = HARNESSES[name]
    source = harness.FACTS.source
    if source is None:
        raise InstallFailed(f"{name} is a program of your own: there is nothing to install")
    version = version or source.version
    if not _VERSION.fullmatch(version):
        raise InstallFailed(f"{version!r} is no version: name one like {source.version}")
    folder = install_folder(name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / f".{name}.lock", say):
        if (installed := _present(harness, source, version, folder)) is not None:
            say(f"{name} {installed.version} is installed")
            return installed
        for stale in folder.parent.glob(f".{name}-*"):  # of an install that was killed
            shutil.rmtree(stale, ignore_errors=True)
        say(f"installing {source.package} {version} into {folder}")
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{name}-"))
        try:
            if isinstance(source, Npm):
                npm.fetch(name, source, version, scratch)
            else:
                pip.fetch(name, source, version, scratch)
            _swap(scratch, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return _proved(harness, say)


def _present(harness: Harness, source: Source, version: str, folder: Path) -> Installed | None:
    """What is installed, if it is exactly what is wanted. The manifest is whole only after the fetch succeeded."""
    if isinstance(source, Npm):
        file, wanted = npm.MANIFEST, npm.manifest(harness.NAME, source, version)
    else:
        file, wanted = pip.MANIFEST, pip.manifest(harness.NAME, source, version)
    try:
        if json.loads((folder / file).read_bytes()) == wanted:
            return harness.find()
    except (OSError, ValueError, HarnessMissing):
        pass  # absent, cut short or broken: all are mended by installing
    return None


def _swap(scratch: Path, folder: Path) -> None:
    """Put `scratch` in the place of `folder`; what was there ends up in `scratch`'s."""
    old = scratch.with_name(scratch.name + "-old")
    if folder.exists():
        folder.rename(old)
    scratch.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _proved(harness: Harness, say: Callable[[str], None]) -> Installed:
    """What is installed, after a start that shows nothing but its version or its help."""
    try:
        installed = harness.find()
    except HarnessMissing as error:
        raise InstallFailed(f"{harness.NAME} was fetched, but {error}") from error
    word = "--version" if isinstance(harness.FACTS.source, Npm) else "--help"
    with tempfile.TemporaryDirectory() as home:
        try:
            done = subprocess.run(
                [*installed.command, word],
                env={"HOME": home, "PATH": os.defpath},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            code, shown = done.returncode, done.stdout + done.stderr
        except (OSError, subprocess.TimeoutExpired) as error:
            code, shown = 1, str(error)
    if code != 0 or installed.version not in shown:
        said = shown.strip()[-1000:]
        raise InstallFailed(f"{harness.NAME} was installed but does not start here: {said or code}")
    say(f"{harness.NAME} {installed.version} is installed and starts")
    return installed


@contextmanager
def _locked(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another install of the same harness")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
