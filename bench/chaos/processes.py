"""The processes that faults are done to: started, killed, stopped, kept from writing, started again."""

import asyncio
import ctypes
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["bench.chaos.simulated", "polar_mitm.cli.rollout", "polar_mitm.rollout.server.serve"])
"""Imported once: a start is a fork, and as quick as the process's own work lets it be."""

PR_SET_PDEATHSIG = 1
ENDING_S = 10.0
STARTING_S = 20.0


@dataclass(slots=True)
class Program:
    """A process that is begun again on the same state: `work` with `arguments`, in a process of its own."""

    name: str
    work: Callable[..., None]
    arguments: tuple[Any, ...]
    log: Path
    port: int
    """Where it listens once it is up."""
    process: ForkServerProcess | None = None
    starts: int = field(default=0)

    def start(self) -> None:
        self.starts += 1
        self.process = CONTEXT.Process(
            target=_child, args=(self.log, self.work, self.arguments), name=self.name, daemon=True
        )
        self.process.start()

    async def up(self) -> None:
        """Wait until it listens, for a while: on a busy machine the imports of a start take long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STARTING_S):
                while True:
                    try:
                        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    except OSError:
                        await asyncio.sleep(0.1)
                    else:
                        writer.close()
                        return

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.is_alive()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        if self.process:
            self.process.join(ENDING_S)

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def fill_disk(self) -> None:
        """From now on no file of its own can be written."""
        self._limit(0)

    def free_disk(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, most: int) -> None:
        if self.alive:
            try:
                resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
            except ProcessLookupError:
                return

    def _signal(self, number: int) -> None:
        if self.alive:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    @property
    def pid(self) -> int:
        assert self.process
        assert self.process.pid
        return self.process.pid


def _child(log: Path, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it ends with whoever began it
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    work(*arguments)


def rollout_server(arguments: list[str]) -> None:
    """`polar rollout serve`."""
    from polar_mitm.cli import app

    app(["rollout", "serve", *arguments])
