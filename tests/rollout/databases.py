"""A fresh database for each test, of both kinds."""

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from polar_mitm.rollout.store.database import Database
from tests.needs import need
from tests.rollout import postgres


@dataclass
class Cluster:
    """Databases are copies of one that has its tables: making those takes most of a second."""

    address: str
    numbers: Iterator[int] = field(default_factory=itertools.count)
    template: str | None = None

    def new(self) -> str:
        if self.template is None:
            self.template = "polar_template"
            self._run(f"create database {self.template}")
            asyncio.run(_make_tables(self.address.format(self.template)))
        name = f"polar_{next(self.numbers)}"
        self._run(f"create database {name} template {self.template}")
        return self.address.format(name)

    def empty(self) -> str:
        name = f"polar_{next(self.numbers)}"
        self._run(f"create database {name}")
        return self.address.format(name)

    def _run(self, statement: str) -> None:
        with psycopg.connect(self.address.format("postgres"), autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]


async def _make_tables(url: str) -> None:
    database = Database(url)
    await database.open()
    await database.close()


@pytest.fixture(scope="session")
def pg_cluster() -> Iterator[Cluster]:
    need(postgres.missing())
    with postgres.cluster() as address:
        yield Cluster(address)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Every test with this runs twice."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'rollout.db'}"
    cluster: Cluster = request.getfixturevalue("pg_cluster")
    return cluster.new()
