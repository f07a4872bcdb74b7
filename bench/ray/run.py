"""One run: a cluster, a rollout server, gateways by `Fleet`, sessions asked for, two losses, and the check of chaos."""

import asyncio
import os
import random
import secrets
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.chaos.checker import World, check
from bench.chaos.processes import Program, rollout_server
from bench.chaos.run import Found, answered, calm
from bench.chaos.trainer import Trainer
from polar_mitm.rollout.cluster.placing import Placing
from polar_mitm.rollout.cluster.ray import Fleet
from tests.fakes.vllm import FakeVllm, Reply
from tests.ports import free_port

TOKEN = "the-token-of-the-ray-show"
CALL_S = 0.05
LOOK_S = 1.0
OBJECTS = 80 * 1024 * 1024
"""Bytes of each node's object store, in which nothing is put."""


@dataclass(slots=True, frozen=True)
class Plan:
    sessions: int = 400
    nodes: int = 4
    running: int = 30
    """Sessions that run at once on each gateway."""
    samples: int = 10
    """Of a task."""
    limit_s: float = 900.0


class Watcher:
    """Looks at the server once a second; `most` is how many sessions it saw run at once."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.most = 0
        self.done = 0
        self.memory = 0

    async def look(self) -> None:
        while True:
            overview = await self.trainer.patient("GET", "/v1/overview")
            self.most = max(self.most, overview["stages"].get("running", 0))
            self.done = overview["sessions_done"]
            self.memory = max(self.memory, await asyncio.to_thread(_memory))
            await asyncio.sleep(LOOK_S)

    async def until_done(self, count: int) -> None:
        while self.done < count:  # noqa: ASYNC110  (others' processes)
            await asyncio.sleep(LOOK_S)


async def run(plan: Plan, out: Path) -> Found:
    """Everything lies under `out`. A run over its limit is wrong, and is checked as it is then."""
    (out / "ray").mkdir()
    ray_token = secrets.token_hex(32)
    (out / "ray-token").write_text(ray_token)
    os.environ |= {
        "RAY_TMPDIR": str(out),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(out / "ray-token"),
    }
    from ray.cluster_utils import Cluster

    began = time.monotonic()
    os.environ["POLAR_ROLLOUT_TOKEN"] = TOKEN
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(FakeVllm(Reply(delay_s=CALL_S)))
        port = free_port()
        arguments = ["--state", str(out / "server"), "--port", str(port), "--heartbeat", "2"]
        server = Program("server", rollout_server, (arguments,), out / "server.log", port)
        server.start()
        stack.callback(server.kill)

        each = {"num_cpus": 2, "object_store_memory": OBJECTS, "resources": {"gateway": 2}}
        head = each | {"include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)  # it wants the main thread
        stack.callback(cluster.shutdown)
        others = [cluster.add_node(**each) for _ in range(plan.nodes - 1)]
        clustered = time.monotonic() - began

        ledger = out / "ledger"
        placing = Placing(
            arguments=("--engine-url", engine.url, "--ledger", str(ledger), "--running", str(plan.running)),
            cpus=1,
            resource="gateway",
            state=out / "gateways",
            address=cluster.address,
            program=(sys.executable, "-m", "bench.ray.gateway"),
        )
        fleet = Fleet(placing, TOKEN)
        fleet.connect()
        await server.up()
        names = await asyncio.to_thread(fleet.begin, f"http://127.0.0.1:{port}")
        stack.callback(fleet.end)

        trainer = await stack.enter_async_context(Trainer(f"http://127.0.0.1:{port}", TOKEN, random.Random(0)))
        wrong, figures = [], {"nodes": plan.nodes, "gateways": len(names)}
        try:
            async with asyncio.timeout(plan.limit_s):
                await _ready(trainer, set(names))
                figures["nodes with a gateway"] = len(set((await _where()).values()))
                figures["seconds to the cluster"] = round(clustered, 1)
                figures["seconds to all gateways"] = round(time.monotonic() - began - clustered, 1)
                figures |= await _losses(plan, trainer, fleet, cluster, others)
        except TimeoutError:
            wrong.append(f"it was not quiet within {plan.limit_s:g} s")
        known = await trainer.patient("GET", "/v1/gateways")
        places = [(node["url"], out / "gateways" / node["name"] / "state") for node in known]
        own = [*(out / "gateways" / name / "log" for name in names), out / "server.log"]
        found, counted = await check(trainer, World(ledger, places, (), answered(engine), own))
        logs = await asyncio.to_thread(_logs, out)
        wrong += [f"a token stands in {path}" for path, text in logs if TOKEN in text or ray_token in text]
        figures |= counted | {
            "files of logs without a token": len(logs),
            "seconds in all": round(time.monotonic() - began, 1),
        }
        return Found(wrong + found, figures)


async def _losses(plan: Plan, trainer: Trainer, fleet: Fleet, cluster: Any, others: list[Any]) -> dict[str, Any]:
    import ray

    watcher = Watcher(trainer)
    looking = asyncio.create_task(watcher.look())
    began = time.monotonic()
    try:
        for number in range(plan.sessions // plan.samples):
            await trainer.submit(f"task-{number}", plan.samples)
        await watcher.until_done(plan.sessions // 5)

        killed = sorted(fleet.actors)[0]
        ray.kill(fleet.actors[killed], no_restart=False)
        first = await _back(trainer, killed)
        await watcher.until_done(plan.sessions * 2 // 5)

        where = await _where()
        lost = next(name for name in sorted(where) if name != killed and where[name] in {n.node_id for n in others})
        node = next(node for node in others if node.node_id == where[lost])
        incarnation = await _incarnation(trainer, lost)
        began_removal = time.monotonic()
        await asyncio.to_thread(cluster.remove_node, node, allow_graceful=False)
        await _back(trainer, lost, incarnation)
        second = time.monotonic() - began_removal
        await calm(trainer)
        await _delivered(trainer)
        moved = (await _where())[lost] != where[lost]
    finally:
        looking.cancel()
    return {
        "sessions that ran at once": watcher.most,
        "seconds until the killed actor's gateway was back": round(first, 1),
        "seconds until the removed node's gateway was back": round(second, 1),
        "it was on another node then": "yes" if moved else "no",
        "seconds of sessions": round(time.monotonic() - began, 1),
        "memory of all processes, MiB": watcher.memory,
    }


async def _back(trainer: Trainer, name: str, incarnation: str | None = None) -> float:
    """Seconds until a new process has this gateway's name."""
    began = time.monotonic()
    before = incarnation or await _incarnation(trainer, name)
    while await _incarnation(trainer, name) == before or not await _is_ready(trainer, name):  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S / 2)
    return time.monotonic() - began


