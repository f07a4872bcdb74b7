"""The package `swebench`, pinned, in an environment of its own in polar's home: it brings 350 MB that nothing else
needs. `ask.py` is run by that environment's Python; JSON goes in and JSON comes out.
"""

import asyncio
import hashlib
import json
import shutil
import sys
import venv
from pathlib import Path
from typing import Any, Final

from polar_mitm.engine.steps import Say, environment, exclusive, log_file, run_step
from polar_mitm.home import home

VERSION: Final = "5.0.2"
LOCK: Final = Path(__file__).with_name("requirements.lock")
MEND: Final = "install it with `polar evaluator install swebench`"

_ASK: Final = Path(__file__).with_name("ask.py")
_ASK_S: Final = 300.0
"""Loading the package takes seconds, on a busy machine many."""


class SwebenchFailed(Exception):
    """The package is not there, or it could not do what it was asked; says why."""


def folder() -> Path:
    return home() / "evaluators" / "swebench"


def problems() -> list[str]:
    """What is missing, with the mend; empty when it is ready."""
    marker = folder() / ".complete"
    if not _python().exists() or not marker.exists():
        return [f"swebench is not installed: {MEND}"]
    if marker.read_text(encoding="utf-8") != _recipe():
        return [f"swebench is installed otherwise than this polar wants it: {MEND}"]
    return []


def install(say: Say) -> None:
    """Make the environment, where it is not there. Raises InstallFailed."""
    with exclusive(folder().with_suffix(".lock"), say, "installing swebench"):
        if not problems():
            return
        say(f"installing swebench {VERSION} into {folder()}")
        shutil.rmtree(folder(), ignore_errors=True)
        log = log_file("evaluator-swebench")
        uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
        if uv is not None:
            run_step(
                "making the environment", [uv, "venv", "--quiet", "--python", sys.executable, str(folder())], log=log
            )
            pip = [uv, "pip", "install", "--quiet", "--python", str(_python())]
        else:
            venv.create(folder(), with_pip=True)
            pip = [str(_python()), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run_step(f"installing swebench {VERSION}", [*pip, "--require-hashes", "-r", str(LOCK)], log=log)
        run_step("loading it", [str(_python()), "-I", "-c", "import swebench.harness.grading"], log=log)
        (folder() / ".complete").write_text(_recipe(), encoding="utf-8")


async def ask(*questions: dict[str, Any]) -> list[dict[str, Any]]:
    """What `ask.py` answers to each. Raises SwebenchFailed."""
    if missing := problems():
        raise SwebenchFailed("; ".join(missing))
    pipe = asyncio.subprocess.PIPE
    # In its own folder: the package reads a .env where it is started.
    process = await asyncio.create_subprocess_exec(
        str(_python()),
        "-I",
        "-X",
        "utf8",
        str(_ASK),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        cwd=folder(),
        env=environment(),
    )
    try:
        async with asyncio.timeout(_ASK_S):
            answer, said = await process.communicate(json.dumps(questions).encode())
    except TimeoutError:
        raise SwebenchFailed(f"swebench did not answer within {_ASK_S:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise SwebenchFailed(f"swebench failed: {last[-500:] or process.returncode}")
    found: list[dict[str, Any]] = json.loads(answer)
    return found


def _python() -> Path:
    return folder() / "bin" / "python"


def _recipe() -> str:
    return hashlib.sha256(sys.base_prefix.encode() + b"\0" + LOCK.read_bytes()).hexdigest()
