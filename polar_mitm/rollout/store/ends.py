"""How sessions end, and what follows: another attempt, the sample's result, the task's end, its callbacks.

Each sample has one result at most: that of its first session that ended in a way that counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, bindparam, select, update

from polar_mitm.capture.names import new_session_id
from polar_mitm.client.models import Ending, Stage
from polar_mitm.rollout.store.entries import Effects
from polar_mitm.rollout.store.outbox import tell_session, tell_task
from polar_mitm.rollout.store.submit import begin
from polar_mitm.rollout.store.tables import sessions, tasks
from polar_mitm.rollout.store.writer import Transaction

ENOUGH = "as many samples as were asked for are usable"


@dataclass(slots=True, frozen=True)
class End:
    status: Ending
    reason: str | None
    ended_in: Stage
    fault: bool = False
    """It says nothing of the sample, which is begun again; how often that may be is the task's `max_attempts`."""
    free: bool = False
    """Being begun again does not count: it never ran."""
    reported: bool = False
    reward: float | None = None
    usable: bool = False


async def end(transaction: Transaction, session: Row[Any], how: End, effects: Effects) -> None:
    """End an open session. The row is the session's own, as it is in this transaction."""
    task = await _task(transaction, session.task_id)
    faults = session.faults + (how.fault and not how.free)
    again = how.fault and not task.stopping and faults < task.max_attempts
    if how.fault and task.stopping:
        how = End("cancelled", f"{task.stopping}; {how.reason}", how.ended_in, reported=how.reported)
    elif how.fault and not again and task.max_attempts > 1:
        reason = f"{how.reason} (the last of {faults} attempts that ended so)"
        how = End(how.status, reason, how.ended_in, reported=how.reported, reward=how.reward)
    await _close(transaction, session, how, counts=not again)
    effects.over.append(session.session_id)
    transaction.event(
        "session.lost" if how.status == "lost" else "session.finished",
        task_id=session.task_id,
        session_id=session.session_id,
        gateway=session.gateway,
        status=how.status,
        sample=session.sample,
        attempt=session.attempt,
        reward=how.reward,
        counts=not again,
        reason=how.reason,
    )
    if again:
        entries = [(new_session_id(), session.sample, session.attempt + 1)]
        effects.queued += await begin(transaction, task, entries, faults=faults)
        more = update(tasks).where(tasks.c.id == task.id).values(attempts=tasks.c.attempts + 1)
        await transaction.connection.execute(more)
        return
    await result(transaction, session, how, effects)


async def result(transaction: Transaction, session: Row[Any], how: End, effects: Effects) -> None:
    """Count a session that was just closed as its sample's result."""
    kind = tasks.c["error" if how.status == "lost" else how.status]
    rewarded = how.reward is not None
    counted = (
        update(tasks)
        .where(tasks.c.task_id == session.task_id)
        .values(
            {
                kind: kind + 1,
                tasks.c.open: tasks.c.open - 1,
                tasks.c.usable: tasks.c.usable + int(how.usable),
                tasks.c.rewarded: tasks.c.rewarded + int(rewarded),
                tasks.c.reward_sum: tasks.c.reward_sum + (how.reward or 0.0),
            }
        )
        .returning(tasks)
    )
    task = (await transaction.connection.execute(counted)).one()
    await tell_session(transaction, task, session.session_id, effects)
    if task.open == 0:
        await _finish(transaction, task, effects)
    elif task.stop_after is not None and task.usable >= task.stop_after and not task.stopping:
        await stop(transaction, task, ENOUGH, effects)


async def stop(transaction: Transaction, task: Row[Any], why: str, effects: Effects) -> None:
    """Take the task's sessions out of the line, and have those on gateways ended. No sample is begun any more."""
    where = sessions.c.task_id == task.task_id
    asked = select(sessions.c.session_id, sessions.c.state).where(where, sessions.c.state != "done")
    rows = (await transaction.connection.execute(asked)).all()
    effects.cancel += [row.session_id for row in rows if row.state == "live"]
    queued = [row.session_id for row in rows if row.state == "queued"]
    values: dict[str, Any] = {"stopping": why}
    if queued:
        await _close_queued(transaction, queued, why)
        effects.over += queued
        values |= {"open": tasks.c.open - len(queued), "cancelled": tasks.c.cancelled + len(queued)}
    changed = update(tasks).where(tasks.c.id == task.id).values(**values).returning(tasks)
    stopped = (await transaction.connection.execute(changed)).one()
    for session_id in queued:
        transaction.event(
            "session.finished", task_id=task.task_id, session_id=session_id, status="cancelled", counts=True, reason=why
        )
        await tell_session(transaction, stopped, session_id, effects)
    if stopped.open == 0:
        await _finish(transaction, stopped, effects)


async def _close_queued(transaction: Transaction, session_ids: Sequence[str], why: str) -> None:
    changed = (
        update(sessions)
        .where(sessions.c.session_id == bindparam("closed"))
        .values(
            state="done",
            status="cancelled",
            status_reason=why,
            ended_in="queued",
            counts=True,
            finished_at=transaction.now,
            seq=bindparam("next_seq"),
        )
    )
    rows = [{"closed": session_id, "next_seq": transaction.next_done_seq()} for session_id in session_ids]
    await transaction.connection.execute(changed, rows)


async def _close(transaction: Transaction, session: Row[Any], how: End, *, counts: bool) -> None:
    changed = (
        update(sessions)
        .where(sessions.c.id == session.id)
        .values(
            state="done",
            status=how.status,
            status_reason=plain(how.reason),
            ended_in=how.ended_in,
            reported=how.reported,
            counts=counts,
            reward=how.reward,
            usable=how.usable,
            finished_at=transaction.now,
            seq=transaction.next_done_seq(),
        )
    )
    await transaction.connection.execute(changed)


async def _finish(transaction: Transaction, task: Row[Any], effects: Effects) -> None:
    status, reason = verdict(task)
    changed = (
        update(tasks)
        .where(tasks.c.id == task.id)
        .values(status=status, status_reason=reason, finished_at=transaction.now)
        .returning(tasks)
    )
    finished = (await transaction.connection.execute(changed)).one()
    transaction.event("task.finished", task_id=task.task_id, status=status, was=task.status, reason=reason)
    await tell_task(transaction, finished, effects)


def verdict(task: Row[Any]) -> tuple[str, str | None]:
    """A task's status by what its sessions were, and why."""
    if task.stopping == ENOUGH or task.completed == task.num_samples:
        return "completed", task.stopping
    if task.stopping and task.cancelled:
        return "cancelled", task.stopping
    others = ("failed", "timeout", "cancelled", "error")
    counts = [f"{getattr(task, name)} {name}" for name in others if getattr(task, name)]
    reason = f"of {task.num_samples} samples " + ", ".join(counts)
    return ("partial" if task.completed else "failed"), reason


def plain(text: str | None) -> str | None:
    """PostgreSQL has no text with zero bytes."""
    return None if text is None else text.replace("\0", "\ufffd")


async def _task(transaction: Transaction, task_id: str) -> Row[Any]:
    return (await transaction.connection.execute(select(tasks).where(tasks.c.task_id == task_id))).one()