async def _gateway(trainer: Trainer, name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = await trainer.patient("GET", "/v1/gateways")
    return next(node for node in found if node["name"] == name)


async def _incarnation(trainer: Trainer, name: str) -> str:
    return str((await _gateway(trainer, name))["incarnation"])


async def _is_ready(trainer: Trainer, name: str) -> bool:
    return bool((await _gateway(trainer, name))["state"] == "ready")


async def _ready(trainer: Trainer, names: set[str]) -> None:
    while {node["name"] for node in await trainer.patient("GET", "/v1/gateways")} < names:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)


async def _delivered(trainer: Trainer) -> None:
    """Wait until no gateway holds a report, those of its earlier life included: nobody waits for late ones."""
    for node in await trainer.patient("GET", "/v1/gateways"):
        while await trainer.patient("GET", "/v1/sessions", url=node["url"]):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)


async def _where() -> dict[str, str]:
    """The id of each gateway's node, as Ray's control service has it; the public way would need the dashboard."""
    from ray._private.state import actors

    found = await asyncio.to_thread(actors)
    return {one["Name"]: one["Address"]["NodeID"] for one in found.values() if one["State"] == "ALIVE"}


def _logs(out: Path) -> list[tuple[Path, str]]:
    """All that Ray, the actors, the gateways and the server wrote, sessions' own folders and the database apart."""
    paths = [*(out / "ray").rglob("*"), *out.glob("gateways/*/log"), *out.glob("*.log")]
    return [(path, path.read_text(errors="replace")) for path in paths if path.is_file() and not path.is_symlink()]


def _memory() -> int:
    """MiB of this process and all below it, each page once."""
    total = 0
    for process in (own := psutil.Process(), *own.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total // 2**20
