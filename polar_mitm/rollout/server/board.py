"""What the server keeps in memory: the line, the gateways, the sessions they have. It follows the database.

Nothing here is the truth: it is changed only by what an operation on the store came to, once that is on disk.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from polar_mitm.client.models import Stage, StageTimes
from polar_mitm.client.nodes import Gateway, GatewayState, Heartbeat, Registration
from polar_mitm.client.policy import PolicyState
from polar_mitm.rollout.server.line import Line
from polar_mitm.rollout.store.entries import Assigned, Effects, Lane


@dataclass(slots=True)
class Live:
    """A session that was given to a gateway."""

    session_id: str
    task_id: str
    gateway: str
    incarnation: str
    stopping: bool = False
    """It is to be cancelled."""
    settled: bool = False
    """The gateway has said that it has it."""
    doubtful: bool = False
    """The gateway may have it: it was asked, and what it said is not known."""
    told: bool = False
    """The gateway was told to end it."""
    misses: int = 0
    """Heartbeats in a row that did not name it."""
    stage: Stage = "assigned"
    times: StageTimes = field(default_factory=StageTimes)


@dataclass(slots=True)
class Node:
    """A gateway."""

    registration: Registration
    registered_at: float
    seen_at: float
    """By the server's clock."""
    beat: float
    """By the loop's clock."""
    state: GatewayState = "ready"
    draining: bool = False
    """It was told to take nothing more."""
    capacity: int = 0
    policy_version: str | None = None
    policy: PolicyState | None = None
    held: set[str] = field(default_factory=set)
    strange: int = 0
    """Sessions that it has beside those."""
    blocked: bool = False
    """It had no place, or could not be reached: nothing goes there until it beats again."""
    turned_down: int = 0
    """So often in a row."""
    lost: int = 0

    @property
    def name(self) -> str:
        return self.registration.name

    @property
    def incarnation(self) -> str:
        return self.registration.incarnation

    @property
    def alive(self) -> bool:
        return self.state in ("ready", "draining")

    @property
    def places(self) -> int:
        if self.state != "ready" or self.draining or self.blocked:
            return 0
        return max(0, self.capacity - len(self.held) - self.strange)

    def fits(self, lane: Lane) -> bool:
        has = self.registration
        return (
            self.alive
            and lane.policy_version in (None, self.policy_version)
            and (lane.harness is None or has.harnesses is None or lane.harness in has.harnesses)
            and (lane.sandbox is None or has.sandboxes is None or lane.sandbox in has.sandboxes)
            and (lane.scenario is None or has.scenarios is None or lane.scenario in has.scenarios)
        )

    def hears(self, beat: Heartbeat, now: float, seen_at: float) -> None:
        self.beat, self.seen_at = now, seen_at
        self.state = beat.state
        self.capacity, self.policy_version, self.policy = beat.capacity, beat.policy_version, beat.policy
        self.blocked = False


class Board:
    def __init__(self) -> None:
        self.line = Line()
        self.live: dict[str, Live] = {}
        self.nodes: dict[str, Node] = {}
        self.moving: set[str] = set()
        """Sessions that were taken out of the line and are being given to a gateway."""
        self.work = asyncio.Event()
        """Something may have to be given out."""
        self.stops = asyncio.Event()
        """Something may have to be ended at a gateway."""
        self.callbacks = asyncio.Event()
        self.resync = False
        """It may not be what is on disk any more."""
        self._fitting: dict[Lane, list[str]] = {}

    def apply(self, effects: Effects) -> None:
        for session_id in effects.over:
            self.line.remove(session_id)
            self.release(session_id)
        for queued in effects.queued:
            self.release(queued.session_id)
            self.line.add(queued)
        for session_id in effects.cancel:
            if live := self.live.get(session_id):
                live.stopping = True
        if effects.over or effects.queued:
            self.work.set()
        if effects.cancel:
            self.stops.set()
        if effects.callbacks:
            self.callbacks.set()

    def give(self, given: Iterable[Assigned], *, doubtful: bool = False) -> list[Live]:
        """Sessions that gateways are given. `doubtful`: they may have them already."""
        new = []
        for one in given:
            if one.session_id in self.live:
                continue
            live = Live(one.session_id, one.task_id, one.gateway, one.incarnation, one.stopping, doubtful=doubtful)
            self.live[one.session_id] = live
            if node := self.nodes.get(one.gateway):
                node.held.add(one.session_id)
            new.append(live)
        return new

    def release(self, session_id: str) -> None:
        """No gateway is meant to have it any more."""
        if live := self.live.pop(session_id, None):
            if node := self.nodes.get(live.gateway):
                node.held.discard(session_id)
            self.work.set()

    def fitting(self, lane: Lane) -> list[str]:
        """The gateways that can run what stands in this lane."""
        known = self._fitting.get(lane)
        if known is None:
            known = self._fitting[lane] = [node.name for node in self.nodes.values() if node.fits(lane)]
        return known

    def fleet_changed(self) -> None:
        """A gateway came, went, or serves another policy."""
        self._fitting.clear()
        self.work.set()

    def gateway(self, node: Node) -> Gateway:
        stages: dict[Stage, int] = {}
        for session_id in node.held:
            if live := self.live.get(session_id):
                stages[live.stage] = stages.get(live.stage, 0) + 1
        return Gateway(
            name=node.name,
            incarnation=node.incarnation,
            url=node.registration.url,
            state="draining" if node.draining and node.state == "ready" else node.state,
            capacity=node.capacity,
            held=len(node.held),
            stages=stages,
            policy_version=node.policy_version,
            version=node.registration.version,
            labels=node.registration.labels,
            engines=node.policy.engines if node.policy else [],
            registered_at=node.registered_at,
            last_seen_at=node.seen_at,
            lost_sessions=node.lost,
        )

    def stages(self) -> dict[Stage, int]:
        """Sessions that are not done, by stage."""
        counts: dict[Stage, int] = {"queued": len(self.line) + len(self.moving)}
        for live in self.live.values():
            counts[live.stage] = counts.get(live.stage, 0) + 1
        return counts
