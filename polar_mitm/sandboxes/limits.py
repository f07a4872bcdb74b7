"""Limits of a run as a whole: memory, CPU and number of processes by a control group, disk by looking.

The kernel's control groups hold every process that the run starts, whatever it does. They are written directly, v1 and
v2: that needs root, or a v2 group that this process's user may write (systemd's `Delegate=yes`). Without, a run that
asks for limits is refused.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

MIB: Final = 1024 * 1024
ROOT: Final = Path("/sys/fs/cgroup")
LOOK_S: Final = 2.0
"""Between two looks at the disk."""

# Moves itself into each group before "--", then becomes the program: what it forks is in there from the start.
_ENTER: Final = """
while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 125; shift; done
shift
exec "$@"
"""


@dataclass(slots=True, frozen=True)
class Limits:
    """None is no limit."""

    cpus: float | None = None
    """Processors' worth of time."""
    memory_mb: int | None = None
    """MiB of all processes together."""
    processes: int | None = None
    """Processes and threads at once."""
    disk_mb: int | None = None
    """MiB that workspace and home may hold together, or a container's own files; looked at every two seconds."""

    @property
    def by_cgroup(self) -> bool:
        return any(limit is not None for limit in (self.cpus, self.memory_mb, self.processes))


@dataclass(slots=True)
class Cgroup:
    """A control group of one run: one folder under v2, one for each controller under v1."""

    folders: list[Path] = field(default_factory=list)
    _memory: Path | None = None

    @classmethod
    def make(cls, name: str, limits: Limits) -> Self:
        """A group with these limits. Raises OSError with the mend when none can be made here."""
        group = cls()
        try:
            for folder, settings in _settings(name, limits):
                folder.mkdir(parents=True, exist_ok=True)
                group.folders.append(folder)
                for file, value in settings.items():
                    (folder / file).write_text(value)
                if any(file.startswith("memory") for file in settings):
                    group._memory = folder
        except OSError as error:
            group.remove()
            mend = "run as root, in a service with Delegate=yes, or without limits"
            raise OSError(f"no control group can be made for the limits: {error.strerror or error} ({mend})") from error
        return group

    def entering(self, argv: list[str]) -> list[str]:
        """The command that enters the group and then becomes `argv`."""
        if not self.folders:
            return argv
        return ["/bin/sh", "-c", _ENTER, "polar-limits", *map(str, self.folders), "--", *argv]

    def out_of_memory(self) -> bool:
        """Whether the kernel killed a process of the group for its memory limit."""
        if self._memory is None:
            return False
        for file in ("memory.events", "memory.oom_control"):
            with suppress(OSError, ValueError):
                lines = dict(line.split() for line in (self._memory / file).read_text().splitlines())
                return int(lines.get("oom_kill", 0)) > 0
        return False

    def kill(self) -> int:
        """SIGKILL to every process in the group; how many there were."""
        found = 0
        for folder in self.folders:
            with suppress(OSError):
                for pid in map(int, (folder / "cgroup.procs").read_text().split()):
                    found += 1
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        return found

    def remove(self) -> None:
        """Kill what is left and remove the group. A group whose last process is still going is tried for a second."""
        for folder in reversed(self.folders):
            for _ in range(50):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    self.kill()
                    time.sleep(0.02)
                else:
                    break
        self.folders.clear()


def _settings(name: str, limits: Limits) -> Iterator[tuple[Path, dict[str, str]]]:
    """The folders to make and what to write in each."""
    period = 100_000
    if (ROOT / "cgroup.controllers").exists():
        settings: dict[str, str] = {}
        if limits.memory_mb is not None:
            settings |= {"memory.max": str(limits.memory_mb * MIB), "memory.swap.max": "0"}
        if limits.processes is not None:
            settings["pids.max"] = str(limits.processes)
        if limits.cpus is not None:
            settings["cpu.max"] = f"{int(limits.cpus * period)} {period}"
        yield _own_group() / f"polar-{name}", settings
        return
    if limits.memory_mb is not None:
        memory = str(limits.memory_mb * MIB)
        yield ROOT / "memory" / f"polar-{name}", {"memory.limit_in_bytes": memory}
    if limits.processes is not None:
        yield ROOT / "pids" / f"polar-{name}", {"pids.max": str(limits.processes)}
    if limits.cpus is not None:
        quota = {"cpu.cfs_period_us": str(period), "cpu.cfs_quota_us": str(int(limits.cpus * period))}
        yield ROOT / "cpu" / f"polar-{name}", quota


def _own_group() -> Path:
    """The v2 group whose children this process may limit: the root's for root, else its own group's parent."""
    if os.geteuid() == 0:
        return ROOT
    line = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    return (ROOT / line[3:].lstrip("/")).parent


def sweep(name: str) -> None:
    """Kill and remove the groups of a run whose polar was killed."""
    places = [ROOT, *(ROOT / controller for controller in ("memory", "pids", "cpu"))]
    if (ROOT / "cgroup.controllers").exists() and os.geteuid() != 0:
        with suppress(OSError, StopIteration):
            places.append(_own_group())
    Cgroup([place / f"polar-{name}" for place in places if (place / f"polar-{name}").is_dir()]).remove()


async def over_disk(limits: Limits, *folders: Path) -> str:
    """Wait until the folders hold more than the limit; the words for it. Never ends without a limit."""
    if limits.disk_mb is None:
        await asyncio.Event().wait()
    assert limits.disk_mb is not None
    while True:
        used = await asyncio.to_thread(lambda: sum(map(_size, folders)))
        if used > limits.disk_mb * MIB:
            return f"its files take {used / MIB:.0f} MiB, and the limit is {limits.disk_mb} MiB"
        await asyncio.sleep(LOOK_S)


def _size(folder: Path) -> int:
    """Bytes on disk below a folder, as far as they can be seen."""
    total = 0
    stack = [folder]
    while stack:
        with suppress(OSError), os.scandir(stack.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total
