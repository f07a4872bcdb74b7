"""Gives sessions to gateways: picks, writes it down, posts, and finds out what became of a post that was not answered.

A session is asked for under its one id until the gateway says that it has it or has not. Only where the very first post
was turned down may the same session go elsewhere; after any doubt it is another attempt that does.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prometheus_client import Counter
from sqlalchemy.exc import SQLAlchemyError

from polar_mitm.client.models import TaskRequest
from polar_mitm.client.nodes import Assignment, GivenBudgets
from polar_mitm.json_text import loads
from polar_mitm.rollout.server.board import Board, Live, Node
from polar_mitm.rollout.server.wire import Answer, Wire
from polar_mitm.rollout.store.clock import Clock
from polar_mitm.rollout.store.ends import End
from polar_mitm.rollout.store.entries import Assigned, Queued
from polar_mitm.rollout.store.reads import Reads
from polar_mitm.rollout.store.reports import assign, lose, take_back
from polar_mitm.rollout.store.writer import StoreFailed, Writer

logger = logging.getLogger(__name__)

AT_ONCE = 64
"""Posts that wait for an answer."""

CACHED = 32 * 1024 * 1024
"""Characters of requests that are kept for the next sample of the same task."""

BUSY = (0.1, 0.3, 1.0, 3.0)
"""Seconds for which a gateway without a place is given nothing; the last is used from then on."""

BACKOFF = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds before a post in doubt is sent again; the last is used from then on."""


