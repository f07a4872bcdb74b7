"""Operations that begin tasks and samples: a request that is accepted, samples that are run again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Row, func, insert, select, update

from polar_mitm.capture.names import new_session_id
from polar_mitm.client.models import Task, TaskRequest
from polar_mitm.rollout.store.entries import Effects, Lane, Queued
from polar_mitm.rollout.store.rows import ENDINGS, lane_of, lane_text, task_of
from polar_mitm.rollout.store.tables import requests, sessions, tasks
from polar_mitm.rollout.store.writer import Conflict, NotFound, Transaction


@dataclass(slots=True, frozen=True)
class Submission:
    task_id: str
    request: TaskRequest
    body: str
    """The request, as JSON."""
    digest: str
    """Of the request: what tells a repeated one from another one under the same key."""
    lane: Lane
    idempotency_key: str | None = None
    session_ids: Sequence[str] = field(default_factory=list)
    """One a sample."""


@dataclass(slots=True)
class Submitted:
    task: Task
    fresh: bool
    """False when it was there already, by its idempotency key."""
    effects: Effects


async def submit(transaction: Transaction, new: Submission) -> Submitted:
    """Raises Conflict."""
    if (earlier := await _earlier(transaction, new)) is not None:
        return earlier
    request, now = new.request, transaction.now
    group_id = request.group_id or new.task_id
    values: dict[str, Any] = {
        "task_id": new.task_id,
        "group_id": group_id,
        "status": "queued",
        "lane": lane_text(new.lane),
        "num_samples": request.num_samples,
        "stop_after": request.stop_after,
        "max_attempts": request.max_attempts,
        "priority": request.priority,
        "policy_version": request.policy_version,
        "waiting_s": request.budgets.waiting_s,
        "callback_url": request.callback.url if request.callback else None,
        "callback_events": " ".join(request.callback.events) if request.callback else "",
        "idempotency_key": new.idempotency_key,
        "digest": new.digest,
        "attempts": request.num_samples,
        "open": request.num_samples,
        "usable": 0,
        "rewarded": 0,
        "reward_sum": 0.0,
        "submitted_at": now,
    }
    values |= dict.fromkeys(ENDINGS, 0)
    row = (await transaction.connection.execute(insert(tasks).returning(tasks), values)).one()
    await transaction.connection.execute(insert(requests), {"task_id": new.task_id, "body": new.body})
    entries = [(session_id, sample, 1) for sample, session_id in enumerate(new.session_ids)]
    effects = Effects(queued=await begin(transaction, row, entries, faults=0))
    transaction.event("task.submitted", task_id=new.task_id, num_samples=request.num_samples)
    return Submitted(task_of(row), True, effects)


async def begin(
    transaction: Transaction, task: Row[Any], entries: Sequence[tuple[str, int, int]], *, faults: int
) -> list[Queued]:
    """Put sessions in line: (session id, sample, attempt)."""
    rows = [
        {
            "session_id": session_id,
            "task_id": task.task_id,
            "group_id": task.group_id,
            "sample": sample,
            "attempt": attempt,
            "faults": faults,
            "state": "queued",
            "reported": False,
            "counts": False,
            "usable": False,
            "queued_at": transaction.now,
        }
        for session_id, sample, attempt in entries
    ]
    await transaction.connection.execute(insert(sessions), rows)
    return _in_line(task, entries, transaction.now)


def _in_line(task: Row[Any], entries: Sequence[tuple[str, int, int]], now: float) -> list[Queued]:
    lane = lane_of(task.lane)
    deadline = None if task.waiting_s is None else now + task.waiting_s
    return [
        Queued(task.id, session_id, task.task_id, task.group_id, sample, attempt, task.priority, lane, deadline)
        for session_id, sample, attempt in entries
    ]


async def _earlier(transaction: Transaction, new: Submission) -> Submitted | None:
    if new.idempotency_key is not None:
        asked = select(tasks).where(tasks.c.idempotency_key == new.idempotency_key)
        row = (await transaction.connection.execute(asked)).one_or_none()
        if row is not None and row.digest != new.digest:
            raise Conflict(f"the idempotency key {new.idempotency_key!r} was used for another request")
        if row is not None:
            return Submitted(task_of(row), False, Effects(queued=await _own(transaction, row, new)))
    row = (await transaction.connection.execute(select(tasks).where(tasks.c.task_id == new.task_id))).one_or_none()
    if row is None:
        return None
    if own := await _own(transaction, row, new):
        return Submitted(task_of(row), True, Effects(queued=own))
    raise Conflict(f"there is a task {new.task_id!r} already: leave task_id out, or take another one")


async def _own(transaction: Transaction, row: Row[Any], new: Submission) -> list[Queued]:
    """Its sessions, when this very submission was written by a transaction that seemed to fail."""
    asked = select(sessions.c.session_id).where(sessions.c.session_id == new.session_ids[0])
    if (await transaction.connection.execute(asked)).one_or_none() is None:
        return []
    return _in_line(row, [(name, sample, 1) for sample, name in enumerate(new.session_ids)], row.submitted_at)


async def retry(transaction: Transaction, task_id: str, wanted: Sequence[int] | None) -> Effects:
    """Run samples again that have ended: these, or all that are not usable. Raises NotFound and Conflict."""
    task = (await transaction.connection.execute(select(tasks).where(tasks.c.task_id == task_id))).one_or_none()
    if task is None:
        raise NotFound(f"there is no task {task_id!r}")
    ended = select(sessions.c.sample, sessions.c.usable).where(sessions.c.task_id == task_id, sessions.c.counts)
    usable = {row.sample: row.usable for row in await transaction.connection.execute(ended)}
    chosen = sorted(set(wanted)) if wanted is not None else sorted(s for s, used in usable.items() if not used)
    if missing := [sample for sample in chosen if sample not in usable]:
        what = "has not ended" if missing[0] < task.num_samples else "is none of the task's"
        raise Conflict(f"sample {missing[0]} {what}: only samples that have ended can be run again")
    if not chosen:
        raise Conflict("there is nothing to run again: each sample is usable or has not ended")
    again = [sessions.c.task_id == task_id, sessions.c.sample.in_(chosen)]
    last = select(sessions.c.sample, func.max(sessions.c.attempt)).where(*again).group_by(sessions.c.sample)
    attempts = {row[0]: row[1] for row in await transaction.connection.execute(last)}
    await transaction.connection.execute(update(sessions).where(*again).values(counts=False))
    status = "running" if task.started_at else "queued"
    entries = [(new_session_id(), sample, attempts[sample] + 1) for sample in chosen]
    queued = await begin(transaction, task, entries, faults=0)
    await transaction.connection.execute(
        update(tasks)
        .where(tasks.c.id == task.id)
        .values(
            status=status,
            status_reason=None,
            stopping=None,
            finished_at=None,
            attempts=tasks.c.attempts + len(chosen),
            **await counted(transaction, task_id, task.num_samples),
        )
    )
    transaction.event("task.retried", task_id=task_id, samples=chosen, status=status, was=task.status)
    return Effects(queued=queued)


async def counted(transaction: Transaction, task_id: str, num_samples: int) -> dict[str, Any]:
    """A task's counts, from its sessions."""
    asked = select(sessions.c.status, sessions.c.usable, sessions.c.reward).where(
        sessions.c.task_id == task_id, sessions.c.counts
    )
    rows = (await transaction.connection.execute(asked)).all()
    rewards = [row.reward for row in rows if row.reward is not None]
    kinds = ["error" if row.status == "lost" else row.status for row in rows]
    return {ending: kinds.count(ending) for ending in ENDINGS} | {
        "open": num_samples - len(rows),
        "usable": sum(row.usable for row in rows),
        "rewarded": len(rewards),
        "reward_sum": float(sum(rewards)),
    }
