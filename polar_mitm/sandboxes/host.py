"""The `host` sandbox: the program runs on this machine as this user, in a process group of its own.

It fences nothing in: the program sees the user's files and network. What it does promise is the end: the process
group and every process that carries the session's id in its environment are killed. A process that both left the group
and wiped its environment is not found; for programs that are not trusted there is `bwrap`.
"""

import asyncio
import os
import signal
import time
from contextlib import ExitStack, suppress
from pathlib import Path, PurePosixPath

import psutil

from polar_mitm.sandboxes.base import Exit, Layout, RunSpec, SandboxError, ended, limited, refuse_own, to_the_end
from polar_mitm.sandboxes.trust import bundle_path, write_bundle

MARKER = "POLAR_SESSION_ID"
"""Variable that every process of a run inherits."""

SWEEPS = 50
"""Rounds of killing before giving up. A round with nothing left ends it; a fork bomb would outrun any number."""


class Host:
    NAME = "host"
    REDIRECTS = frozenset[str]()

    def check(self) -> list[str]:
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
        """The host's own paths and ports."""
        return Layout(
            workspace=PurePosixPath(workspace),
            home=PurePosixPath(home),
            ca=PurePosixPath(ca) if ca else None,
            ca_bundle=PurePosixPath(bundle_path(ca)) if ca else None,
            proxy_port=proxy_port,
            base_port=base_port,
        )

    async def run(self, spec: RunSpec) -> Exit:
        refuse_own(spec)
        if spec.ca is not None:
            write_bundle(spec.ca)
        started = time.monotonic()
        process: asyncio.subprocess.Process | None = None
        async with limited(spec) as group:
            try:
                process = await _start(spec, group.entering(spec.argv))
                timed_out, over = await ended(process, spec, group)
            finally:
                await to_the_end(_end(process, spec.marker))
        code = process.returncode
        if timed_out or code is None or (over and code == -signal.SIGKILL):
            return Exit(None, timed_out, time.monotonic() - started, over)
        return Exit(code if code >= 0 else 128 - code, False, time.monotonic() - started, over)

    def sweep(self, marker: str) -> None:
        for _ in range(SWEEPS):
            if _kill_marked(marker) == 0:
                return
            time.sleep(0.02)
        raise SandboxError(f"processes of {marker} are still running after {SWEEPS} rounds of SIGKILL")


async def _start(spec: RunSpec, argv: list[str]) -> asyncio.subprocess.Process:
    with ExitStack() as files:
        stdin = files.enter_context(spec.stdin.open("rb")) if spec.stdin else asyncio.subprocess.DEVNULL
        stdout = files.enter_context(spec.stdout.open("wb"))
        stderr = files.enter_context(spec.stderr.open("wb"))
        try:
            return await asyncio.create_subprocess_exec(
                *argv,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=spec.env | {MARKER: spec.marker},
                cwd=spec.workspace,
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxError(f"{spec.argv[0]} could not be run: {error}") from error


async def _end(process: asyncio.subprocess.Process | None, marker: str) -> None:
    if process is not None:
        # Once is enough, and once is safe: the kernel lets no member fork past the signal, and later the number may be
        # another group's. macOS answers PermissionError for a group of zombies.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 5)
    for _ in range(SWEEPS):
        if await asyncio.to_thread(_kill_marked, marker) == 0:
            return
        await asyncio.sleep(0.02)
    raise SandboxError(f"processes of {marker} are still running after {SWEEPS} rounds of SIGKILL")


def _kill_marked(marker: str) -> int:
    """Kill every process that carries the marker; the number of them that were alive."""
    alive = 0
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARKER) == marker:
                alive += 1
                process.kill()
        except psutil.Error:
            continue  # gone, a zombie, or another user's: none of them is ours to end
    return alive
