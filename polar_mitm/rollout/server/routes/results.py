"""Results: of one task, of all; whole, or as they come."""

from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from polar_mitm.client.models import Name, Page, Result, Results
from polar_mitm.rollout.server.parts import After, Here, Limit, Responses, TaskId, page, problems
from polar_mitm.rollout.server.results import follow, with_trajectory
from polar_mitm.rollout.server.strict import StrictRoute

router = APIRouter(prefix="/v1", tags=["results"], route_class=StrictRoute)

NDJSON = "application/x-ndjson"
Accept = Annotated[str, Header(description=f"`{NDJSON}` for a stream of ResultLines.")]
Trajectory = Annotated[bool, Query(description="With what the gateways built.")]
STREAM: Responses = {200: {"content": {NDJSON: {}}}}


@router.get("/tasks/{task_id}/results", response_model=Results, responses=STREAM | problems(404))
async def of_task(
    task_id: TaskId, service: Here, accept: Accept = "*/*", trajectory: Trajectory = False, after: After = 0
) -> Results | StreamingResponse:
    """All results that there are, or a stream to the task's end."""
    task = await service.task(task_id)
    if NDJSON in accept:
        lines = follow(service, after=after, task_id=task_id, trajectory=trajectory)
        return StreamingResponse(lines, media_type=NDJSON)
    found = await service.reads.results(after=after, task_id=task_id, limit=task.num_samples)
    return Results(task=task, results=[await with_trajectory(service, r) if trajectory else r for r in found])


@router.get("/results", response_model=Page[Result], responses=STREAM | problems())
async def of_all(
    service: Here,
    accept: Accept = "*/*",
    trajectory: Trajectory = False,
    after: After = 0,
    task_id: Annotated[Name | None, Query()] = None,
    group_id: Annotated[Name | None, Query()] = None,
    late: Annotated[bool, Query(description="Also those that are not their sample's result.")] = False,
    limit: Limit = 100,
) -> Page[Result] | StreamingResponse:
    """Results in the order in which sessions ended. `next_cursor` is the next `after`. The stream does not end."""
    if NDJSON in accept:
        lines = follow(service, after=after, task_id=task_id, group_id=group_id, late=late, trajectory=trajectory)
        return StreamingResponse(lines, media_type=NDJSON)
    found = await service.reads.results(after=after, task_id=task_id, group_id=group_id, late=late, limit=limit + 1)
    shown = [await with_trajectory(service, r) if trajectory else r for r in found[:limit]]
    return page([(r.seq, r) for r in [*shown, *found[limit:]]], limit)
