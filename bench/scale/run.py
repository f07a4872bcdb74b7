"""One measurement: so many tasks of one session in line, then gateways that run so many of them at once.

A gateway's harness only sleeps and calls the model; all else is real. Times are of processors, not of the clock.
"""

import asyncio
import os
import random
import sqlite3
import time
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.chaos.processes import Program, rollout_server
from bench.chaos.relay import Relay
from bench.chaos.simulated import serve
from bench.chaos.trainer import Trainer
from polar_mitm.rollout.gateway.settings import Settings, Workers
from polar_mitm.rollout.store.tables import metadata
from tests.fakes.vllm import FakeVllm, Reply
from tests.ports import free_port

TOKEN = "the-token-of-the-scale"
CALL_S = 0.05
LOOK_S = 1.0
AT_ONCE = 32
"""Requests of the trainer."""


@dataclass(slots=True, frozen=True)
class Plan:
    sessions: int
    calls: int = 2
    """Of a session."""
    gateways: int = 2
    running: int = 128
    """Sessions that run at once on each gateway."""
    window: tuple[int, int] | None = None
    """Costs are measured from when so many sessions have ended to when so many have: what it costs to run a session
    while a long line stands behind it is known without running all. None: of all, from the first to the last."""
    relayed: bool = False
    """Whether all that the server says and hears is counted, which costs time."""


@dataclass(slots=True)
class Figures:
    """Of one plan. Processor seconds of the run are of all sessions that were measured together."""

    sessions: int
    """In line."""
    measured: int
    calls: int
    in_flight: int
    """Sessions that were on gateways at once, at most."""
    submit_s: float
    """Of the server's processor, to take the tasks."""
    server_s: float
    """Of the server's processor, from then on."""
    gateway_s: float
    """Of the gateways' processors."""
    wall_s: float
    in_flight_bytes: int
    """What the gateways' memory grew by, at most."""
    database_bytes: int
    database_rows: int | None
    """Null: not counted."""
    files_bytes: int
    network_bytes: int | None
    """Between the server and everybody else."""

    @property
    def server_ms(self) -> float:
        """Of the server's processor, for one session from its submission to its end."""
        return 1000 * (self.submit_s / self.sessions + self.server_s / self.measured)

    @property
    def gateway_ms(self) -> float:
        """Of a gateway's processor, for one session."""
        return 1000 * self.gateway_s / self.measured


async def measure(plan: Plan, out: Path) -> Figures:
    """Everything lies under `out`. Raises RuntimeError when a session did not complete."""
    os.environ["POLAR_ROLLOUT_TOKEN"] = TOKEN
    async with AsyncExitStack() as stack:
        at, engine_at = free_port(), free_port()
        engine = Program("engine", fake_engine, (engine_at,), out / "engine.log", engine_at)
        arguments = ["--state", str(out / "server"), "--port", str(at)]
        server = Program("server", rollout_server, (arguments,), out / "server.log", at)
        relay = await stack.enter_async_context(Relay(at)) if plan.relayed else None
        url = relay.url if relay else f"http://127.0.0.1:{at}"
        gateways = [_gateway(plan, number, url, engine_at, out) for number in range(plan.gateways)]
        for program in (engine, server):
            await _started(stack, program)
        trainer = await stack.enter_async_context(Trainer(url, TOKEN, random.Random(0)))
        trainer.refuses = 0.0
        before = _seconds(server)
        await _submit(trainer, range(plan.sessions))
        submitted = _seconds(server)
        for program in gateways:
            await _started(stack, program)
        idle = sum(map(_memory, gateways))
        first, last = plan.window or (0, plan.sessions)
        watch = Watch(trainer, gateways)
        before_run = [0.0, 0.0]
        began, done_before = time.monotonic(), 0
        if plan.window:
            done_before = await watch.until(first)
            before_run = [_seconds(server), sum(map(_seconds, gateways))]
            began = time.monotonic()
        else:
            before_run = [submitted, 0.0]
        done = await watch.until(last)
        figures = Figures(
            sessions=plan.sessions,
            measured=done - done_before,
            calls=plan.calls,
            in_flight=watch.at_once,
            submit_s=submitted - before,
            server_s=_seconds(server) - before_run[0],
            gateway_s=sum(map(_seconds, gateways)) - before_run[1],
            wall_s=time.monotonic() - began,
            in_flight_bytes=watch.memory - idle,
            database_bytes=_size(out / "server", "rollout.db*"),
            database_rows=await asyncio.to_thread(_rows, out / "server" / "rollout.db"),
            files_bytes=_size(out / "server" / "files", "*/*/*"),
            network_bytes=relay.passed if relay else None,
        )
        if watch.failed:
            raise RuntimeError(f"{watch.failed} tasks did not complete")
        return figures


