"""What is read from the database: lists by cursor, single things, and what the server starts from.

Each reads a few rows by an index, however many there are.
"""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, Select, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from polar_mitm.client.models import CallbackView, Event, Result, Task, TaskStatus
from polar_mitm.client.nodes import Registration
from polar_mitm.json_text import loads
from polar_mitm.rollout.store.entries import Assigned, Lane, Queued
from polar_mitm.rollout.store.rows import callback_of, event_of, lane_of, queued_of, result_of, task_of
from polar_mitm.rollout.store.tables import callbacks, events, gateways, requests, results, sessions, tasks

OPEN_STATES = ("queued", "live")


@dataclass(slots=True)
class Reads:
    engine: AsyncEngine
    missing: Callable[[Lane], str | None] = lambda _: None
    """Why no gateway can take what stands in a lane."""

    async def tasks(
        self, *, status: TaskStatus | None, group_id: str | None, before: int | None, limit: int
    ) -> list[tuple[int, Task]]:
        """Newest first, each with what the next page begins after."""
        asked = select(tasks).order_by(tasks.c.id.desc()).limit(limit)
        if status is not None:
            asked = asked.where(tasks.c.status == status)
        if group_id is not None:
            asked = asked.where(tasks.c.group_id == group_id)
        if before is not None:
            asked = asked.where(tasks.c.id < before)
        rows = await self._rows(asked)
        live = await self._live([row.task_id for row in rows if row.open])
        return [(row.id, self._shown(row, live)) for row in rows]

    async def task(self, task_id: str, *, body: bool = True) -> Task | None:
        asked = select(tasks, requests.c.body).join(requests, requests.c.task_id == tasks.c.task_id)
        if not body:
            asked = select(tasks)
        rows = await self._rows(asked.where(tasks.c.task_id == task_id))
        if not rows:
            return None
        live = await self._live([task_id] if rows[0].open else [])
        return self._shown(rows[0], live, rows[0].body if body else None)

    async def request(self, task_id: str) -> str | None:
        """As JSON."""
        rows = await self._rows(select(requests.c.body).where(requests.c.task_id == task_id))
        return rows[0].body if rows else None

    async def sessions(
        self,
        *,
        task_id: str | None = None,
        gateway: str | None = None,
        state: str | None = None,
        after: int | None = None,
        descending: bool = False,
        limit: int,
    ) -> Sequence[Row[Any]]:
        """Rows of sessions in the order in which they were made. `after`: the id that the last page ended with."""
        key = sessions.c.id
        asked = select(sessions).order_by(key.desc() if descending else key).limit(limit)
        for column, value in ((sessions.c.task_id, task_id), (sessions.c.gateway, gateway), (sessions.c.state, state)):
            if value is not None:
                asked = asked.where(column == value)
        if after is not None:
            asked = asked.where(key < after if descending else key > after)
        return await self._rows(asked)

    async def session(self, session_id: str) -> Row[Any] | None:
        rows = await self._rows(select(sessions).where(sessions.c.session_id == session_id))
        return rows[0] if rows else None

    async def result(self, session_id: str) -> Result | None:
        rows = await self._rows(_RESULTS.where(sessions.c.session_id == session_id, sessions.c.state == "done"))
        return result_of(rows[0]) if rows else None

    async def results(
        self,
        *,
        after: int = 0,
        task_id: str | None = None,
        group_id: str | None = None,
        late: bool = False,
        limit: int,
    ) -> list[Result]:
        """In the order of `seq`. `late`: also those that are not their sample's result."""
        asked = _RESULTS.where(sessions.c.seq > after).order_by(sessions.c.seq).limit(limit)
        if task_id is not None:
            asked = asked.where(sessions.c.task_id == task_id)
        if group_id is not None:
            asked = asked.where(sessions.c.group_id == group_id)
        if not late:
            asked = asked.where(sessions.c.counts)
        return [result_of(row) for row in await self._rows(asked)]

    async def events(self, *, after: int, task_id: str | None, limit: int) -> list[Event]:
        asked = select(events).where(events.c.seq > after).order_by(events.c.seq).limit(limit)
        if task_id is not None:
            asked = asked.where(events.c.task_id == task_id)
        return [event_of(row) for row in await self._rows(asked)]

    async def callbacks(
        self, *, state: str | None, task_id: str | None, after: int, limit: int
    ) -> list[tuple[int, CallbackView]]:
        asked = select(callbacks).where(callbacks.c.n > after).order_by(callbacks.c.n).limit(limit)
        if state is not None:
            asked = asked.where(callbacks.c.state == state)
        if task_id is not None:
            asked = asked.where(callbacks.c.task_id == task_id)
        return [(row.n, callback_of(row)) for row in await self._rows(asked)]

    async def callback_counts(self) -> dict[str, int]:
        """Of those that were not delivered."""
        where = callbacks.c.state.in_(("pending", "dead"))
        return await self._counts(select(callbacks.c.state, func.count()).where(where).group_by(callbacks.c.state))

    async def task_counts(self) -> dict[str, int]:
        """By status. It counts every task: for the start."""
        return await self._counts(select(tasks.c.status, func.count()).group_by(tasks.c.status))

    async def due_callbacks(self, now: float, *, origins: Collection[str], limit: int) -> Sequence[Row[Any]]:
        """Those to be sent now, but for those to these origins."""
        where = (callbacks.c.state == "pending", callbacks.c.next_at <= now, callbacks.c.origin.not_in(sorted(origins)))
        return await self._rows(select(callbacks).where(*where).order_by(callbacks.c.next_at).limit(limit))

    async def done_count(self) -> int:
        """Sessions that ended: for the start."""
        asked = select(func.count().label("done")).where(sessions.c.state == "done").select_from(sessions)
        done: int = (await self._rows(asked))[0].done
        return done

    async def next_callback_at(self) -> float | None:
        asked = select(func.min(callbacks.c.next_at).label("at")).where(callbacks.c.state == "pending")
        at: float | None = (await self._rows(asked))[0].at
        return at

    async def gateways(self) -> list[tuple[Registration, Row[Any]]]:
        rows = await self._rows(select(gateways))
        return [(Registration.model_validate(loads(row.registration)), row) for row in rows]

    def _shown(self, row: Row[Any], live: dict[str, int], body: str | None = None) -> Task:
        task = task_of(row, live.get(row.task_id, 0), body)
        if task.samples.queued and task.status_reason is None:
            task.status_reason = self.missing(lane_of(row.lane))
        return task

    async def _live(self, task_ids: Sequence[str]) -> dict[str, int]:
        if not task_ids:
            return {}
        asked = select(sessions.c.task_id, func.count()).where(
            sessions.c.task_id.in_(task_ids), sessions.c.state == "live"
        )
        return await self._counts(asked.group_by(sessions.c.task_id))

    async def _counts(self, asked: Select[Any]) -> dict[str, int]:
        pairs: list[tuple[str, int]] = [(row[0], row[-1]) for row in await self._rows(asked)]
        return dict(pairs)

    async def _rows(self, asked: Select[Any]) -> Sequence[Row[Any]]:
        async with self.engine.connect() as connection:
            rows: Sequence[Row[Any]] = (await connection.execute(asked)).all()
            return rows


_RESULTS = select(sessions, results.c.body).outerjoin(results, results.c.session_id == sessions.c.session_id)


async def open_sessions(connection: AsyncConnection) -> AsyncIterator[Queued | Assigned]:
    """Every session that is not done, as it is kept in memory."""
    asked = (
        select(sessions, tasks.c.id.label("order"), tasks.c.priority, tasks.c.lane, tasks.c.waiting_s, tasks.c.stopping)
        .join(tasks, tasks.c.task_id == sessions.c.task_id)
        .where(sessions.c.state.in_(OPEN_STATES))
    )
    for row in await connection.execute(asked):
        if row.state == "queued":
            yield queued_of(row)
        else:
            yield Assigned(row.session_id, row.task_id, row.gateway, row.incarnation, row.stopping is not None)
