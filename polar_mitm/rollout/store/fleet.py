"""Operations on gateways: they register, leave, are found dead, are drained."""

from dataclasses import dataclass

from sqlalchemy import insert, select, update

from polar_mitm.client.nodes import GatewayState, Registration
from polar_mitm.json_text import dumps
from polar_mitm.rollout.store.ends import End
from polar_mitm.rollout.store.entries import Effects
from polar_mitm.rollout.store.reports import lose
from polar_mitm.rollout.store.tables import gateways, sessions, tasks
from polar_mitm.rollout.store.writer import NotFound, Transaction


@dataclass(slots=True)
class Registered:
    held: list[str]
    """Sessions that it has and the server gave it."""
    strange: list[str]
    """Sessions that it has and should not."""
    draining: bool
    effects: Effects


async def register(transaction: Transaction, new: Registration) -> Registered:
    """Take in a gateway. Sessions of its name that it does not have are begun again."""
    before = (await transaction.connection.execute(select(gateways).where(gateways.c.name == new.name))).one_or_none()
    values = {
        "name": new.name,
        "incarnation": new.incarnation,
        "registration": dumps(new.model_dump(mode="json", exclude={"sessions"})).decode(),
        "state": "ready",
        "registered_at": transaction.now,
    }
    if before is None:
        await transaction.connection.execute(insert(gateways), values | {"draining": False})
    else:
        changed = update(gateways).where(gateways.c.name == new.name).values(**values)
        await transaction.connection.execute(changed)
    given = await given_to(transaction, new.name)
    held = [session_id for session_id in given if session_id in new.sessions]
    lives = update(sessions).where(sessions.c.session_id.in_(held)).values(incarnation=new.incarnation)
    await transaction.connection.execute(lives)
    effects = Effects()
    if before is not None and before.incarnation != new.incarnation:
        gone = End("lost", f"gateway {new.name} started again without it", "assigned", fault=True)
        effects = await lose(transaction, sorted(set(given) - set(held)), gone)
    strange = sorted(set(new.sessions) - set(held))
    stopping = [session_id for session_id in held if given[session_id]]
    transaction.event("gateway.up", gateway=new.name, capacity=new.capacity)
    draining = before is not None and before.draining
    return Registered(held, sorted([*strange, *stopping]), draining, effects)


async def given_to(transaction: Transaction, gateway: str) -> dict[str, bool]:
    """Open sessions that a gateway was given, and whether they are to be cancelled."""
    asked = (
        select(sessions.c.session_id, tasks.c.stopping)
        .join(tasks, tasks.c.task_id == sessions.c.task_id)
        .where(sessions.c.state == "live", sessions.c.gateway == gateway)
    )
    return {row.session_id: row.stopping is not None for row in await transaction.connection.execute(asked)}


async def gone(transaction: Transaction, name: str, incarnation: str, state: GatewayState, why: str) -> Effects:
    """It is down or has left: what it held is begun again."""
    changed = update(gateways).where(gateways.c.name == name, gateways.c.incarnation == incarnation).values(state=state)
    await transaction.connection.execute(changed)
    held = sorted(await given_to(transaction, name))
    transaction.event("gateway.down", gateway=name, reason=why, sessions=len(held))
    return await lose(transaction, held, End("lost", why, "assigned", fault=True, free=state == "left"))


async def back(transaction: Transaction, name: str) -> None:
    """One that was taken for dead is heard of again."""
    await transaction.connection.execute(update(gateways).where(gateways.c.name == name).values(state="ready"))
    transaction.event("gateway.up", gateway=name)


async def drain(transaction: Transaction, name: str, draining: bool) -> None:
    """Raises NotFound."""
    changed = update(gateways).where(gateways.c.name == name).values(draining=draining).returning(gateways.c.name)
    if (await transaction.connection.execute(changed)).one_or_none() is None:
        raise NotFound(f"there is no gateway {name!r}")
    transaction.event("gateway.draining" if draining else "gateway.up", gateway=name)
