"""Opens the database: its driver, its settings, its schema, and the lock that keeps it one server's.

SQLite runs in WAL mode with synchronous=FULL: what was answered is on disk even if the machine loses power. That is one
fsync a transaction, and a transaction holds all that came in during the one before.
"""

import fcntl
import os
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from polar_mitm.rollout.store.problems import StoreBusy, StoreUnusable

MIGRATIONS = Path(__file__).parent / "migrations"

LOCK_KEY = 0x706F6C6172
"""Of PostgreSQL's advisory lock: "polar"."""

BUSY_MS = 5000
"""How long a write waits for a lock that something else than this server holds on the SQLite file."""

READERS = 4


class Database:
    """One database of one server. `open` takes the lock and brings the schema up to date."""

    def __init__(self, url: str) -> None:
        """Raises StoreUnusable for a URL of another kind of database."""
        self.url = _driver_url(url)
        self.sqlite = self.url.get_backend_name() == "sqlite"
        self._lock: int | None = None
        pooled: dict[str, Any] = {"pool_size": READERS, "max_overflow": 0, "pool_pre_ping": not self.sqlite}
        self.engine: AsyncEngine = create_async_engine(self.url, **pooled)
        self.writing: AsyncEngine = create_async_engine(self.url, pool_size=1, max_overflow=0)
        """For the one connection of the writer."""
        if self.sqlite:
            event.listen(self.engine.sync_engine, "connect", _settle)
            event.listen(self.writing.sync_engine, "connect", _settle)
            event.listen(self.writing.sync_engine, "begin", _begin_immediate)

    async def open(self) -> None:
        """Raises StoreBusy and StoreUnusable."""
        if self.sqlite:
            self._lock_file()
        try:
            async with self.writing.connect() as connection:
                await self.claim(connection)
                await connection.run_sync(_migrate)
                await connection.commit()
        except StoreUnusable:
            raise
        except CommandError as error:
            raise StoreUnusable(f"{self.shown}: {error}: it is of a newer polar-mitm; install that one") from error
        except Exception as error:
            raise StoreUnusable(f"{self.shown} cannot be opened: {error}") from error

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return self.url.render_as_string(hide_password=True)

    async def claim(self, connection: AsyncConnection) -> None:
        """Take PostgreSQL's lock for as long as this connection lives: writes of a server without it never get in.

        Raises StoreBusy.
        """
        if self.sqlite:
            return
        got = (await connection.execute(text("select pg_try_advisory_lock(:key)"), {"key": LOCK_KEY})).scalar_one()
        await connection.commit()
        if not got:
            raise StoreBusy(f"another rollout server uses {self.shown}: stop it, or name another --database")

    async def close(self) -> None:
        await self.engine.dispose()
        await self.writing.dispose()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _lock_file(self) -> None:
        path = Path(self.url.database or "")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # What tasks say is nobody else's: SQLite would make the file with everybody's rights.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            handle = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnusable(f"{path} cannot be opened: {error}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise StoreBusy(f"another rollout server uses {path}: stop it, or name another --database") from None
        self._lock = handle


def _driver_url(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StoreUnusable(
            f"{url!r} is no database URL: expected sqlite:///<path> or postgresql://<user>@<host>/<name>"
        ) from None
    match parsed.get_backend_name():
        case "sqlite" if parsed.database and parsed.database != ":memory:":
            return parsed.set(drivername="sqlite+aiosqlite")
        case "postgresql" | "postgres":
            return parsed.set(drivername="postgresql+psycopg")
    shown = parsed.render_as_string(hide_password=True)
    raise StoreUnusable(f"{shown}: expected sqlite:///<path> of a file, or postgresql://<user>@<host>/<name>")


def _settle(connection: Any, _record: object) -> None:
    # The driver's own BEGIN comes late and is deferred: two statements of one transaction could see two states.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        f"busy_timeout={BUSY_MS}",
        "foreign_keys=ON",
        f"journal_size_limit={64 * 1024 * 1024}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _migrate(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    # Asking first: an upgrade of nothing still takes most of a second to set up.
    heads = set(ScriptDirectory.from_config(config).get_heads())
    if set(MigrationContext.configure(connection).get_current_heads()) != heads:
        command.upgrade(config, "head")
