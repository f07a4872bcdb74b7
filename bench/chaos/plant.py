"""Spoils what a run has left in the server's database, to see that the checker reports it."""

from collections.abc import Callable
from typing import Final

from sqlalchemy import Connection, create_engine, insert, select, text
from sqlalchemy.engine import make_url

from polar_mitm.rollout.store.tables import results, sessions


def lost(connection: Connection) -> None:
    """A session that counts is gone with its result."""
    session_id = connection.execute(select(sessions.c.session_id).where(sessions.c.counts).limit(1)).scalar_one()
    connection.execute(results.delete().where(results.c.session_id == session_id))
    connection.execute(sessions.delete().where(sessions.c.session_id == session_id))


def doubled(connection: Connection) -> None:
    """A sample has a second session that counts. The index that forbids it has to go first."""
    connection.execute(text("drop index uq_sessions_one_result"))
    row = dict(connection.execute(select(sessions).where(sessions.c.counts).limit(1)).one()._mapping)
    body = connection.execute(select(results.c.body).where(results.c.session_id == row["session_id"])).scalar_one()
    del row["id"]
    row |= {"session_id": "ses_planted", "attempt": row["attempt"] + 50, "seq": row["seq"] + 1_000_000}
    connection.execute(insert(sessions), row)
    connection.execute(insert(results), {"session_id": "ses_planted", "body": body})


PLANTS: Final[dict[str, Callable[[Connection], None]]] = {"lost": lost, "doubled": doubled}


def plant(name: str, database: str) -> None:
    """`database`: its URL. Nobody else has it open."""
    url = make_url(database)
    engine = create_engine(url if url.get_backend_name() == "sqlite" else url.set(drivername="postgresql+psycopg"))
    with engine.begin() as connection:
        PLANTS[name](connection)
    engine.dispose()
