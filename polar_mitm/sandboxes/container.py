"""The `container` sandbox: the program runs in a container of podman or docker, from an image of the task's.

The container has no network; what the program may reach comes as unix sockets, each bridged to a port of its loopback
by this machine's `socat`, which is mounted with its own loader and libraries, so that any image will do. The program is
the container's root, so that it can install what it needs, and polar's own user where polar is not root.
"""

import asyncio
import os
import re
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path, PurePosixPath
from typing import Final

from polar_mitm.sandboxes import container_ways, own_files
from polar_mitm.sandboxes.base import Exit, Layout, RunSpec, SandboxError, ended, to_the_end
from polar_mitm.sandboxes.carried import SOCAT, carried
from polar_mitm.sandboxes.container_ways import ENTRY
from polar_mitm.sandboxes.images import KEPT, engine, loses, plain_volumes, run_arguments, said, with_volumes
from polar_mitm.sandboxes.limits import Cgroup
from polar_mitm.sandboxes.scratch import prefix
from polar_mitm.sandboxes.trust import write_bundle

WORKSPACE: Final = PurePosixPath("/workspace")
HOME: Final = PurePosixPath("/polar/home")
CA: Final = PurePosixPath("/polar/ca.pem")
CA_BUNDLE: Final = PurePosixPath("/polar/ca-bundle.pem")
PROXY_PORT: Final = 29080
BASE_PORT: Final = 29081

KILLED: Final = 128 + signal.SIGKILL

_HELPERS: Final = (Path("/usr/libexec/podman"), Path("/usr/libexec/docker"))

# Take the environment from its file, which no command line shows; the image's own PATH comes last.
_ENVIRONMENT: Final = """
image_path=$PATH
. /polar/env
PATH=$PATH:$image_path
unset image_path
"""


class Container:
    NAME = "container"
    REDIRECTS = frozenset({"hosts", "transparent"})

    def check(self) -> list[str]:
        try:
            engine()
            carried(SOCAT)
        except SandboxError as error:
            return [str(error)]
        return []

    def layout(
        self,
        *,
        workspace: Path,
        home: Path,
        ca: Path | None,
        proxy_port: int,
        base_port: int,
        workdir: PurePosixPath | None = None,
    ) -> Layout:
        """The same in every run of a task, whatever the host's paths and ports are."""
        return Layout(
            workspace=workdir or WORKSPACE,
            home=HOME,
            ca=CA if ca else None,
            ca_bundle=CA_BUNDLE if ca else None,
            proxy_port=PROXY_PORT,
            base_port=BASE_PORT,
        )

    async def run(self, spec: RunSpec) -> Exit:
        if spec.image is None:
            raise SandboxError("the container sandbox needs an image: name one, or a Dockerfile, in the scenario")
        variant = await asyncio.to_thread(run_arguments, spec.image)
        image = spec.image
        if not image.startswith(f"{KEPT}:"):
            image = await asyncio.to_thread(with_volumes, image)
        if spec.keep and (lost := await asyncio.to_thread(loses, spec.image)):
            mend = "take podman ($POLAR_CONTAINER_ENGINE), which keeps them, or an image without VOLUME"
            raise SandboxError(f"docker keeps nothing of {', '.join(lost)}, a VOLUME of {spec.image}: {mend}")
        started = time.monotonic()
        name = _name(spec.marker)
        scratch = tempfile.TemporaryDirectory(prefix=prefix(spec.marker))
        status, environment = Path(scratch.name) / "status", Path(scratch.name) / "env"
        status.touch()
        status.chmod(0o666)  # the container's user need not be its root
        environment.write_text("".join(f"export {key}={shlex.quote(value)}\n" for key, value in spec.env.items()))
        arguments = [*variant, "--name", name, *_arguments(spec, Path(scratch.name)), image, *_program(spec)]
        files = own_files.home_files(spec) if spec.own else set()
        try:
            process = await _start([engine(), "run", *arguments], spec, Path(scratch.name))
            try:
                if container_ways.transparent(spec):
                    await container_ways.lead_all(name, spec.image, variant, process)
                timed_out, over = await ended(process, spec, Cgroup(), await _watched(name, spec))
            finally:
                await to_the_end(_end(name, process))
            seconds = time.monotonic() - started
            code = await asyncio.to_thread(_exit_code, name)
            if code == KILLED and not timed_out and spec.limits.memory_mb is not None:
                over = over or f"it was killed; its processes may have {spec.limits.memory_mb} MiB of memory"
            started_at_all = bool(status.read_text())
            if spec.own:
                await asyncio.to_thread(own_files.home_back, name, spec, files)
            kept = await asyncio.to_thread(_commit, name, spec.marker) if spec.keep else None
        finally:
            await to_the_end(asyncio.to_thread(said, "rm", "--force", "--volumes", name))
            scratch.cleanup()
        if timed_out or (over and code == KILLED):
            return Exit(None, timed_out, seconds, over, kept)
        if code is None or not started_at_all:
            words = _tail(spec.stderr)
            if words.endswith(": No such file"):
                words += f" in the image {spec.image}: name one that has it in the scenario's `container`"
            raise SandboxError(f"{spec.argv[0]} could not be run: {words}")
        return Exit(code, False, seconds, over, kept)

    def sweep(self, marker: str) -> None:
        with suppress(SandboxError):
            listed = said("ps", "--all", "--filter", f"name={_name(marker)}", "--format", "{{.Names}}").stdout.split()
            for name in listed:  # its own, and those of its evaluation
                said("rm", "--force", "--volumes", name)
            kept = said("images", "--format", "{{.Tag}}", KEPT).stdout.split()
            for tag in kept:
                if tag == marker or tag.startswith(f"{marker}."):
                    said("rmi", "--force", f"{KEPT}:{tag}")


