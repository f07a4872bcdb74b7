"""The rollout server without HTTP: it opens the store, runs the workers, and does what the API asks."""

import asyncio
import hashlib
import json
import logging
import secrets
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Self

from sqlalchemy import Row
from sqlalchemy.exc import SQLAlchemyError

from polar_mitm import __version__
from polar_mitm.capture.names import new_session_id
from polar_mitm.client.models import CallbackView, Event, Overview, Session, Task, TaskRequest
from polar_mitm.client.nodes import Report
from polar_mitm.json_text import dumps
from polar_mitm.rollout.server.board import Board
from polar_mitm.rollout.server.broadcast import Broadcast
from polar_mitm.rollout.server.callbacks import Postman
from polar_mitm.rollout.server.dispatch import Dispatcher
from polar_mitm.rollout.server.fleet import Fleet
from polar_mitm.rollout.server.metrics import Metrics
from polar_mitm.rollout.server.policy import Policies
from polar_mitm.rollout.server.scenarios import lane_of
from polar_mitm.rollout.server.settings import Settings
from polar_mitm.rollout.server.waiting import missing
from polar_mitm.rollout.server.wire import Wire
from polar_mitm.rollout.store import reports
from polar_mitm.rollout.store.clock import Clock
from polar_mitm.rollout.store.database import Database
from polar_mitm.rollout.store.ends import End
from polar_mitm.rollout.store.entries import Assigned, Queued
from polar_mitm.rollout.store.events import prune
from polar_mitm.rollout.store.files import Files, open_files
from polar_mitm.rollout.store.outbox import resend
from polar_mitm.rollout.store.problems import StoreUnusable
from polar_mitm.rollout.store.reads import Reads, open_sessions
from polar_mitm.rollout.store.rows import callback_of, session_of
from polar_mitm.rollout.store.submit import Submission, Submitted, retry, submit
from polar_mitm.rollout.store.writer import NotFound, StoreFailed, Transaction, Writer

logger = logging.getLogger(__name__)

TICK_S = 0.25
"""How often the line is looked at for sessions that have waited for too long."""

PRUNE_S = 60.0


