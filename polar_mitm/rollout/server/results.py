"""Results with their trajectories, and streams of them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from polar_mitm import json_text
from polar_mitm.capture import canonical
from polar_mitm.client.models import Result, ResultLine
from polar_mitm.rollout.server.service import Service
from polar_mitm.trajectory.exporters.text import whole

TRAJECTORY = "trajectory.json"

AT_ONCE = 50

PING_S = 10.0
"""Longest silence of a stream."""


async def with_trajectory(service: Service, result: Result) -> Result:
    """The result with what is in its `trajectory.json`, if that is there, lone surrogates as U+FFFD: the file keeps
    them, and many readers of JSON refuse them. Raises OSError and ValueError."""

    def read() -> dict[str, Any] | None:
        try:
            pieces = service.files.read(result.session.task_id, result.session.session_id, TRAJECTORY)
        except FileNotFoundError:
            return None
        text = b"".join(pieces)
        found: dict[str, Any]
        try:
            found = json_text.loads(text)
        except ValueError:
            found = whole(canonical.loads(text))
        return found

    result.trajectory = await asyncio.to_thread(read)
    return result


async def follow(
    service: Service,
    *,
    after: int,
    task_id: str | None,
    group_id: str | None = None,
    late: bool = False,
    trajectory: bool,
) -> AsyncIterator[bytes]:
    """Lines of NDJSON: results as sessions end. One task's stream ends with the task, others when the server does."""
    while True:
        changed = service.broadcast.waiter()
        # Asked before the results are read: a task that has ended gets no more of them.
        task = None if task_id is None else await service.reads.task(task_id, body=False)
        while found := await service.reads.results(
            after=after, task_id=task_id, group_id=group_id, late=late, limit=AT_ONCE
        ):
            for result in found:
                shown = await with_trajectory(service, result) if trajectory else result
                yield _line(ResultLine(type="result", result=shown))
            after = found[-1].seq
        if task is not None and task.finished_at is not None:
            yield _line(ResultLine(type="end", task=task))
            return
        if service.broadcast.closed:
            return
        try:
            await asyncio.wait_for(changed.wait(), PING_S)
        except TimeoutError:
            yield _line(ResultLine(type="ping"))


def _line(line: ResultLine) -> bytes:
    return line.model_dump_json(exclude_none=True).encode() + b"\n"
