"""Operations on sessions that gateways have: given, taken back, reported, lost, cancelled, out of time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Row, bindparam, insert, select, update

from polar_mitm.client.nodes import Report
from polar_mitm.json_text import dumps
from polar_mitm.rollout.store.ends import End, end, plain, result, stop
from polar_mitm.rollout.store.entries import Assigned, Effects, Queued
from polar_mitm.rollout.store.rows import queued_of
from polar_mitm.rollout.store.tables import results, sessions, tasks
from polar_mitm.rollout.store.writer import NotFound, Transaction

type Outcome = Literal["counts", "again", "late", "duplicate", "unknown"]

CANCELLED = "cancelled on request"


@dataclass(slots=True, frozen=True)
class Taken:
    outcome: Outcome
    effects: Effects


async def assign(transaction: Transaction, picks: Sequence[tuple[Queued, str, str]]) -> list[Assigned]:
    """Give sessions to gateways: (session, gateway, incarnation). Those that are not in line any more are left out."""
    names = [queued.session_id for queued, _, _ in picks]
    asked = select(sessions.c.session_id, sessions.c.state, sessions.c.gateway, sessions.c.incarnation).where(
        sessions.c.session_id.in_(names)
    )
    rows = {row.session_id: row for row in await transaction.connection.execute(asked)}
    given = [
        Assigned(queued.session_id, queued.task_id, gateway, incarnation)
        for queued, gateway, incarnation in picks
        if (row := rows.get(queued.session_id)) is not None
        and (row.state == "queued" or (row.state, row.gateway, row.incarnation) == ("live", gateway, incarnation))
    ]
    if not given:
        return []
    changed = (
        update(sessions)
        .where(sessions.c.session_id == bindparam("given"))
        .values(
            state="live", gateway=bindparam("to_gateway"), incarnation=bindparam("to_life"), assigned_at=transaction.now
        )
    )
    await transaction.connection.execute(
        changed,
        [{"given": one.session_id, "to_gateway": one.gateway, "to_life": one.incarnation} for one in given],
    )
    first = update(tasks).where(tasks.c.task_id.in_(sorted({one.task_id for one in given})), tasks.c.status == "queued")
    began = first.values(status="running", started_at=transaction.now).returning(tasks.c.task_id)
    for row in await transaction.connection.execute(began):
        transaction.event("task.started", task_id=row.task_id)
    for one in given:
        transaction.event("session.assigned", task_id=one.task_id, session_id=one.session_id, gateway=one.gateway)
    return given


async def take_back(transaction: Transaction, session_id: str) -> Effects:
    """A gateway said that it does not have it and never will: it stands in line as before."""
    row = await _open(transaction, session_id)
    effects = Effects()
    if row is None:  # it was closed meanwhile: no gateway is meant to have it any more
        effects.over.append(session_id)
        return effects
    if row.state != "live":
        return effects
    if row.stopping:
        await end(transaction, row, End("cancelled", row.stopping, "queued"), effects)
        return effects
    changed = update(sessions).where(sessions.c.id == row.id)
    await transaction.connection.execute(
        changed.values(state="queued", gateway=None, incarnation=None, assigned_at=None)
    )
    effects.queued.append(queued_of(row))
    return effects


async def lose(transaction: Transaction, session_ids: Iterable[str], how: End) -> Effects:
    """End open sessions that their gateway can say nothing of any more."""
    effects = Effects()
    for session_id in session_ids:
        row = await _open(transaction, session_id)
        if row is not None:
            await end(transaction, row, how, effects)
        else:
            effects.over.append(session_id)
    return effects


async def cancel(transaction: Transaction, task_id: str) -> Effects:
    """Raises NotFound. A task that has ended stays as it is."""
    task = (await transaction.connection.execute(select(tasks).where(tasks.c.task_id == task_id))).one_or_none()
    if task is None:
        raise NotFound(f"there is no task {task_id!r}")
    effects = Effects()
    if task.finished_at is None and not task.stopping:
        await stop(transaction, task, CANCELLED, effects)
    return effects


async def take_report(transaction: Transaction, report: Report) -> Taken:
    """The first report of a session that ends its sample counts; any other is kept beside it."""
    session = await _session(transaction, report.session_id)
    effects = Effects()
    if session is None:
        transaction.event("report.unknown", session_id=report.session_id, status=report.status)
        return Taken("unknown", effects)
    if session.reported:
        return Taken("duplicate", effects)
    row = {"session_id": report.session_id, "body": dumps(report.model_dump(mode="json")).decode()}
    await transaction.connection.execute(insert(results), row)
    times = dumps(report.times.model_dump(exclude_none=True)).decode()
    reported = update(sessions).where(sessions.c.id == session.id)
    await transaction.connection.execute(reported.values(times=times))
    how = _how(report, session)
    if session.state != "done":
        await end(transaction, session, how, effects)
        return Taken("again" if effects.queued else "counts", effects)
    counts = await _still_counts(transaction, session, how, effects)
    if not counts:
        kept = update(sessions).where(sessions.c.id == session.id).values(reported=True)
        await transaction.connection.execute(kept)
        transaction.event(
            "session.late",
            task_id=session.task_id,
            session_id=session.session_id,
            gateway=session.gateway,
            status=report.status,
            sample=session.sample,
            attempt=session.attempt,
        )
    return Taken("counts" if counts else "late", effects)


async def _still_counts(transaction: Transaction, session: Row[Any], how: End, effects: Effects) -> bool:
    """Whether a session that was given up on ends its sample after all: it ran to an end before the next one did."""
    if how.fault or how.status == "cancelled":
        return False
    where = (sessions.c.task_id == session.task_id, sessions.c.sample == session.sample)
    others = (await transaction.connection.execute(select(sessions).where(*where))).all()
    if any(other.counts for other in others):
        return False
    rival = next((other for other in others if other.state != "done"), None)
    if rival is None:
        return False
    why = f"attempt {session.attempt}, which had been given up on, ended after all"
    changed = update(sessions).where(sessions.c.id == rival.id)
    closed = changed.values(
        state="done",
        status="cancelled",
        status_reason=why,
        ended_in="queued" if rival.state == "queued" else "assigned",
        finished_at=transaction.now,
        seq=transaction.next_done_seq(),
    )
    await transaction.connection.execute(closed)
    (effects.cancel if rival.state == "live" else effects.over).append(rival.session_id)
    won = update(sessions).where(sessions.c.id == session.id)
    values = {
        "status": how.status,
        "status_reason": plain(how.reason),
        "ended_in": how.ended_in,
        "reported": True,
        "counts": True,
        "reward": how.reward,
        "usable": how.usable,
        "finished_at": transaction.now,
        "seq": transaction.next_done_seq(),
    }
    await transaction.connection.execute(won.values(**values))
    transaction.event(
        "session.finished",
        task_id=session.task_id,
        session_id=session.session_id,
        gateway=session.gateway,
        status=how.status,
        sample=session.sample,
        attempt=session.attempt,
        reward=how.reward,
        counts=True,
        reason=how.reason,
    )
    await result(transaction, session, how, effects)
    return True


def _how(report: Report, session: Row[Any]) -> End:
    usable = report.reward is not None and report.masked is None and report.trained_tokens != 0
    unasked = report.status == "cancelled" and not session.stopping
    reason = report.status_reason
    return End(
        status=report.status,
        reason="its gateway ended it unasked" + (f": {reason}" if reason else "") if unasked else reason,
        ended_in=report.ended_in,
        fault=report.status == "error" or unasked,
        reported=True,
        reward=report.reward,
        usable=usable,
    )


_WITH_TASK = select(
    sessions, tasks.c.id.label("order"), tasks.c.priority, tasks.c.lane, tasks.c.waiting_s, tasks.c.stopping
).join(tasks, tasks.c.task_id == sessions.c.task_id)


async def _session(transaction: Transaction, session_id: str) -> Row[Any] | None:
    asked = _WITH_TASK.where(sessions.c.session_id == session_id)
    return (await transaction.connection.execute(asked)).one_or_none()


async def _open(transaction: Transaction, session_id: str) -> Row[Any] | None:
    row = await _session(transaction, session_id)
    return None if row is None or row.state == "done" else row
