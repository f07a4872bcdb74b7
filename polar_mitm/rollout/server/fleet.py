"""The gateways: they come, beat, go, and are found dead.

A gateway is dead that was silent for two heartbeats by the loop's clock, which no change of the machine's clock moves.
Where the server itself stood still meanwhile, everybody gets that time again.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy import Row

from polar_mitm.client.models import Event, StageTimes
from polar_mitm.client.nodes import GatewayState, Heartbeat, HeartbeatReply, Registered, Registration
from polar_mitm.rollout.server.board import Board, Live, Node
from polar_mitm.rollout.server.broadcast import Broadcast
from polar_mitm.rollout.server.dispatch import Dispatcher
from polar_mitm.rollout.server.settings import Settings
from polar_mitm.rollout.store import fleet as operations
from polar_mitm.rollout.store.clock import Clock
from polar_mitm.rollout.store.ends import End
from polar_mitm.rollout.store.entries import Effects
from polar_mitm.rollout.store.reports import lose
from polar_mitm.rollout.store.writer import NotFound, Refused, StoreFailed, Writer

logger = logging.getLogger(__name__)

MISSES = 2
"""Heartbeats in a row that do not name a session before it is taken for lost: one may have been under way already when
the gateway took it."""


class Superseded(Refused):
    """Another process has the gateway's name."""


