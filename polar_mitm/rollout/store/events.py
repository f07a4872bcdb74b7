"""Old events go, so that the table does not grow for ever."""

from sqlalchemy import delete, func, select

from polar_mitm.rollout.store.tables import events
from polar_mitm.rollout.store.writer import Transaction

AT_ONCE = 5000
"""Deleted in one go: some ten milliseconds."""


OLDEST = select(func.min(events.c.seq))


async def prune(transaction: Transaction, kept: int) -> None:
    last = transaction.event_seq - kept
    if last <= 0:
        return
    first = (await transaction.connection.execute(OLDEST)).scalar()
    if first is not None and first <= last:
        gone = delete(events).where(events.c.seq <= min(last, first + AT_ONCE))
        await transaction.connection.execute(gone)
