"""A container whose program works in the image's own files: what `Own` of a run comes to.

The files of the program's home are copied in by the container itself, as its user, and copied back by the engine.
"""

import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from polar_mitm.sandboxes.base import Own, Ready, RunSpec, SandboxError
from polar_mitm.sandboxes.container_ways import sockets
from polar_mitm.sandboxes.images import said, workdir

HOME_FILES: Final = PurePosixPath("/polar/home")
"""Where the run's home is mounted, to be copied from."""

# The image's own programs come before the harness's: what the task calls python is the image's python.
ENVIRONMENT: Final = """
image_path=$PATH
. /polar/env
[ "$PATH" = "$image_path" ] || PATH=$image_path:$PATH
unset image_path
mkdir -p "$HOME" && cp -R /polar/home/. "$HOME"/ || { echo "polar: nothing can be written in $HOME" >&2; exit 125; }
. /polar/ready
"""

_READY: Final = """
began=$(date +%s)
failed=0
limit=
command -v timeout >/dev/null && limit="timeout {timeout}"
shell=sh
command -v bash >/dev/null && shell=bash
until $limit $shell -c {command} >/dev/null 2>&1 </dev/null; do
  if [ $(($(date +%s) - began)) -lt {start} ]; then sleep {start_interval}; continue; fi
  failed=$((failed + 1))
  if [ "$failed" -ge {retries} ]; then {give_up}; fi
  sleep {interval}
done
unset began failed limit shell
"""


def arguments(own: Own, spec: RunSpec, scratch: Path) -> Iterator[str]:
    """Those of the engine's `run` that differ from a run in the host's folders."""
    if not own.network:
        yield from ("--network", "none")
    # The engine makes the folder that the image names when it is not there yet, and no other.
    if spec.image is not None and spec.workdir != (workdir(spec.image) or PurePosixPath("/")):
        yield from ("--workdir", str(spec.workdir or "/"))
    yield from ("--user", own.user)
    ready = scratch / "ready"
    ready.write_text(_script(own.ready) if own.ready else "")
    yield from ("--volume", f"{ready}:/polar/ready:ro")
    _show(spec.home)
    for socket in sockets(spec).values():
        socket.chmod(0o666)  # on this machine their folder keeps others out
    for folder in spec.read_only:
        with suppress(OSError):  # another's, which then is for all anyway
            folder.chmod(folder.stat().st_mode | 0o055)
    yield from ("--volume", f"{spec.home}:{HOME_FILES}:ro")
    for inside, outside in own.mounts.items():
        yield from ("--volume", f"{outside}:{inside}")


def home_back(name: str, spec: RunSpec, files: set[PurePosixPath]) -> None:
    """Bring what became of the home's files, and of what lies beside them in folders of their own. `files` are those
    that were copied in."""
    home = PurePosixPath(spec.env.get("HOME", "/root"))
    folders = {file.parent for file in files if file.parent.parts}
    for path in {*folders, *(file for file in files if not file.parent.parts)}:
        source = f"{name}:{home / path}"
        with suppress(SandboxError):  # it is for people and for the last text: a run is not lost with it
            said("cp", f"{source}/." if path in folders else source, str(spec.home / path))


def home_files(spec: RunSpec) -> set[PurePosixPath]:
    return {PurePosixPath(path.relative_to(spec.home)) for path in spec.home.rglob("*") if path.is_file()}


def written(name: str) -> list[Path]:
    """Where the engine keeps what the container writes; empty where this process can't see that."""
    answer = said("inspect", "--format", "{{.GraphDriver.Data.UpperDir}}", name)
    folder = Path(answer.stdout.strip() or "-")
    return [folder] if answer.returncode == 0 and folder.is_dir() else []


def _script(ready: Ready) -> str:
    said_so = f"polar: the task's healthcheck failed {ready.retries} times in a row: {ready.command}"
    give_up = f"echo {shlex.quote(said_so)} >&2; exit 125" if ready.required else "break"
    return _READY.format(
        timeout=ready.timeout_s,
        command=shlex.quote(ready.command),
        start=ready.start_period_s,
        start_interval=ready.start_interval_s,
        retries=ready.retries,
        interval=ready.interval_s,
        give_up=give_up,
    )


def _show(folder: Path) -> None:
    """To the container's user, whoever it is. Nothing secret is in a run's home, and nobody else gets to it."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
