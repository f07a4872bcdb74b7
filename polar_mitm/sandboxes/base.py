"""What every sandbox offers: a place where one program runs, and nothing it started outlives the run.

A sandbox knows folders, ports and processes. It knows no harness, no proxy and no session beyond its id.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Protocol


class SandboxError(Exception):
    """The sandbox itself could not start the program; the program's own failures are exit codes."""


@dataclass(slots=True, frozen=True)
class Layout:
    """Where things are as the program sees them. Ports are on its loopback."""

    workspace: PurePosixPath
    home: PurePosixPath
    ca: PurePosixPath | None
    """The proxy's CA certificate alone, PEM. None: the run trusts what the system trusts."""
    ca_bundle: PurePosixPath | None
    """The system's roots and the proxy's CA, PEM: for variables that replace all trust rather than add to it."""
    proxy_port: int
    base_port: int


@dataclass(slots=True)
class RunSpec:
    """One program to run. Paths are host paths; `argv` and `env` hold paths of the sandbox's `Layout`."""

    argv: list[str]
    env: dict[str, str]
    """The whole environment: nothing is inherited."""
    workspace: Path
    home: Path
    stdout: Path
    stderr: Path
    timeout_s: float
    marker: str
    """The session's id, by which the run's processes are known."""
    ca: Path | None = None
    """The proxy's CA certificate, PEM, without its key."""
    stdin: Path | None = None
    """None is an empty input."""
    read_only: list[Path] = field(default_factory=list)
    """Host folders that the program finds at the same path: harness installs."""
    sockets: dict[int, Path] = field(default_factory=dict)
    """Loopback port inside -> unix socket outside. The host sandbox has no use for it."""


@dataclass(slots=True, frozen=True)
class Exit:
    """How a run ended. `code` is None when the sandbox killed it; a program that died by signal N has 128 + N."""

    code: int | None
    timed_out: bool
    seconds: float


class Sandbox(Protocol):
    """`polar_mitm.sandboxes.SANDBOXES` lists them."""

    @property
    def NAME(self) -> str: ...  # noqa: N802  (a constant of the class)

    def check(self) -> list[str]:
        """What is missing on this machine, each with the mend. Empty: ready. Blocks for up to 10 s."""

    def layout(self, *, workspace: Path, home: Path, ca: Path | None, proxy_port: int, base_port: int) -> Layout:
        """Where the program finds these host paths, and on which of its loopback ports these host ports."""

    async def run(self, spec: RunSpec) -> Exit:
        """Run to the end, to `timeout_s` or to cancellation; then every process of the run is gone.

        Cancellation is raised again once they are. Raises SandboxError when the program could not be started.
        """

    def sweep(self, marker: str) -> None:
        """End what is left of a run whose polar was killed. Blocks for up to 10 s. Raises SandboxError."""


async def to_the_end[T](work: Coroutine[Any, Any, T]) -> T:
    """Await `work` even while being cancelled, then let the cancellation through. `work` must be short."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
    if cancelled is not None:
        task.exception()  # looked at, so that it is not reported as lost
        raise cancelled
    return task.result()