@dataclass(slots=True)
class Fleet:
    board: Board
    writer: Writer
    clock: Clock
    dispatcher: Dispatcher
    broadcast: Broadcast
    settings: Settings
    _background: set[asyncio.Task[None]] = field(default_factory=set)

    async def load(self, known: Sequence[tuple[Registration, Row[Any]]]) -> None:
        """Gateways from before: each has the time of two heartbeats to be heard of."""
        now = asyncio.get_running_loop().time()
        for registration, row in known:
            node = Node(registration, row.registered_at, self.clock.now(), now, row.state, row.draining)
            node.capacity, node.policy_version = registration.capacity, registration.policy_version
            node.blocked = True  # until it beats
            self.board.nodes[node.name] = node

    async def register(self, new: Registration) -> Registered:
        """Raises StoreFailed."""

        def then(done: operations.Registered) -> None:
            before = self.board.nodes.get(new.name)
            self.board.apply(done.effects)
            now, seen = asyncio.get_running_loop().time(), self.clock.now()
            node = Node(new, seen, seen, now, "ready", done.draining, new.capacity, new.policy_version)
            node.strange = len(new.sessions) - len(done.held)
            if before is not None:
                node.held, node.lost = before.held, before.lost + len(done.effects.over)
            self.board.nodes[new.name] = node
            for session_id in done.held:
                if live := self.board.live.get(session_id):
                    live.incarnation, live.settled = new.incarnation, True
                    self._stage(live, new.sessions)
            self.board.fleet_changed()

        done = await self.writer.write(partial(operations.register, new=new), then)
        return Registered(
            heartbeat_s=self.settings.heartbeat_s,
            cancel=done.strange,
            drain=done.draining,
            store_url=self.settings.files if self.settings.direct_files else None,
        )

    def beat(self, name: str, beat: Heartbeat) -> HeartbeatReply:
        """Raises NotFound and Superseded."""
        node = self.board.nodes.get(name)
        if node is None or node.state == "left":
            raise NotFound(f"gateway {name!r} is not registered")
        if node.incarnation != beat.incarnation:
            raise Superseded(f"another process has registered as gateway {name!r} since: end all sessions and stop")
        before = (node.state, node.policy_version, node.places)
        was_down = node.state == "down"
        node.hears(beat, asyncio.get_running_loop().time(), self.clock.now())
        strange = [session_id for session_id in beat.sessions if session_id not in node.held]
        node.strange = len(strange)
        missing, stopping = self._compare(node, beat)
        if was_down:
            self._do(partial(operations.back, name=name), None)
        if missing:
            self._lose(node, missing)
        if (node.state, node.policy_version) != before[:2]:
            self.board.fleet_changed()
        elif node.places > before[2]:
            self.board.work.set()
        return HeartbeatReply(cancel=sorted({*strange, *stopping}), drain=node.draining)

    async def leave(self, name: str, incarnation: str) -> None:
        """Raises NotFound, Superseded and StoreFailed."""
        node = self.board.nodes.get(name)
        if node is None:
            raise NotFound(f"gateway {name!r} is not registered")
        if node.incarnation != incarnation:
            raise Superseded(f"another process has registered as gateway {name!r} since")
        await self._gone(node, "left", f"gateway {name} left")

    async def drain(self, name: str, draining: bool) -> Node:
        """Raises NotFound and StoreFailed."""

        def then(_: None) -> None:
            self.board.nodes[name].draining = draining
            self.board.fleet_changed()

        await self.writer.write(partial(operations.drain, name=name, draining=draining), then)
        return self.board.nodes[name]

    async def watch(self) -> None:
        """Find the dead."""
        loop = asyncio.get_running_loop()
        tick = self.settings.heartbeat_s / 4
        last = loop.time()
        while True:
            await asyncio.sleep(tick)
            now = loop.time()
            await self.look(now, stood=now - last - tick)
            last = now

    async def look(self, now: float, *, stood: float) -> None:
        """Find the dead at this time of the loop's clock. `stood`: seconds that the look is late."""
        silence = 2 * self.settings.heartbeat_s
        if stood > self.settings.heartbeat_s / 2:
            logger.warning("the server stood still for %.1f s: gateways get that time again", stood)
            for node in self.board.nodes.values():
                node.beat += stood
        for node in list(self.board.nodes.values()):
            if not node.alive or now - node.beat <= silence:
                continue
            try:
                await self._gone(node, "down", f"gateway {node.name} was not heard of for {silence:g} s")
            except StoreFailed as error:
                logger.warning("gateway %s is silent: %s", node.name, error)

    async def stop(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    async def _gone(self, node: Node, state: GatewayState, why: str) -> None:
        def then(effects: Effects) -> None:
            node.state = state
            node.lost += len(effects.over)
            self.board.apply(effects)
            self.board.fleet_changed()

        operation = partial(operations.gone, name=node.name, incarnation=node.incarnation, state=state, why=why)
        effects = await self.writer.write(operation, then)
        logger.warning("%s: %d sessions are begun again", why, len(effects.over))

    def _compare(self, node: Node, beat: Heartbeat) -> tuple[list[str], list[str]]:
        """Sessions that it lost, and sessions that it is to end."""
        missing, stopping = [], []
        for session_id in node.held:
            live = self.board.live[session_id]
            if session_id in beat.sessions:
                live.settled, live.misses = True, 0
                self._stage(live, beat.sessions)
                if live.stopping:
                    stopping.append(session_id)
            elif live.settled:
                live.misses += 1
                if live.misses >= MISSES:
                    missing.append(session_id)
        return missing, stopping

    def _stage(self, live: Live, sessions: dict[str, Any]) -> None:
        stage = sessions[live.session_id]
        if stage == live.stage:
            return
        live.stage = stage
        now = self.clock.now()
        if (name := f"{stage}_at") in StageTimes.model_fields:
            setattr(live.times, name, now)
        told = Event(
            type="session.stage",
            at=now,
            task_id=live.task_id,
            session_id=live.session_id,
            gateway=live.gateway,
            data={"stage": stage},
        )
        self.broadcast.publish([told])

    def _lose(self, node: Node, session_ids: Sequence[str]) -> None:
        for session_id in session_ids:
            self.board.live[session_id].misses = 0  # so that the next beat does not do it again
        node.lost += len(session_ids)
        how = End("lost", f"gateway {node.name} has it no more", "assigned", fault=True)
        self._do(partial(lose, session_ids=list(session_ids), how=how), self.board.apply)

    def _do(self, operation: Any, then: Any) -> None:
        async def write() -> None:
            try:
                await self.writer.write(operation, then)
            except StoreFailed as error:
                logger.warning("what a heartbeat told is not on disk yet: %s", error)

        task = asyncio.create_task(write())
        self._background.add(task)
        task.add_done_callback(self._background.discard)
