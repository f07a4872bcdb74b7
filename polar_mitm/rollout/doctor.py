"""Looks at this machine: what a run would need, whether it is here, and the mend where it is not."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from polar_mitm.engine.install import is_installed
from polar_mitm.engine.local import find
from polar_mitm.engine.models import MODELS, is_built
from polar_mitm.harnesses import HARNESSES
from polar_mitm.harnesses.base import HarnessMissing
from polar_mitm.sandboxes import SANDBOXES


@dataclass(slots=True, frozen=True)
class Finding:
    part: str
    ok: bool
    says: str
    needed: bool = False
    """Whether the demo needs it and can't install it by itself."""


def examine() -> list[Finding]:
    """Everything that `polar demo` and `polar run-task` use. Takes a second or two: it starts a sandbox."""
    return list(_findings())


def _findings() -> Iterator[Finding]:
    for tool in ("git", "npm"):
        path = shutil.which(tool)
        yield Finding(tool, path is not None, path or f"not on PATH: install {tool}", needed=True)
    for name, sandbox in SANDBOXES.items():
        problems = sandbox.check()
        yield Finding(f"sandbox {name}", not problems, "; ".join(problems) or "works", needed=name == "bwrap")
    for name, harness in HARNESSES.items():
        try:
            yield Finding(f"harness {name}", True, harness.find().version)
        except HarnessMissing as missing:
            yield Finding(f"harness {name}", False, str(missing))
    yield Finding("engine", is_installed(), "installed" if is_installed() else "not installed: polar model install")
    for model in MODELS:
        running = find(model)
        says = f"served at {running.url}" if running else "built" if is_built(model) else "not built"
        mend = "" if is_built(model) else f": polar model install {model}"
        yield Finding(f"model {model}", is_built(model), says + mend)
