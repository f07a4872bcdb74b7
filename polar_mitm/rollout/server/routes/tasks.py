"""Tasks: submitted, looked at, cancelled, run again."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from polar_mitm.client.models import Name, Page, RetryRequest, Session, Task, TaskRequest, TaskStatus
from polar_mitm.rollout.server.parts import Cursor, Here, Limit, TaskId, page, problems
from polar_mitm.rollout.server.strict import StrictRoute

router = APIRouter(prefix="/v1/tasks", tags=["tasks"], route_class=StrictRoute)

Key = Annotated[
    str | None,
    Header(alias="Idempotency-Key", pattern=r"^[\x21-\x7e]{1,200}$", description="The same key: the same task."),
]


@router.post("", status_code=202, responses=problems(409, 413))
async def submit(request: TaskRequest, service: Here, response: Response, key: Key = None) -> Task:
    """Take a task. It is on disk when this is answered."""
    submitted = await service.submit(request, key)
    response.headers["Location"] = f"/v1/tasks/{submitted.task.task_id}"
    if not submitted.fresh:
        response.headers["Idempotent-Replayed"] = "true"
    return submitted.task


@router.get("", responses=problems())
async def tasks(
    service: Here,
    status: TaskStatus | None = None,
    group_id: Annotated[Name | None, Query()] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[Task]:
    """Tasks, newest first."""
    before = None if cursor is None else int(cursor)
    return page(await service.reads.tasks(status=status, group_id=group_id, before=before, limit=limit + 1), limit)


@router.get("/{task_id}", responses=problems(404))
async def task(task_id: TaskId, service: Here) -> Task:
    """One task, with its request."""
    return await service.task(task_id)


@router.get("/{task_id}/sessions", responses=problems(404))
async def sessions(task_id: TaskId, service: Here, limit: Limit = 100, cursor: Cursor = None) -> Page[Session]:
    """Its sessions, every attempt, in the order in which they were made."""
    after = None if cursor is None else int(cursor)
    rows = await service.reads.sessions(task_id=task_id, after=after, limit=limit + 1)
    if not rows:
        await service.task(task_id)
    return page([(row.id, service.shown(row)) for row in rows], limit)


@router.post("/{task_id}/cancel", status_code=202, responses=problems(404))
async def cancel(task_id: TaskId, service: Here) -> Task:
    """End what runs and take the rest out of the line. A task that has ended stays as it is."""
    return await service.cancel(task_id)


@router.post("/{task_id}/retry", status_code=202, responses=problems(404, 409))
async def retry(task_id: TaskId, service: Here, request: RetryRequest | None = None) -> Task:
    """Run samples again that have ended, as next attempts. What they came to before is kept beside."""
    return await service.retry(task_id, request.samples if request else None)
