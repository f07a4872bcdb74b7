"""Changes the weights of all gateways' engines: every gateway holds its calls before any engine changes.

Engines that several gateways use are changed by one of them. The server keeps nothing of it on disk: each gateway knows
its own phase and tells it with every heartbeat. A change that the server did not see the end of is made again.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from prometheus_client import Counter

from polar_mitm.client.policy import FleetPolicy, GatewayPolicy, Load, Pause, PolicyState, Resume, Update
from polar_mitm.rollout.server.board import Board, Node
from polar_mitm.rollout.server.wire import StepFailed, Wire
from polar_mitm.rollout.store.writer import Conflict, NotFound

logger = logging.getLogger(__name__)

PROBE_S = 300.0
"""For a step beside its own limit: an engine's first answer with new weights takes its time on a busy machine."""
FORGOTTEN = "no change is under way, and calls are held: make it again, or resume (`polar policy resume`)"
HELD = (
    "calls are held: make the change again, or name the weights that the engines have by `polar policy resume VERSION` "
    "(without VERSION: those of before)"
)
GO_ON = "calls go on, with the weights of before"


@dataclass(slots=True)
class _Change:
    names: list[str]
    """Of the gateways. One that is started again meanwhile is another Node, which still holds its calls."""
    wanted: str | None
    phase: Literal["pausing", "updating", "resuming", "paused", "serving", "failed"] = "pausing"
    trouble: str | None = None
    troubles: dict[str, str] = field(default_factory=dict)
    """By gateway."""
    task: asyncio.Task[None] | None = None


class _Undone(Exception):
    """Not every gateway did its step."""


