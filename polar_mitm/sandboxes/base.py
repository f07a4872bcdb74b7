"""What every sandbox offers: a place where one program runs, and nothing it started outlives the run.

A sandbox knows folders, ports and processes. It knows no harness, no proxy and no session beyond its id.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from polar_mitm.errors import NotReady
from polar_mitm.sandboxes.limits import Cgroup, Limits, over_disk


class SandboxError(NotReady):
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


@dataclass(slots=True, frozen=True)
class Redirect:
    """Where connections of a program go that knows of no proxy: unix sockets, as in `RunSpec.sockets`."""

    names: tuple[str, ...] | None
    """Host names that lead to polar, by /etc/hosts; None: every name and every IPv4 address does."""
    https: Path
    http: Path
    dns: Path | None = None
    """Answers each name; needed where `names` is None."""


@dataclass(slots=True, frozen=True)
class Ready:
    """A shell command that must succeed before the program starts. Times are in seconds."""

    command: str
    interval_s: float = 5.0
    """Between two tries."""
    timeout_s: int = 30
    """Of one try."""
    start_period_s: int = 0
    """In which failures do not count."""
    start_interval_s: float = 5.0
    """Between two tries in the start period."""
    retries: int = 3
    """Failures, one after the other, after which the run is given up."""
    required: bool = True
    """Whether the run is given up then. Else the program starts all the same."""


@dataclass(slots=True, frozen=True)
class Own:
    """A run in the image's own files: no folder of the host takes the place of the workspace or the home.

    What lies in `RunSpec.home` is copied into the home of the layout, and what became of it is copied back. The image's
    ENTRYPOINT and PATH are what they are for anyone who starts a container of it.
    """

    user: str
    """Name or number, with a group after a colon or not."""
    mounts: Mapping[PurePosixPath, Path] = field(default_factory=dict)
    """Folders and files of the host that the program may write, by their place inside."""
    ready: Ready | None = None
    network: bool = False
    """The engine's own network, with all that it leads to."""


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
    given_back_s: Callable[[], float] = lambda: 0.0
    """How much longer it may run, as of now: time in which it was kept waiting through no fault of its own."""
    ca: Path | None = None
    """The proxy's CA certificate, PEM, without its key."""
    stdin: Path | None = None
    """None is an empty input."""
    read_only: list[Path] = field(default_factory=list)
    """Host folders that the program finds at the same path: harness installs."""
    sockets: dict[int, Path] = field(default_factory=dict)
    """Loopback port inside -> unix socket outside. The host sandbox has no use for it."""
    redirect: Redirect | None = None
    """The sandbox must be one that can: see `Sandbox.REDIRECTS`."""
    limits: Limits = field(default_factory=Limits)
    """SandboxError when they cannot be kept here."""
    workdir: PurePosixPath | None = None
    """Where the workspace is found; None is the sandbox's own place. As given to `layout`."""
    image: str | None = None
    """The container sandbox's image; others run in what this machine has."""
    keep: bool = False
    """Keep the container's file system as an image for `Exit.image`, for the evaluation."""
    own: Own | None = None
    """SandboxError but in the container sandbox."""


@dataclass(slots=True, frozen=True)
class Exit:
    """How a run ended. `code` is None when the sandbox killed it; a program that died by signal N has 128 + N."""

    code: int | None
    timed_out: bool
    seconds: float
    over_limit: str | None = None
    """Which limit of the run was reached, in words: it was ended for it."""
    image: str | None = None
    """What `RunSpec.keep` asked for. Who has it removes it with `Sandbox.sweep`."""


class Sandbox(Protocol):
    """`polar_mitm.sandboxes.SANDBOXES` lists them."""

    @property
    def NAME(self) -> str: ...  # noqa: N802  (a constant of the class)

    @property
    def REDIRECTS(self) -> frozenset[str]: ...  # noqa: N802

    """`hosts`: it can lead names to polar; `transparent`: all names and addresses."""

    def check(self) -> list[str]:
        """What is missing on this machine, each with the mend. Empty: ready. Blocks for up to 10 s."""

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
        """Where the program finds these host paths, and on which of its loopback ports these host ports.

        `workdir` is where the task wants its workspace; the host sandbox can't give it that.
        """

    async def run(self, spec: RunSpec) -> Exit:
        """Run to the end, to `timeout_s` or to cancellation; then every process of the run is gone.

        Cancellation is raised again once they are. Raises SandboxError when the program could not be started.
        """

    def sweep(self, marker: str) -> None:
        """End what is left of a run whose polar was killed. Blocks for up to 10 s. Raises SandboxError."""


def refuse_own(spec: RunSpec) -> None:
    """For sandboxes without images. Raises SandboxError."""
    if spec.own is not None:
        raise SandboxError("a task that is worked on in its image's own files needs the container sandbox")


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


@asynccontextmanager
async def limited(spec: RunSpec) -> AsyncIterator[Cgroup]:
    """The control group of a run, gone afterwards with all that is in it. Raises SandboxError."""
    group = Cgroup()
    if spec.limits.by_cgroup:
        try:
            group = await asyncio.to_thread(Cgroup.make, spec.marker, spec.limits)
        except OSError as error:
            raise SandboxError(str(error)) from error
    try:
        yield group
    finally:
        await to_the_end(asyncio.to_thread(group.remove))


async def ended(
    process: asyncio.subprocess.Process, spec: RunSpec, group: Cgroup, watched: Sequence[Path] | None = None
) -> tuple[bool, str | None]:
    """Wait for the program, its time or a limit: whether it took too long, and which limit it reached, in words.

    It is still running when one of both is so. `watched` are the folders that the disk limit is for, by default
    workspace and home.
    """
    waiting = asyncio.create_task(process.wait())
    folders = (spec.workspace, spec.home) if watched is None else watched
    watching = asyncio.create_task(over_disk(spec.limits, *folders))
    try:
        done = await _until_over({waiting, watching}, spec)
        over = watching.result() if watching in done and waiting not in done else None
        if over is None and group.out_of_memory():
            over = f"its processes needed more than the {spec.limits.memory_mb} MiB of memory that they may have"
        return not done, over
    finally:
        waiting.cancel()
        watching.cancel()


async def _until_over(tasks: set[asyncio.Task[Any]], spec: RunSpec) -> set[asyncio.Task[Any]]:
    """Those that are done; none when the run's time is over."""
    now = asyncio.get_running_loop().time
    began = now()
    done: set[asyncio.Task[Any]] = set()
    while not done and (left := began + spec.timeout_s + spec.given_back_s() - now()) > 0:
        done, _ = await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
    return done
