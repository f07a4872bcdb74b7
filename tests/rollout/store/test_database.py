"""The schema, its migrations, and the lock that keeps a database one server's."""

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from polar_mitm.rollout.store.database import Database
from polar_mitm.rollout.store.problems import StoreBusy, StoreUnusable
from polar_mitm.rollout.store.tables import metadata


def differences(connection: Connection) -> list[object]:
    return list(compare_metadata(MigrationContext.configure(connection), metadata))


async def test_the_migrations_make_the_tables_that_the_code_has(database_url: str) -> None:
    database = Database(database_url)
    await database.open()
    async with database.engine.connect() as connection:
        assert await connection.run_sync(differences) == []
    await database.close()


async def test_a_database_is_one_servers(database_url: str) -> None:
    first, second = Database(database_url), Database(database_url)
    await first.open()
    async with first.writing.connect() as connection:
        await first.claim(connection)
        with pytest.raises(StoreBusy, match="another rollout server"):
            await second.open()
        await second.close()
    await first.close()
    third = Database(database_url)
    await third.open()
    await third.close()


async def test_a_database_of_a_newer_polar_is_refused(database_url: str) -> None:
    database = Database(database_url)
    await database.open()
    async with database.writing.begin() as connection:
        await connection.execute(text("update alembic_version set version_num = '9999'"))
    await database.close()
    again = Database(database_url)
    with pytest.raises(StoreUnusable, match="newer polar-mitm"):
        await again.open()
    await again.close()


@pytest.mark.parametrize(
    "url", ["", "nonsense", "mysql://x/y", "sqlite://", "sqlite:///:memory:", "postgresql+nodriver://x/y z"]
)
def test_another_kind_of_database_is_refused_by_name(url: str) -> None:
    if url.startswith("postgresql"):
        assert Database(url).url.drivername == "postgresql+psycopg"
        return
    with pytest.raises(StoreUnusable, match="expected sqlite:///"):
        Database(url)


async def test_a_password_is_never_shown() -> None:
    database = Database("postgresql://me:hunter2@127.0.0.1:9/none")
    with pytest.raises(StoreUnusable) as refused:
        await database.open()
    assert "hunter2" not in str(refused.value)
    await database.close()


async def test_what_is_committed_is_synced_and_nobody_elses(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rollout.db"
    database = Database(f"sqlite:///{path}")
    await database.open()
    async with database.writing.connect() as connection:
        settings = [
            (await connection.execute(text(f"pragma {name}"))).scalar() for name in ("journal_mode", "synchronous")
        ]
    assert settings == ["wal", 2]
    assert path.stat().st_mode & 0o077 == 0
    await database.close()
