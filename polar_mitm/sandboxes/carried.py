"""Programs of this machine that are taken into a container of any image, with their own loader and libraries."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from polar_mitm.home import home
from polar_mitm.sandboxes.base import SandboxError

SOCAT: Final = "socat"
IP: Final = "ip"

_PACKAGES: Final = {SOCAT: "socat", IP: "iproute2"}


@cache
def carried(program: str) -> Path:
    """A folder with the program and all that it needs, to be mounted at /polar/<program>; `run` in it starts it.

    Raises SandboxError when it is not on this machine.
    """
    path = shutil.which(program)
    if path is None:
        package = _PACKAGES[program]
        raise SandboxError(
            f"{program} is not installed: apt-get install {package} (Debian), apk add {package} (Alpine)"
        )
    listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    libraries = [Path(found) for found in re.findall(r"(/\S+) \(0x", listed)]
    loader = next((library for library in libraries if library.name.startswith("ld-")), None)
    folder = home() / program
    folder.mkdir(parents=True, exist_ok=True)
    for file in (Path(path), *libraries):
        target = folder / file.name
        if not target.exists() or target.stat().st_size != file.stat().st_size:
            scratch = folder / f".{file.name}.{os.getpid()}"
            shutil.copyfile(file, scratch)
            scratch.chmod(0o755)
            scratch.replace(target)
    inside = f"/polar/{program}"
    start = f"{inside}/{loader.name} --library-path {inside} " if loader else ""
    run = folder / "run"
    run.write_text(f'#!/bin/sh\nexec {start}{inside}/{Path(path).name} "$@"\n')
    run.chmod(0o755)
    return folder
