"""The one way into the database: operations in a row, as many to a transaction as came in while the last was written.

An operation is a coroutine function of the transaction. It may be run more than once, since a transaction may fail: it
changes nothing but the database, and comes to the same when it finds its own work done. What has to happen in memory is
its `then`, called once the transaction is on disk, in the order of the operations.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from polar_mitm.client.models import Event, EventType
from polar_mitm.json_text import dumps
from polar_mitm.rollout.store.clock import Clock
from polar_mitm.rollout.store.database import Database
from polar_mitm.rollout.store.problems import StoreUnusable
from polar_mitm.rollout.store.tables import events, sessions

logger = logging.getLogger(__name__)

MOST = 256
"""Operations in one transaction: some hundred milliseconds of work."""


class Refused(Exception):
    """An operation does not fit what is there. It is raised before the operation has written anything."""


class Conflict(Refused):
    """What is asked for does not go together with what is there."""


class NotFound(Refused):
    """There is no such thing."""


class StoreFailed(Exception):
    """The operation is not on disk: the database is locked, full or away. The same may work later."""


class Transaction:
    """What an operation writes with."""

    def __init__(self, connection: AsyncConnection, now: float, event_seq: int, done_seq: int) -> None:
        self.connection = connection
        self.now = now
        self.event_seq = event_seq
        self.done_seq = done_seq
        self.events: list[Event] = []

    def next_done_seq(self) -> int:
        self.done_seq += 1
        return self.done_seq

    def event(
        self,
        type: EventType,
        *,
        task_id: str | None = None,
        session_id: str | None = None,
        gateway: str | None = None,
        **data: Any,
    ) -> None:
        """Written at the end of the transaction, and told to who listens once it is on disk."""
        self.event_seq += 1
        told = Event(
            seq=self.event_seq,
            type=type,
            at=self.now,
            task_id=task_id,
            session_id=session_id,
            gateway=gateway,
            data=data,
        )
        self.events.append(told)


type Operation[T] = Callable[[Transaction], Awaitable[T]]


class Listener(Protocol):
    def __call__(self, events: Sequence[Event], done_seq: int) -> None: ...


@dataclass(slots=True)
class _Job:
    operation: Operation[Any]
    then: Callable[[Any], None] | None
    future: asyncio.Future[Any]
    outcome: Any = None
    error: Exception | None = None


@dataclass(slots=True)
class Written:
    """What the writer has done, for the metrics."""

    transactions: int = 0
    operations: int = 0
    failures: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Writer:
    database: Database
    clock: Clock
    listener: Listener
    reconnected: Callable[[], None] = lambda: None
    """Called when a transaction failed: what it was about may be on disk or not."""
    written: Written = field(default_factory=Written)
    _jobs: asyncio.Queue[_Job] = field(default_factory=asyncio.Queue)
    _connection: AsyncConnection | None = None
    _task: asyncio.Task[None] | None = None
    _event_seq: int = 0
    _done_seq: int = 0

    async def start(self) -> None:
        """Raises StoreUnusable."""
        await self._connect()
        self._task = asyncio.create_task(self._run(), name="store writer")

    async def stop(self) -> None:
        """Writes what was handed in, then stops."""
        if self._task is not None:
            await self._jobs.join()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._disconnect()

    @property
    def done_seq(self) -> int:
        """Of the session that ended last."""
        return self._done_seq

    @property
    def depth(self) -> int:
        """Operations that wait."""
        return self._jobs.qsize()

    async def write[T](self, operation: Operation[T], then: Callable[[T], None] | None = None) -> T:
        """The operation's outcome, once it is on disk and `then` has run.

        Raises what the operation refused with, and StoreFailed. Who stops waiting does not stop the operation.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put_nowait(_Job(operation, then, future))
        return await asyncio.shield(future)

    async def _run(self) -> None:
        while True:
            batch = [await self._jobs.get()]
            while len(batch) < MOST and not self._jobs.empty():
                batch.append(self._jobs.get_nowait())
            try:
                await self._write(batch)
            finally:
                for _ in batch:
                    self._jobs.task_done()

    async def _write(self, batch: Sequence[_Job]) -> None:
        began = asyncio.get_running_loop().time()
        if len(batch) == 1 or not await self._transaction(batch, alone=False):
            for job in batch:  # one of them broke it: each by itself, so that the others get through
                await self._transaction([job], alone=True)
        self.written.operations += len(batch)
        self.written.seconds += asyncio.get_running_loop().time() - began

    async def _transaction(self, batch: Sequence[_Job], *, alone: bool) -> bool:
        """Whether it is on disk. Alone a failure is the job's outcome."""
        try:
            transaction = await self._commit(batch)
        except Exception as error:  # the border of an operation: the writer goes on whatever one of them does
            self.written.failures += 1
            if not isinstance(error, SQLAlchemyError | OSError | StoreUnusable):
                logger.exception("an operation on the store failed")
            await self._disconnect()
            self.reconnected()
            if alone:
                failed = StoreFailed(f"the database did not take it: {error}")
                failed.__cause__ = error
                _answer(batch[0], failed)
            return False
        self.written.transactions += 1
        self._event_seq, self._done_seq = transaction.event_seq, transaction.done_seq
        self._tell(batch, transaction)
        return True

    async def _commit(self, batch: Sequence[_Job]) -> Transaction:
        if self._connection is None:
            await self._connect()
        assert self._connection is not None
        async with self._connection.begin():
            transaction = Transaction(self._connection, self.clock.now(), self._event_seq, self._done_seq)
            for job in batch:
                job.error = None
                try:
                    job.outcome = await job.operation(transaction)
                except Refused as refused:
                    job.error = refused
            if transaction.events:
                rows = [
                    event.model_dump(exclude={"data"}) | {"data": dumps(event.data).decode()}
                    for event in transaction.events
                ]
                await self._connection.execute(events.insert(), rows)
        return transaction

    def _tell(self, batch: Sequence[_Job], transaction: Transaction) -> None:
        for job in batch:
            try:
                if job.error is None and job.then is not None:
                    job.then(job.outcome)
            except Exception as error:  # the same border
                logger.exception("what follows an operation failed")
                job.error = error
            _answer(job, job.error)
        self.listener(transaction.events, transaction.done_seq)

    async def _connect(self) -> None:
        connection = await self.database.writing.connect()
        try:
            await self.database.claim(connection)
            self._event_seq = (await connection.execute(select(func.max(events.c.seq)))).scalar() or 0
            self._done_seq = (await connection.execute(select(func.max(sessions.c.seq)))).scalar() or 0
            await connection.commit()
        except BaseException:
            await connection.close()
            raise
        self._connection = connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.invalidate()
                await connection.close()
            except (SQLAlchemyError, OSError) as error:
                logger.warning("a connection to the database did not close: %s", error)


def _answer(job: _Job, error: Exception | None) -> None:
    if job.future.done():
        return
    if error is None:
        job.future.set_result(job.outcome)
    else:
        job.future.set_exception(error)
        job.future.exception()  # who asked may be gone; that is no news for the log