class Policies:
    def __init__(self, board: Board, wire: Wire, outcomes: Counter) -> None:
        """`outcomes` counts changes by what became of them."""
        self.board, self.wire, self.outcomes = board, wire, outcomes
        self._change: _Change | None = None

    def view(self) -> FleetPolicy:
        change = self._change
        nodes = {node.name: node for node in self.board.nodes.values() if node.alive}
        if change is not None:
            nodes |= {node.name: node for node in self._nodes(change)}
        shown = [
            GatewayPolicy(name=name, policy=node.policy, trouble=change.troubles.get(name) if change else None)
            for name, node in sorted(nodes.items())
        ]
        states = [node.policy for node in nodes.values() if node.policy]
        versions = {node.policy_version for node in nodes.values()}
        view = FleetPolicy(
            phase="serving",
            version=versions.pop() if len(versions) == 1 else None,
            held=sum(state.held for state in states),
            gateways=shown,
        )
        if change is not None and change.phase != "serving":
            view.phase, view.trouble, view.wanted = change.phase, change.trouble, change.wanted
            if change.phase == "failed":
                held = any(state.phase != "serving" for state in states)
                view.trouble = f"{change.trouble}; {HELD if held else GO_ON}"
        elif any(state.phase != "serving" for state in states):
            view.phase, view.trouble = "paused", FORGOTTEN
        return view

    def pause(self, asked: Pause) -> FleetPolicy:
        """Begin. Raises Conflict and NotFound."""
        return self._begin(asked.gateways, None, lambda change: self._pause(change, asked))

    def update(self, asked: Update) -> FleetPolicy:
        """Begin. Raises Conflict and NotFound."""
        return self._begin(asked.gateways, asked.version, lambda change: self._update(change, asked))

    def resume(self, asked: Resume) -> FleetPolicy:
        """Begin. Raises Conflict and NotFound."""
        return self._begin(asked.gateways, asked.version, lambda change: self._resume(change, asked.version))

    async def stop(self) -> None:
        if self._change and self._change.task:
            self._change.task.cancel()
            await asyncio.gather(self._change.task, return_exceptions=True)

    def _begin(self, names: Sequence[str] | None, wanted: str | None, work: Any) -> FleetPolicy:
        if self._change and self._change.task and not self._change.task.done():
            raise Conflict(f"a change of the policy is {self._change.phase}: wait for its end (GET /v1/policy)")
        alive = {node.name: node for node in self.board.nodes.values() if node.alive}
        if missing := [name for name in names or () if name not in alive]:
            raise NotFound(f"no gateway {', '.join(missing)} is there")
        if not alive:
            raise Conflict("there is no gateway whose policy could change")
        change = _Change([name for name in alive if names is None or name in names], wanted)
        self._change = change
        change.task = asyncio.create_task(self._run(change, work(change)))
        return self.view()

    def _nodes(self, change: _Change) -> list[Node]:
        return [self.board.nodes[name] for name in change.names]

    async def _run(self, change: _Change, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except _Undone as error:
            change.phase, change.trouble = "failed", str(error)
            logger.warning("the change of the policy to %s failed: %s", change.wanted, error)
        except Exception as error:  # the border of a change: whoever waits for its end must hear of it
            logger.exception("the change of the policy broke off")
            change.phase, change.trouble = "failed", f"polar failed: {error!r}"
        self.outcomes.labels(change.phase).inc()

    async def _update(self, change: _Change, asked: Update) -> None:
        await self._paused(change, Pause(mode=asked.mode, limit_s=asked.limit_s, to_load=asked.weights is not None))
        await self._load(change, asked.version, asked.weights, asked.limit_s)
        await self._let_go(change, asked.version)

    async def _pause(self, change: _Change, asked: Pause) -> None:
        await self._paused(change, asked)
        change.phase = "paused"

    async def _resume(self, change: _Change, version: str | None) -> None:
        if version is not None:
            await self._load(change, version, None, PROBE_S)
        await self._let_go(change, version)

    async def _paused(self, change: _Change, asked: Pause) -> None:
        """Where a gateway cannot pause, nothing is changed, and all go on as before."""
        change.phase = "pausing"
        try:
            await self._all(
                change, {name: asked.model_copy(update={"gateways": None}) for name in change.names}, asked.limit_s
            )
        except _Undone:
            troubles = dict(change.troubles)
            try:
                await self._let_go(change, None)
            except _Undone as error:
                logger.warning("not every gateway goes on: %s", error)
            change.troubles |= troubles
            raise

    async def _load(self, change: _Change, version: str, weights: str | None, limit_s: float) -> None:
        change.phase = "updating"
        loads = {
            name: Load(version=version, weights=weights, limit_s=limit_s, engines=urls)
            for name, urls in _shares(self._nodes(change)).items()
        }
        await self._all(change, loads, limit_s)

    async def _let_go(self, change: _Change, version: str | None) -> None:
        change.phase = "resuming"
        await self._all(change, {name: Resume(version=version) for name in change.names}, 0)
        change.phase = "serving"

    async def _all(self, change: _Change, bodies: Mapping[str, Pause | Load | Resume], limit_s: float) -> None:
        """Raises _Undone, when every gateway has answered."""
        change.troubles = {}
        asked = [node for node in self._nodes(change) if node.name in bodies]
        await asyncio.gather(*(self._one(change, node, bodies[node.name], limit_s + PROBE_S) for node in asked))
        self.board.fleet_changed()
        if change.troubles:
            raise _Undone("; ".join(f"gateway {name}: {why}" for name, why in change.troubles.items()))

    async def _one(self, change: _Change, node: Node, body: Pause | Load | Resume, limit_s: float) -> None:
        step = type(body).__name__.lower()
        try:
            state = await self.wire.policy(node.registration.url, step, body, limit_s)
        except StepFailed as error:
            change.troubles[node.name] = str(error)
        else:
            node.policy, node.policy_version = state, state.version


def _shares(nodes: Sequence[Node]) -> dict[str, list[str]]:
    """Which gateway changes which engines: each engine once. The same address on two machines is two engines, which
    began at different times."""
    seen: set[tuple[str, object]] = set()
    shares: dict[str, list[str]] = {}
    for node in nodes:
        for engine in _engines(node.policy):
            key = (engine.url, engine.began if engine.began is not None else node.name)
            if key not in seen:
                seen.add(key)
                shares.setdefault(node.name, []).append(engine.url)
    return shares


def _engines(state: PolicyState | None) -> list[Any]:
    return state.engines if state else []