async def memory_in_line(first: int, last: int, out: Path) -> float:
    """Bytes of the server's memory for one session in line, by what it grows by from so many to so many."""
    os.environ["POLAR_ROLLOUT_TOKEN"] = TOKEN
    async with AsyncExitStack() as stack:
        at = free_port()
        arguments = ["--state", str(out / "server"), "--port", str(at)]
        server = Program("server", rollout_server, (arguments,), out / "server.log", at)
        await _started(stack, server)
        trainer = await stack.enter_async_context(Trainer(f"http://127.0.0.1:{at}", TOKEN, random.Random(0)))
        await _submit(trainer, range(first))
        before = _memory(server)
        await _submit(trainer, range(first, last))
        return (_memory(server) - before) / (last - first)


def fake_engine(port: int) -> None:
    """An engine that forgets what it was asked."""

    async def main() -> None:
        engine = FakeVllm(Reply(delay_s=CALL_S))
        engine.port = port
        async with engine:
            while True:
                await asyncio.sleep(1)
                engine.requests.clear()

    asyncio.run(main())


def _gateway(plan: Plan, number: int, url: str, engine_at: int, out: Path) -> Program:
    settings = Settings(
        server_url=url,
        token=TOKEN,
        engine_urls=[f"http://127.0.0.1:{engine_at}"],
        state=out / f"gw-{number}",
        name=f"gw-{number}",
        port=free_port(),
        workers=Workers(preparing=16, ready=16, running=plan.running, grading=16, waiting=plan.running // 4),
    )
    arguments = (settings, out / "ledger", plan.calls)
    return Program(settings.name, serve, arguments, out / f"{settings.name}.log", settings.port)


async def _started(stack: AsyncExitStack, program: Program) -> None:
    program.start()
    stack.callback(program.kill)
    await program.up()


async def _submit(trainer: Trainer, tasks: range) -> None:
    at_once = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with at_once:
            await trainer.submit(f"task-{number}", 1)

    await asyncio.gather(*map(one, tasks))


@dataclass(slots=True)
class Watch:
    """Looks at a run now and then."""

    trainer: Trainer
    gateways: list[Program]
    at_once: int = 0
    """Sessions on gateways, at most."""
    memory: int = 0
    """Bytes of the gateways', at most."""
    failed: int = 0

    async def until(self, done: int) -> int:
        """Wait for so many ends of sessions, and for their callbacks if those are all; how many there are by then."""
        while True:
            overview = await self.trainer.patient("GET", "/v1/overview")
            stages = overview["stages"]
            self.at_once = max(self.at_once, sum(count for stage, count in stages.items() if stage != "queued"))
            self.memory = max(self.memory, sum(map(_memory, self.gateways)))
            self.failed = sum(overview["tasks"].get(status, 0) for status in ("failed", "partial", "cancelled"))
            ended: int = overview["sessions_done"]
            if ended >= done and (any(stages.values()) or not overview["callbacks_pending"]):
                return ended
            await asyncio.sleep(LOOK_S)


def _seconds(program: Program) -> float:
    """Of the processor, so far."""
    used = psutil.Process(program.pid).cpu_times()
    return float(used.user + used.system)


def _memory(program: Program) -> int:
    """Bytes that are the process's own."""
    return int(psutil.Process(program.pid).memory_full_info().uss)


def _size(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern) if path.is_file())


def _rows(database: Path) -> int:
    """Of all tables."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return sum(
            connection.execute(f"select count(*) from {table.name}").fetchone()[0] for table in metadata.sorted_tables
        )
