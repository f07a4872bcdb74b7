"""Installing a harness from npm into polar's home. Never touches the user's own installs."""

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from polar_mitm.harnesses import HARNESSES
from polar_mitm.harnesses.base import Harness, HarnessMissing, Installed, install_folder

# npm fetches up to 400 MB; a slow line needs minutes.
NPM_TIMEOUT_S = 1800


class InstallFailed(Exception):
    """The harness could not be installed; says what npm said."""


def install(name: str, say: Callable[[str], None]) -> Installed:
    """Install the harness's pinned packages unless they are there, and start it once to see that it runs.

    What was installed before is replaced only when npm has succeeded. Another process that installs the same harness is
    waited for. `say` gets a line of progress at a time. Raises InstallFailed; KeyError for a name of no harness.
    """
    harness = HARNESSES[name]
    folder = install_folder(harness.NAME)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / f".{harness.NAME}.lock", say):
        if (installed := _present(harness, folder)) is not None:
            say(f"{harness.NAME} {installed.version} is installed")
            return installed
        for stale in folder.parent.glob(f".{name}-*"):  # of an install that was killed
            shutil.rmtree(stale, ignore_errors=True)
        say(f"installing {', '.join(harness.PACKAGES)} from npm into {folder}")
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{harness.NAME}-"))
        try:
            _manifest(scratch).write_text(json.dumps(_wanted(harness), indent=2))
            _npm_install(scratch)
            _swap(scratch, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return _proved(harness, say)


def _manifest(folder: Path) -> Path:
    return folder / "package.json"


def _wanted(harness: Harness) -> dict[str, object]:
    dependencies = dict(package.rsplit("@", 1) for package in harness.PACKAGES)
    return {"name": f"polar-{harness.NAME}", "version": "1.0.0", "private": True, "dependencies": dependencies}


def _present(harness: Harness, folder: Path) -> Installed | None:
    """What is installed, if it is exactly what is wanted. The manifest is there only after npm succeeded."""
    try:
        if json.loads(_manifest(folder).read_bytes()) == _wanted(harness):
            return harness.find()
    except (OSError, ValueError, HarnessMissing):
        pass  # absent, cut short or broken: all are mended by installing
    return None


def _npm_install(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise InstallFailed(
            "npm is not on PATH, and the harnesses come from npm: install Node with npm "
            "(apt-get install npm on Debian and Ubuntu, dnf install npm on Fedora, brew install node on macOS)"
        )
    # Install scripts are not needed by these packages, and some versions of npm refuse them anyway.
    options = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
    try:
        done = subprocess.run(
            [npm, "install", *options],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=NPM_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InstallFailed(f"npm install did not end within {NPM_TIMEOUT_S} s") from error
    if done.returncode != 0:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-20:])
        raise InstallFailed(f"npm install failed with exit code {done.returncode}:\n{said}")


def _swap(scratch: Path, folder: Path) -> None:
    """Put `scratch` in the place of `folder`; what was there ends up in `scratch`'s."""
    old = scratch.with_name(scratch.name + "-old")
    if folder.exists():
        folder.rename(old)
    scratch.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _proved(harness: Harness, say: Callable[[str], None]) -> Installed:
    try:
        installed = harness.find()
    except HarnessMissing as error:
        raise InstallFailed(f"npm installed {harness.NAME}, but {error}") from error
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [*installed.command, "--version"],
            env={"HOME": home, "PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    if done.returncode != 0 or installed.version not in done.stdout + done.stderr:
        shown = (done.stdout + done.stderr).strip()[-1000:]
        raise InstallFailed(f"{harness.NAME} was installed but does not start here: {shown or done.returncode}")
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
