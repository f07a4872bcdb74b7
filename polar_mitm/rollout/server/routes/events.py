"""Server-sent events: what happens, as it happens."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from polar_mitm.client.models import Event, Name
from polar_mitm.rollout.server.parts import HIGHEST, Here, Responses, problems
from polar_mitm.rollout.server.service import Service

router = APIRouter(prefix="/v1", tags=["events"])

PING_S = 10.0
AT_ONCE = 500
STREAM: Responses = {200: {"content": {"text/event-stream": {}}}}


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses=STREAM | problems(),
)
async def events(
    service: Here,
    after: Annotated[
        int | None, Query(ge=0, le=HIGHEST, description="Begin after this `seq`; now, if left out.")
    ] = None,
    task_id: Annotated[Name | None, Query()] = None,
    last_event_id: Annotated[str | None, Header(pattern=r"^[0-9]{1,18}$")] = None,
) -> StreamingResponse:
    """Each is an Event; `event:` is its type and `id:` its seq. `session.stage` has no id and is not sent again."""
    start = int(last_event_id) if last_event_id is not None else after
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_lines(service, start, task_id), media_type="text/event-stream", headers=headers)


async def _lines(service: Service, after: int | None, task_id: str | None) -> AsyncIterator[bytes]:
    broadcast = service.broadcast
    number = broadcast.number
    last = after
    behind = after is not None
    yield b": polar\n\n"
    while not broadcast.closed:
        if behind:
            number = broadcast.number
            assert last is not None
            while found := await service.reads.events(after=last, task_id=task_id, limit=AT_ONCE):
                for event in found:
                    yield _line(event)
                last = found[-1].seq or last
            behind = False
        changed = broadcast.waiter()
        fresh = broadcast.since(number)
        if fresh is None:
            last, behind = last if last is not None else broadcast.oldest_seq, True
            continue
        number = broadcast.number
        for event in fresh:
            if task_id is not None and event.task_id != task_id:
                continue
            if event.seq is not None:
                if last is not None and event.seq <= last:
                    continue
                last = event.seq
            yield _line(event)
        if not fresh:
            try:
                await asyncio.wait_for(changed.wait(), PING_S)
            except TimeoutError:
                yield b": ping\n\n"


def _line(event: Event) -> bytes:
    id_line = "" if event.seq is None else f"id: {event.seq}\n"
    return f"{id_line}event: {event.type}\ndata: {event.model_dump_json()}\n\n".encode()
