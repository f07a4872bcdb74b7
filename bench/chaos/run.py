"""One run: everything is started, sessions are asked for while faults happen, then it is quiet, and all is checked."""

import asyncio
import os
import random
import re
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench.chaos.checker import World, check
from bench.chaos.faults import Faults
from bench.chaos.plant import plant
from bench.chaos.processes import Program, rollout_server
from bench.chaos.relay import Relay
from bench.chaos.simulated import serve
from bench.chaos.trainer import Trainer, Unavailable
from polar_mitm.rollout.gateway.settings import Settings, Workers
from tests.fakes.vllm import FakeVllm, Reply
from tests.ports import free_port
from tests.rollout.postgres import restart

TOKEN = "the-token-of-the-chaos"
HEARTBEAT_S = 1.0
CALL_S = 0.05
LOOK_S = 1.0
CHECK_S = 120.0
NAMED = re.compile(r"This is (\S+)\. Say hello")


@dataclass(slots=True, frozen=True)
class Plan:
    sessions: int = 2000
    faults: int = 200
    seed: int = 0
    gateways: int = 3
    running: int = 8
    """Sessions that run at once on each gateway."""
    samples: int = 10
    """Of a task."""
    pause_s: float = 0.5
    """Between faults, on average."""
    limit_s: float = 1800.0
    database: str | None = None
    """A URL, for the server; None is its own SQLite file."""
    plant: str | None = None
    """What is spoiled in the database before the check, by its name in `plant`."""


@dataclass(slots=True)
class Found:
    wrong: list[str]
    figures: dict[str, Any] = field(default_factory=dict)


async def run(plan: Plan, out: Path) -> Found:
    """Everything lies under `out`. A run over its limit is wrong, and is checked as it is then."""
    dice = random.Random(plan.seed)
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(FakeVllm(Reply(delay_s=CALL_S)))
        os.environ["POLAR_ROLLOUT_TOKEN"] = TOKEN
        port = free_port()
        state = out / "server"
        database = plan.database or f"sqlite:///{state / 'rollout.db'}"
        arguments = ["--state", str(state), "--database", database, "--port", str(port)]
        arguments += ["--heartbeat", str(HEARTBEAT_S)]
        server = Program("server", rollout_server, (arguments,), out / "server.log", port)
        front = await stack.enter_async_context(Relay(port))
        ledger = out / "ledger"
        gateways, relays, places = [], [front], []
        workers = Workers(preparing=4, ready=4, running=plan.running, grading=4, waiting=plan.running)
        for number in range(plan.gateways):
            own = free_port()
            relay = await stack.enter_async_context(Relay(own))
            settings = Settings(
                server_url=front.url,
                token=TOKEN,
                engine_urls=[engine.url],
                state=out / f"gw-{number}",
                name=f"gw-{number}",
                port=own,
                url=relay.url,
                workers=workers,
            )
            gateways.append(Program(settings.name, serve, (settings, ledger), out / f"{settings.name}.log", own))
            relays.append(relay)
            places.append((f"http://127.0.0.1:{own}", settings.state))
        trainer = await stack.enter_async_context(Trainer(front.url, TOKEN, random.Random(dice.random())))
        programs = [server, *gateways]
        for program in programs:
            program.start()
            stack.callback(program.kill)
        faults = Faults(server, gateways, relays, random.Random(dice.random()))
        if plan.database:
            faults.restart_database = partial(restart, plan.database)
        wrong = []
        try:
            async with asyncio.timeout(plan.limit_s):
                await _ready(trainer, plan.gateways)
                await _storm(plan, trainer, faults, dice)
                stormed = time.monotonic() - began
                faults.mend()
                await calm(trainer)
                await trainer.submit("calm", plan.gateways * workers.capacity)
                await calm(trainer)
                if plan.plant:
                    server.kill()
                    await asyncio.to_thread(plant, plan.plant, database)
                    server.start()
        except TimeoutError:
            wrong.append(f"it was not quiet within {plan.limit_s:g} s")
            stormed = time.monotonic() - began
        faults.mend()
        try:
            async with asyncio.timeout(CHECK_S):
                logs = [program.log for program in programs]
                found, figures = await check(trainer, World(ledger, places, faults.done, answered(engine), logs))
        except TimeoutError:
            found, figures = [f"it could not be checked within {CHECK_S:g} s"], {}
        figures |= {
            "faults": len(faults.done),
            **{f"  {kind}": count for kind, count in sorted(faults.counts.items())},
            "connections cut": faults.cut_off,
            "starts of processes": sum(program.starts for program in programs),
            "requests sent again by the trainer": trainer.retries,
            "answers of 5xx but 503": sum(n for status, n in trainer.failures.items() if status != 503),
            "callbacks delivered": sum(ids.total() for ids in trainer.callbacks.values()),
            "callbacks refused on purpose": trainer.refused,
            "seconds of faults": round(stormed, 1),
            "seconds in all": round(time.monotonic() - began, 1),
        }
        return Found(wrong + found, figures)


async def _ready(trainer: Trainer, gateways: int) -> None:
    """Wait until every gateway has registered."""
    while len(await trainer.patient("GET", "/v1/gateways")) < gateways:  # noqa: ASYNC110  (they are other processes)
        await asyncio.sleep(LOOK_S)


async def _storm(plan: Plan, trainer: Trainer, faults: Faults, dice: random.Random) -> None:
    """Tasks are sent as faults go on, so that sessions run under all of them."""
    tasks = max(1, plan.sessions // plan.samples)
    sending: set[asyncio.Task[None]] = set()
    sent = 0
    for number in range(plan.faults):
        while sent * plan.faults < (number + 1) * tasks and sent < tasks:
            sending.add(asyncio.create_task(trainer.submit(f"task-{sent}", plan.samples)))
            sent += 1
        await asyncio.sleep(dice.uniform(0, 2 * plan.pause_s))
        await faults.one()
        faults.mend()
    await asyncio.gather(*sending)


async def calm(trainer: Trainer) -> None:
    """Wait until every task has ended and every callback was delivered."""
    while True:
        try:
            overview = await trainer.ask("GET", "/v1/overview")
        except Unavailable:
            overview = None
        open_tasks = overview and sum(overview["tasks"].get(status, 0) for status in ("queued", "running"))
        if overview and not open_tasks and not overview["callbacks_pending"] and not any(overview["stages"].values()):
            return
        await asyncio.sleep(LOOK_S)


def answered(engine: FakeVllm) -> Counter[str]:
    """Calls that the engine was asked for, by the session that its prompt names."""
    named = (NAMED.search(str(request["messages"][-1]["content"])) for request in engine.requests)
    return Counter(found[1] for found in named if found)