def _name(marker: str) -> str:
    return f"polar-{re.sub(r'[^A-Za-z0-9_.-]', '-', marker)}"


async def _watched(name: str, spec: RunSpec) -> list[Path] | None:
    """The folders that a disk limit is for. None: those of the host."""
    if spec.own is None:
        return None
    for _ in range(50 if spec.limits.disk_mb is not None else 0):
        if folders := await asyncio.to_thread(own_files.written, name):
            return folders
        await asyncio.sleep(0.1)  # until the engine has made the container
    return []


def _arguments(spec: RunSpec, scratch: Path) -> Iterator[str]:
    yield from ("--pull", "never", "--interactive", *plain_volumes())
    if _has_init():
        yield "--init"  # reaps what the program leaves behind
    yield from ("--security-opt", "no-new-privileges", "--hostname", "polar")
    yield from (word for name in ("MKNOD", "NET_RAW", "SYS_CHROOT") for word in ("--cap-drop", name))
    if spec.own is not None:
        yield from own_files.arguments(spec.own, spec, scratch)
    else:
        yield from _in_folders(spec)
    limits = spec.limits
    if limits.memory_mb is not None:
        yield from ("--memory", f"{limits.memory_mb}m")
    if limits.cpus is not None:
        yield from ("--cpus", str(limits.cpus))
    if limits.processes is not None:
        yield from ("--pids-limit", str(limits.processes))
    yield from ("--volume", f"{scratch / 'env'}:/polar/env:ro", "--volume", f"{scratch / 'status'}:/polar/status")
    for folder in spec.read_only:
        yield from ("--volume", f"{folder}:{folder}:ro")
    if spec.ca is not None:
        yield from ("--volume", f"{spec.ca}:{CA}:ro", "--volume", f"{write_bundle(spec.ca)}:{CA_BUNDLE}:ro")
    yield from container_ways.arguments(spec, scratch)


def _in_folders(spec: RunSpec) -> Iterator[str]:
    """A run whose workspace and home are folders of the host."""
    workspace = str(spec.workdir or WORKSPACE)
    yield from ("--network", "none", "--workdir", workspace, "--entrypoint", "")
    yield from ("--volume", f"{spec.workspace}:{workspace}", "--volume", f"{spec.home}:{HOME}")
    if os.geteuid() != 0:
        yield from ("--user", f"{os.geteuid()}:{os.getegid()}")


def _has_init() -> bool:
    """Whether this engine's own first process is there: what --init starts."""
    name = "catatonit" if Path(engine()).name == "podman" else "docker-init"
    return bool(shutil.which(name)) or any((folder / name).exists() for folder in _HELPERS)


def _program(spec: RunSpec) -> list[str]:
    environment = own_files.ENVIRONMENT if spec.own else _ENVIRONMENT
    return ["/bin/sh", "-c", environment + ENTRY, "polar-bridge", *container_ways.entry(spec), "--", *spec.argv]


async def _start(command: list[str], spec: RunSpec, folder: Path) -> asyncio.subprocess.Process:
    with ExitStack() as files:
        stdin = files.enter_context(spec.stdin.open("rb")) if spec.stdin else asyncio.subprocess.DEVNULL
        stdout = files.enter_context(spec.stdout.open("wb"))
        stderr = files.enter_context(spec.stderr.open("wb"))
        return await asyncio.create_subprocess_exec(
            *command, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True, cwd=folder
        )


async def _end(name: str, process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        await asyncio.to_thread(said, "kill", name)
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            await process.wait()
    with suppress(SandboxError):
        await asyncio.to_thread(said, "wait", name)


def _exit_code(name: str) -> int | None:
    """Of the container's program; None when it never ran."""
    answer = said("inspect", "--format", "{{.State.ExitCode}}", name)
    return int(answer.stdout) if answer.returncode == 0 else None


def _commit(name: str, marker: str) -> str:
    image = f"{KEPT}:{marker}"
    answer = said("commit", name, image)
    if answer.returncode != 0:
        raise SandboxError(f"what the container left could not be kept: {answer.stderr.strip()[-500:]}")
    return image


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-2000:].strip() or "it said nothing"