@dataclass(slots=True)
class Dispatcher:
    board: Board
    writer: Writer
    reads: Reads
    wire: Wire
    clock: Clock
    answers: Counter
    """By the gateway's answer."""
    _posts: set[asyncio.Task[None]] = field(default_factory=set)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    _requests: "OrderedDict[str, tuple[TaskRequest, int]]" = field(default_factory=OrderedDict)
    _cached: int = 0

    async def run(self) -> None:
        """Give out what can be given, whenever something has changed."""
        while True:
            await self.board.work.wait()
            self.board.work.clear()
            try:
                await self._round()
            except StoreFailed as error:
                logger.warning("nothing is given to gateways for now: %s", error)
                await asyncio.sleep(1)
                self.board.work.set()

    async def stop(self) -> None:
        posts = list(self._posts)
        for post in posts:
            post.cancel()
        await asyncio.gather(*posts, return_exceptions=True)

    async def stops(self) -> None:
        """Tell gateways to end what is to be cancelled."""
        while True:
            await self.board.stops.wait()
            self.board.stops.clear()
            for live in self.board.live.values():
                if not live.stopping or not live.settled or live.told:
                    continue
                live.told = True
                if node := self.board.nodes.get(live.gateway):
                    self._spawn(partial(self._cancel, node, live.session_id))

    def post(self, live: Live, queued: Queued | None = None) -> None:
        """See to it that the gateway has the session."""
        self._spawn(partial(self._deliver, live, queued))

    async def _round(self) -> None:
        board = self.board
        places = {node.name: node.places for node in board.nodes.values() if node.places}
        if not places or not len(board.line):
            return
        picks = board.line.take(places, board.fitting)
        if not picks:
            return
        chosen = [(queued, name, board.nodes[name].incarnation) for queued, name in picks]
        moving = {queued.session_id: queued for queued, _ in picks}
        board.moving |= moving.keys()

        def given(those: list[Assigned]) -> None:
            board.moving.difference_update(moving)
            for live in board.give(those):
                self.post(live, moving[live.session_id])

        try:
            await self.writer.write(partial(assign, picks=chosen), given)
        except BaseException:
            board.moving.difference_update(moving)
            for queued in moving.values():
                board.line.add(queued)
            raise

    async def _deliver(self, live: Live, queued: Queued | None) -> None:
        tries = 0
        while self._current(live) and not live.settled:
            node = self.board.nodes.get(live.gateway)
            if node is None or not node.alive or node.incarnation != live.incarnation:
                await self._give_up(live)
                return
            if live.stopping and not live.doubtful:
                await self._return(live)
                return
            async with self._slots:
                answer, said = await self._ask(live, node, queued)
            self.answers.labels(answer).inc()
            if not self._current(live) or live.settled or await self._settle(live, node, answer, said):
                return
            await asyncio.sleep(BACKOFF[min(tries, len(BACKOFF) - 1)])
            tries += 1

    async def _settle(self, live: Live, node: Node, answer: Answer, said: str) -> bool:
        """Whether it is known where the session is."""
        match answer:
            case "taken":
                live.settled, node.turned_down = True, 0
                if live.stopping:
                    self.board.stops.set()
                return True
            case "refused":
                reason = f"gateway {node.name} refused it: {said[:500]}"
                await self._end(live, End("error", reason, "assigned", fault=True))
                return True
            case "busy" | "other" | "unreached" if not live.doubtful:
                self._block(node, answer)
                await self._return(live)
                return True
            case "busy":
                # It does not have it now. The post that was not answered may still be on its way, so that this session
                # may not be given to another.
                reason = f"gateway {node.name} did not answer, and has no place for it"
                await self._end(live, End("lost", reason, "assigned", fault=True, free=True))
                return True
            case "unasked":
                logger.warning("session %s is not given out yet: %s", live.session_id, said)
            case "unknown":
                live.doubtful = True
                logger.info("session %s: gateway %s may have it: %s", live.session_id, node.name, said)
        return False

    def _block(self, node: Node, answer: Answer) -> None:
        """Nothing more goes there for a while; where nobody answered, until it beats again."""
        node.blocked = True
        if answer == "busy":  # most often it has yet to hear that its report was taken
            pause = BUSY[min(node.turned_down, len(BUSY) - 1)]
            node.turned_down += 1
            asyncio.get_running_loop().call_later(pause, self._unblock, node)

    def _unblock(self, node: Node) -> None:
        node.blocked = False
        self.board.work.set()

    async def _ask(self, live: Live, node: Node, queued: Queued | None) -> tuple[Answer, str]:
        try:
            row = await self.reads.session(live.session_id)
            request = await self._request(live.task_id)
        except (SQLAlchemyError, OSError) as error:
            return "unasked", str(error)
        if row is None or request is None:
            return "refused", "its request is gone from the database"
        left = queued.deadline - self.clock.now() if queued and queued.deadline is not None else None
        assignment = Assignment(
            session_id=live.session_id,
            task_id=live.task_id,
            group_id=row.group_id,
            sample=row.sample,
            attempt=row.attempt,
            gateway=live.gateway,
            incarnation=live.incarnation,
            scenario=request.scenario,
            changes=request.changes,
            instruction=request.instruction,
            data=request.data,
            budgets=GivenBudgets(
                waiting_s=None if left is None else max(left, 0.001),
                preparing_s=request.budgets.preparing_s,
                running_s=request.budgets.running_s,
                grading_s=request.budgets.grading_s,
            ),
            builder=request.builder,
            policy_version=request.policy_version,
        )
        return await self.wire.assign(node.registration.url, assignment)

    async def _request(self, task_id: str) -> TaskRequest | None:
        if task_id in self._requests:
            self._requests.move_to_end(task_id)
            return self._requests[task_id][0]
        body = await self.reads.request(task_id)
        if body is None:
            return None
        request = await asyncio.to_thread(lambda: TaskRequest.model_validate(loads(body)))
        if task_id in self._requests:  # another sample's post was faster
            return request
        size = len(body)
        self._requests[task_id] = request, size
        self._cached += size
        while self._cached > CACHED and len(self._requests) > 1:
            _, (_, dropped) = self._requests.popitem(last=False)
            self._cached -= dropped
        return request

    async def _return(self, live: Live) -> None:
        await self._write_until(partial(take_back, session_id=live.session_id))

    async def _give_up(self, live: Live) -> None:
        """Its gateway has gone since it was picked."""
        if live.doubtful:
            await self._end(live, End("lost", f"gateway {live.gateway} is gone", "assigned", fault=True))
        else:
            await self._return(live)

    async def _end(self, live: Live, how: End) -> None:
        await self._write_until(partial(lose, session_ids=[live.session_id], how=how))

    async def _write_until(self, operation: Any) -> None:
        while True:
            try:
                await self.writer.write(operation, self.board.apply)
                return
            except StoreFailed as error:
                logger.warning("a session is not put back yet: %s", error)
                await asyncio.sleep(1)

    async def _cancel(self, node: Node, session_id: str) -> None:
        async with self._slots:
            await self.wire.cancel(node.registration.url, session_id)

    def _current(self, live: Live) -> bool:
        return self.board.live.get(live.session_id) is live

    def _spawn(self, work: Callable[[], Any]) -> None:
        task = asyncio.create_task(work())
        self._posts.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._posts.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("a post to a gateway broke off", exc_info=error)
