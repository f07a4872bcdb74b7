"""Lists and ticks find their rows by an index: none of them reads a whole table, however long that is."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Select, text

from polar_mitm.rollout.store.database import Database
from polar_mitm.rollout.store.reads import Reads


class Explaining(Reads):
    """Keeps how SQLite would do each query."""

    plans: list[str] = []  # noqa: RUF012

    async def _rows(self, asked: Select[Any]) -> Any:
        async with self.engine.connect() as connection:
            compiled = asked.compile(self.engine.sync_engine, compile_kwargs={"literal_binds": True})
            plan = await connection.execute(text(f"explain query plan {compiled}".replace(":", r"\:")))
            self.plans += [row.detail for row in plan]
        return await super()._rows(asked)


@pytest.fixture
async def reads(tmp_path: Path) -> AsyncIterator[Explaining]:
    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    await database.open()
    Explaining.plans = []
    yield Explaining(database.engine)
    await database.close()


async def test_nothing_reads_a_whole_table(reads: Explaining) -> None:
    await reads.tasks(status=None, group_id=None, before=9, limit=10)
    await reads.tasks(status="queued", group_id=None, before=None, limit=10)
    await reads.tasks(status=None, group_id="g", before=9, limit=10)
    await reads.task("t")
    await reads.sessions(task_id="t", limit=10)
    await reads.sessions(gateway="g", after=5, descending=True, limit=10)
    await reads.sessions(state="live", limit=10)
    await reads.session("s")
    await reads.result("s")
    await reads.results(after=5, limit=10)
    await reads.results(after=5, task_id="t", limit=10)
    await reads.results(after=5, group_id="g", limit=10)
    await reads.events(after=5, task_id="t", limit=10)
    await reads.due_callbacks(5.0, origins=["x"], limit=10)
    await reads.next_callback_at()
    await reads.callbacks(state="dead", task_id=None, after=0, limit=10)
    assert len(reads.plans) > 15
    bad = [plan for plan in reads.plans if ("SCAN" in plan and "INDEX" not in plan) or "TEMP B-TREE FOR ORDER" in plan]
    assert bad == []