class Service:
    """`async with Service(settings) as service`. Entering raises StoreUnusable, OSError and ValueError."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.clock = Clock()
        self.board = Board()
        self.broadcast = Broadcast()
        self.database = Database(settings.database)
        self.writer = Writer(self.database, self.clock, self._happened, self._reconnected)
        self.reads = Reads(self.database.engine, lambda lane: missing(lane, self.board.nodes.values()))
        self.metrics = Metrics(self.board, self.writer)
        self.wire = Wire(settings.token)
        self.dispatcher = Dispatcher(
            self.board, self.writer, self.reads, self.wire, self.clock, self.metrics.dispatches
        )
        self.postman = Postman(
            self.board, self.writer, self.reads, self.clock, settings.callback_secret, self.metrics.callbacks
        )
        self.fleet = Fleet(self.board, self.writer, self.clock, self.dispatcher, self.broadcast, settings)
        self.policies = Policies(self.board, self.wire, self.metrics.policies)
        self.files: Files
        self.tasks: dict[str, int] = {}
        """By status."""
        self.done = 0
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self.files = await asyncio.to_thread(open_files, self.settings.files, largest=self.settings.max_file)
            stack.push_async_callback(self.database.close)
            await self.database.open()
            await self.writer.start()
            stack.push_async_callback(self.writer.stop)
            await stack.enter_async_context(self.wire)
            try:
                await self._load()
            except (SQLAlchemyError, StoreFailed) as error:
                raise StoreUnusable(f"{self.database.shown} cannot be read: {error}") from error
            stack.push_async_callback(self.dispatcher.stop)
            stack.push_async_callback(self.fleet.stop)
            stack.push_async_callback(self.policies.stop)
            for work in (
                self.dispatcher.run(),
                self.dispatcher.stops(),
                self.postman.run(),
                self.fleet.watch(),
                self._watch_line(),
                self._prune(),
            ):
                stack.push_async_callback(_end, asyncio.create_task(_worker(work)))
            stack.callback(self.broadcast.close)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def submit(self, request: TaskRequest, key: str | None) -> Submitted:
        """Raises Refused and StoreFailed, and ScenarioRefused for a scenario that no gateway could run."""
        new = await asyncio.to_thread(_submission, request, key)

        def then(submitted: Submitted) -> None:
            self.board.apply(submitted.effects)
            if submitted.fresh:
                self.metrics.tasks.inc()

        return await self.writer.write(partial(submit, new=new), then)

    async def cancel(self, task_id: str) -> Task:
        """Raises NotFound and StoreFailed."""
        await self.writer.write(partial(reports.cancel, task_id=task_id), self.board.apply)
        return await self.task(task_id)

    async def retry(self, task_id: str, samples: Sequence[int] | None) -> Task:
        """Raises NotFound, Conflict and StoreFailed."""
        await self.writer.write(partial(retry, task_id=task_id, wanted=samples), self.board.apply)
        return await self.task(task_id)

    async def task(self, task_id: str) -> Task:
        """Raises NotFound."""
        if (task := await self.reads.task(task_id)) is None:
            raise NotFound(f"there is no task {task_id!r}")
        return task

    async def report(self, report: Report) -> reports.Taken:
        """Raises StoreFailed."""

        def then(taken: reports.Taken) -> None:
            self.board.apply(taken.effects)
            if taken.outcome != "unknown":
                self.board.release(report.session_id)
            self.metrics.reports.labels(taken.outcome).inc()

        return await self.writer.write(partial(reports.take_report, report=report), then)

    async def session(self, session_id: str) -> Row[Any]:
        """Raises NotFound."""
        if (row := await self.reads.session(session_id)) is None:
            raise NotFound(f"there is no session {session_id!r}")
        return row

    async def resend(self, id: str) -> CallbackView:
        """Raises NotFound, Conflict and StoreFailed."""
        row = await self.writer.write(partial(resend, id=id), lambda _: self.board.callbacks.set())
        return callback_of(row)

    async def overview(self) -> Overview:
        callbacks = await self.reads.callback_counts()
        return Overview.model_validate(
            {
                "version": __version__,
                "at": self.clock.now(),
                "tasks": {status: count for status, count in self.tasks.items() if count},
                "stages": self.board.stages(),
                "sessions_done": self.done,
                "gateways": Counter(node.state for node in self.board.nodes.values()),
                "callbacks_pending": callbacks.get("pending", 0),
                "callbacks_dead": callbacks.get("dead", 0),
            }
        )

    def shown(self, row: Row[Any]) -> Session:
        """A session's row with what its gateway says of it."""
        live = self.board.live.get(row.session_id)
        return session_of(row, live.stage if live else None, live.times if live else None)

    def _happened(self, events: Sequence[Event], done_seq: int) -> None:
        for event in events:
            self.metrics.events.labels(event.type).inc()
            match event.type:
                case "session.finished" | "session.lost":
                    self.done += 1
                    self.metrics.ended.labels(event.data.get("status", "")).inc()
                case "task.submitted":
                    self._counted("queued", None)
                case "task.finished" | "task.retried":
                    self._counted(event.data.get("status", "running"), event.data.get("was"))
                case "task.started":
                    self._counted("running", "queued")
        self.broadcast.publish(events, done_seq)

    def _counted(self, status: str, before: str | None) -> None:
        self.tasks[status] = self.tasks.get(status, 0) + 1
        if before is not None:
            self.tasks[before] = self.tasks.get(before, 0) - 1

    def _reconnected(self) -> None:
        self.board.resync = True

    async def _load(self) -> None:
        """Bring the memory to what is on disk."""
        await self.fleet.load(await self.reads.gateways())
        self.tasks = await self.reads.task_counts()
        self.done = await self.reads.done_count()
        self.broadcast.done_seq = self.writer.done_seq
        await self._resync()
        self.board.callbacks.set()

    async def _resync(self) -> None:
        def then(found: list[Queued | Assigned]) -> None:
            known = {one.session_id for one in found}
            for session_id in [*self.board.line, *self.board.live]:
                if session_id not in known:
                    self.board.line.remove(session_id)
                    self.board.release(session_id)
            for one in found:
                if isinstance(one, Queued):
                    if one.session_id not in self.board.moving:
                        self.board.release(one.session_id)
                        self.board.line.add(one)
                else:
                    self.board.line.remove(one.session_id)
                    for live in self.board.give([one], doubtful=True):
                        self.dispatcher.post(live)
            self.board.work.set()

        await self.writer.write(_open_sessions, then)

    async def _watch_line(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self.board.resync:
                self.board.resync = False
                try:
                    await self._resync()
                except StoreFailed:
                    self.board.resync = True
            late = self.board.line.expired(self.clock.now())
            if not late:
                continue
            reason = "it waited in line for longer than budgets.waiting_s"
            names = [queued.session_id for queued in late]
            operation = partial(reports.lose, session_ids=names, how=End("error", reason, "queued"))
            try:
                await self.writer.write(operation, self.board.apply)
            except StoreFailed:
                for queued in late:
                    self.board.line.add(queued)
                await asyncio.sleep(1)

    async def _prune(self) -> None:
        while True:
            try:
                await self.writer.write(partial(prune, kept=self.settings.kept_events))
            except StoreFailed as error:
                logger.warning("old events are not removed yet: %s", error)
            await asyncio.sleep(PRUNE_S)


def _submission(request: TaskRequest, key: str | None) -> Submission:
    """Takes its time with a large request."""
    lane = lane_of(request)
    plain = request.model_dump(mode="json")
    canonical = json.dumps(plain, sort_keys=True, ensure_ascii=True).encode()
    return Submission(
        task_id=request.task_id or f"tsk_{secrets.token_hex(13)}",
        request=request,
        body=dumps(plain).decode(),
        digest=hashlib.sha256(canonical).hexdigest(),
        lane=lane,
        idempotency_key=key,
        session_ids=[new_session_id() for _ in range(request.num_samples)],
    )


async def _open_sessions(transaction: Transaction) -> list[Queued | Assigned]:
    return [one async for one in open_sessions(transaction.connection)]


async def _worker(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except asyncio.CancelledError:
        raise
    except Exception:  # the border of a worker: without the word in the log it would be missed by its silence only
        logger.exception("a worker of the rollout server ended")
        raise


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
