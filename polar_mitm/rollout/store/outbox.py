"""Callbacks are written in the transaction that ends what they tell of, so that none is ever forgotten."""

import secrets
from typing import Any

from sqlalchemy import Row, insert, select, update

from polar_mitm.client.models import CallbackBody
from polar_mitm.json_text import dumps
from polar_mitm.rollout.store.entries import Effects
from polar_mitm.rollout.store.rows import result_of, task_of
from polar_mitm.rollout.store.tables import callbacks, requests, results, sessions
from polar_mitm.rollout.store.writer import Conflict, NotFound, Transaction


async def tell_task(transaction: Transaction, task: Row[Any], effects: Effects) -> None:
    if task.callback_url is None or "task.finished" not in task.callback_events.split():
        return
    asked = select(requests.c.body).where(requests.c.task_id == task.task_id)
    shown = task_of(task, body=(await transaction.connection.execute(asked)).scalar_one())
    shown.request = None
    body = CallbackBody(id=_new_id(), type="task.finished", at=transaction.now, task=shown)
    await _insert(transaction, task, body, None, effects)


async def tell_session(transaction: Transaction, task: Row[Any], session_id: str, effects: Effects) -> None:
    if task.callback_url is None or "session.finished" not in task.callback_events.split():
        return
    asked = (
        select(sessions, results.c.body)
        .outerjoin(results, results.c.session_id == sessions.c.session_id)
        .where(sessions.c.session_id == session_id)
    )
    result = result_of((await transaction.connection.execute(asked)).one())
    body = CallbackBody(id=_new_id(), type="session.finished", at=transaction.now, task=task_of(task), result=result)
    await _insert(transaction, task, body, session_id, effects)


async def _insert(
    transaction: Transaction, task: Row[Any], body: CallbackBody, session_id: str | None, effects: Effects
) -> None:
    row = {
        "id": body.id,
        "task_id": task.task_id,
        "session_id": session_id,
        "type": body.type,
        "url": task.callback_url,
        "origin": "/".join(task.callback_url.split("/", 3)[:3]),  # of whatever text: an ending never fails by it
        "body": dumps(body.model_dump(mode="json")).decode(),
        "state": "pending",
        "attempts": 0,
        "created_at": transaction.now,
        "next_at": transaction.now,
    }
    await transaction.connection.execute(insert(callbacks), row)
    effects.callbacks = True


async def sent(transaction: Transaction, id: str, error: str | None, next_at: float | None) -> None:
    """A try is over. With an error it is tried again at `next_at`; without that it is given up on."""
    state = "delivered" if error is None else "pending" if next_at is not None else "dead"
    changed = (
        update(callbacks)
        .where(callbacks.c.id == id, callbacks.c.state == "pending")
        .values(state=state, attempts=callbacks.c.attempts + 1, next_at=next_at, last_error=error)
    )
    await transaction.connection.execute(changed)


async def resend(transaction: Transaction, id: str) -> Row[Any]:
    """Raises NotFound, and Conflict for one that is under way."""
    row = (await transaction.connection.execute(select(callbacks).where(callbacks.c.id == id))).one_or_none()
    if row is None:
        raise NotFound(f"there is no callback {id!r}")
    if row.state == "pending":
        raise Conflict(f"the callback {id!r} is being sent as it is")
    changed = (
        update(callbacks)
        .where(callbacks.c.id == id)
        .values(state="pending", attempts=0, next_at=transaction.now)
        .returning(callbacks)
    )
    again: Row[Any] = (await transaction.connection.execute(changed)).one()
    return again


def _new_id() -> str:
    return f"cb_{secrets.token_hex(13)}"
