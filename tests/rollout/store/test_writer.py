"""Operations in one transaction, and what becomes of them when it fails."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, text

from polar_mitm.client.models import Event
from polar_mitm.rollout.store import database as module
from polar_mitm.rollout.store.clock import Clock
from polar_mitm.rollout.store.database import Database
from polar_mitm.rollout.store.tables import gateways
from polar_mitm.rollout.store.writer import Conflict, StoreFailed, Transaction, Writer


def row(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "incarnation": "x",
        "registration": "{}",
        "state": "ready",
        "draining": False,
        "registered_at": 0.0,
    }


def adds(name: str) -> Any:
    async def operation(transaction: Transaction) -> str:
        await transaction.connection.execute(insert(gateways), row(name))
        transaction.event("gateway.up", gateway=name)
        return name

    return operation


class Seen:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.order: list[str] = []
        self.reconnects = 0

    def __call__(self, events: Sequence[Event], done_seq: int) -> None:
        self.events += events

    def again(self) -> None:
        self.reconnects += 1


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
async def writer(database_url: str, seen: Seen) -> AsyncIterator[Writer]:
    database = Database(database_url)
    await database.open()
    writer = Writer(database, Clock(), seen, seen.again)
    await writer.start()
    yield writer
    await writer.stop()
    await database.close()


async def names(writer: Writer) -> list[str]:
    async with writer.database.engine.connect() as connection:
        return sorted((await connection.execute(select(gateways.c.name))).scalars())


async def test_many_operations_share_a_transaction_and_keep_their_order(writer: Writer, seen: Seen) -> None:
    writes = [writer.write(adds(f"g{n:03}"), seen.order.append) for n in range(300)]
    assert await asyncio.gather(*writes) == [f"g{n:03}" for n in range(300)]
    assert seen.order == [f"g{n:03}" for n in range(300)]
    assert [event.seq for event in seen.events] == list(range(1, 301))
    assert writer.written.transactions < 30
    assert len(await names(writer)) == 300


async def test_one_that_breaks_takes_no_other_with_it(writer: Writer, seen: Seen) -> None:
    async def breaks(transaction: Transaction) -> None:
        await transaction.connection.execute(text("select no_such_column"))

    results = await asyncio.gather(
        writer.write(adds("a")), writer.write(breaks), writer.write(adds("b")), return_exceptions=True
    )
    assert (results[0], results[2]) == ("a", "b")
    assert isinstance(results[1], StoreFailed)
    assert await names(writer) == ["a", "b"]
    assert seen.reconnects >= 1


async def test_one_that_refuses_takes_no_other_with_it(writer: Writer) -> None:
    async def refuses(_: Transaction) -> None:
        raise Conflict("no")

    results = await asyncio.gather(writer.write(adds("a")), writer.write(refuses), return_exceptions=True)
    assert results[0] == "a"
    assert isinstance(results[1], Conflict)


async def test_who_stops_waiting_does_not_stop_the_operation(writer: Writer) -> None:
    task = asyncio.create_task(writer.write(adds("a")))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await writer.write(adds("b"))
    assert await names(writer) == ["a", "b"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_locked_database_is_said_to_be_locked_and_works_again(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await writer.write(adds("a"))
    monkeypatch.setattr(module, "BUSY_MS", 50)
    writer.database.engine.sync_engine.dispose()
    other = sqlite3.connect(tmp_path / "rollout.db", isolation_level=None)
    assert writer._connection is not None
    await writer._connection.exec_driver_sql("PRAGMA busy_timeout=50")
    await writer._connection.commit()
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreFailed, match="locked"):
        await writer.write(adds("b"))
    other.execute("ROLLBACK")
    other.close()
    assert await writer.write(adds("c")) == "c"
    assert await names(writer) == ["a", "c"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_full_disk_is_said_to_be_full_and_works_again(writer: Writer) -> None:
    await writer.write(adds("a"))
    assert writer._connection is not None
    pages = (await writer._connection.exec_driver_sql("PRAGMA page_count")).scalar()
    await writer._connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    await writer._connection.commit()

    async def large(transaction: Transaction) -> None:
        await transaction.connection.execute(insert(gateways), row("b") | {"registration": "x" * 1_000_000})

    with pytest.raises(StoreFailed, match="full"):
        await writer.write(large)
    assert await writer.write(adds("c")) == "c"
    assert await names(writer) == ["a", "c"]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_a_connection_that_the_database_ends_is_made_anew_with_its_lock(writer: Writer) -> None:
    await writer.write(adds("a"))
    async with writer.database.engine.connect() as connection:
        await connection.execute(
            text(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
        )
        await connection.commit()
    outcomes = await asyncio.gather(*(writer.write(adds(f"b{n}")) for n in range(3)), return_exceptions=True)
    assert "b2" in outcomes, outcomes
    rival = Database(writer.database.url.render_as_string(hide_password=False))
    with pytest.raises(module.StoreBusy):
        await rival.open()
    await rival.close()
