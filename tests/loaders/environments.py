"""The environments that the loaders of exported files live in: `POLAR_HOME/loaders/<name>`, apart from polar's own.

`make loaders` makes what is missing, each from its lock file. To renew a lock file, in `locks/`:

    uv pip compile --universal --python-version 3.12 --generate-hashes --no-emit-index-url --no-header --no-annotate
        NAME.in -o NAME.lock

and for trl with `--python-version 3.11 --no-deps`, as its list is whole.
"""

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from polar_mitm.engine.install import Environment, fitting_kind, install, installed
from polar_mitm.engine.steps import InstallFailed, Say, exclusive, log_file, run_step
from polar_mitm.home import home

LOCKS = Path(__file__).with_name("locks")
RECIPE = "1"
"""Changing it makes all environments be built anew."""


@dataclass(frozen=True)
class Loader:
    name: str
    check: str
    """A program that fails unless the environment is whole."""
    alone: str = ""
    """A package that is installed without what it asks for: the lock file has what is used of that."""
    python_version: str = ""
    """The Python that `alone` asks for, where its code runs on an older one too."""
    on_engine: bool = False
    """Whether the engine's packages are lent to it: torch need not be there twice."""

    @property
    def folder(self) -> Path:
        return home() / "loaders" / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def lock(self) -> Path:
        return LOCKS / f"{self.name}.lock"


LOADERS = {
    loader.name: loader
    for loader in (
        Loader("trl", check="import datasets, trl, torch", on_engine=True),
        Loader(
            "nemo-gym",
            check="import nemo_gym.base_resources_server, nemo_gym.token_id_capture.builder",
            alone="nemo-gym==0.7.0",
            python_version="3.13.14",
        ),
        Loader("harbor", check="import harbor.utils.trajectory_validator, harbor.cli.main", alone="harbor==0.26.0"),
    )
}


def ready(loader: Loader) -> bool:
    """Whether the environment is complete and made by the present recipe."""
    marker = loader.folder / ".complete"
    if not marker.exists() or not loader.python.exists():
        return False
    return marker.read_text(encoding="utf-8") == _recipe(loader, installed(fitting_kind()))


def make(loader: Loader, say: Say) -> None:
    """Build the environment where it is missing: seconds, after the downloads. Raises InstallFailed."""
    engine = install(say) if loader.on_engine else None
    with exclusive(loader.folder.with_suffix(".lock"), say, f"installing the loader {loader.name}"):
        if ready(loader):
            return
        say(f"installing the loader {loader.name} into {loader.folder}")
        shutil.rmtree(loader.folder, ignore_errors=True)
        log = log_file(f"loader-{loader.name}")
        base = engine.python if engine else Path(sys.executable)
        uv = _uv()
        run_step("making the environment", [uv, "venv", "--quiet", "--python", str(base), str(loader.folder)], log=log)
        if engine:
            _lend(engine, loader)
        built = ["--build-constraints", str(LOCKS / "build.txt")]
        pip = [uv, "pip", "install", "--python", str(loader.python), "--no-deps", *built]
        run_step(f"installing {loader.lock.name}", [*pip, "--require-hashes", "-r", str(loader.lock)], log=log)
        if loader.alone:
            version = ["--python-version", loader.python_version] if loader.python_version else []
            run_step(f"installing {loader.alone}", [*pip, *version, loader.alone], log=log)
        run_step(f"loading {loader.name}", [str(loader.python), "-W", "ignore", "-c", loader.check], log=log)
        (loader.folder / ".complete").write_text(_recipe(loader, engine), encoding="utf-8")


def _lend(engine: Environment, loader: Loader) -> None:
    """Link the engine's packages, vLLM apart: TRL would import it, ten seconds long, for what is not used here."""
    theirs, ours = _packages(engine.python), _packages(loader.python)
    for package in theirs.iterdir():
        link = ours / package.name
        if not package.name.startswith("vllm") and not link.exists():
            link.symlink_to(package)


def _packages(python: Path) -> Path:
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.check_output([str(python), "-c", program], text=True, timeout=60).strip())


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        raise InstallFailed("uv is not here: run `make setup`, which brings it")
    return uv


def _recipe(loader: Loader, engine: Environment | None) -> str:
    lent = (engine.folder / ".complete").read_bytes() if loader.on_engine and engine else b""
    parts = [RECIPE.encode(), repr(loader).encode(), loader.lock.read_bytes(), lent]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def main() -> None:
    try:
        for loader in LOADERS.values():
            make(loader, say=print)
    except InstallFailed as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
