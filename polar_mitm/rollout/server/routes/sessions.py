"""Sessions and their files."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from polar_mitm.client.models import File, Name, Page, Result, Session
from polar_mitm.client.nodes import Report, Reported
from polar_mitm.rollout.server.parts import Cursor, Here, Limit, SessionId, page, problems
from polar_mitm.rollout.server.results import with_trajectory
from polar_mitm.rollout.server.rows import KNOWN
from polar_mitm.rollout.server.rows import rows as rows_of
from polar_mitm.rollout.server.service import Service
from polar_mitm.rollout.server.strict import StrictRoute
from polar_mitm.rollout.store.files import Incoming
from polar_mitm.rollout.store.writer import Conflict, NotFound

router = APIRouter(prefix="/v1/sessions", tags=["sessions"], route_class=StrictRoute)

PIECE = 1 << 20
"""Bytes that are written at once: most files are smaller, and go into a thread and back once."""

FileName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", description="A file's name.")]


@router.get("", responses=problems())
async def sessions(
    service: Here,
    task_id: Annotated[Name | None, Query()] = None,
    gateway: Annotated[Name | None, Query()] = None,
    state: Literal["queued", "live", "done"] | None = None,
    order: Literal["oldest", "newest"] = "newest",
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[Session]:
    """Sessions by when they were made."""
    rows = await service.reads.sessions(
        task_id=task_id,
        gateway=gateway,
        state=state,
        after=None if cursor is None else int(cursor),
        descending=order == "newest",
        limit=limit + 1,
    )
    return page([(row.id, service.shown(row)) for row in rows], limit)


@router.get("/{session_id}", responses=problems(404))
async def session(session_id: SessionId, service: Here) -> Session:
    """One session, with the stage that its gateway last told."""
    return service.shown(await service.session(session_id))


@router.get("/{session_id}/result", responses=problems(404))
async def result(session_id: SessionId, service: Here, trajectory: bool = False) -> Result:
    """What came of it; `trajectory`: with what the gateway built."""
    found = await _result(service, session_id)
    return await with_trajectory(service, found) if trajectory else found


@router.get("/{session_id}/rows", response_model=list[dict[str, Any]], responses=problems(404, 409))
async def rows(
    session_id: SessionId,
    service: Here,
    form: Annotated[str, Query(alias="format", pattern=KNOWN, description="A format of `polar export`.")],
) -> Response:
    """What came of it as a trainer's rows. A session without a trained token keeps its place, masked."""
    return Response(await rows_of(service, await _result(service, session_id), form), media_type="application/json")


@router.post("/{session_id}/report", tags=["gateways"], responses=problems(409))
async def report(session_id: SessionId, report: Report, service: Here) -> Reported:
    """A gateway says how a session ended. It is on disk when this is answered; otherwise send it again."""
    if report.session_id != session_id:
        raise Conflict(f"the report is of {report.session_id!r}, and it was sent for {session_id!r}")
    return Reported(outcome=(await service.report(report)).outcome)


@router.get("/{session_id}/files", responses=problems(404))
async def files(session_id: SessionId, service: Here) -> list[File]:
    """The session's files that are here, by name; those that its gateway stored elsewhere are in its result."""
    row = await service.session(session_id)
    return await asyncio.to_thread(service.files.names, row.task_id, session_id)


@router.get("/{session_id}/files/{name}", response_class=StreamingResponse, responses=problems(404))
async def file(session_id: SessionId, name: FileName, service: Here) -> StreamingResponse:
    """One file, as it was uploaded."""
    row = await service.session(session_id)
    pieces = await asyncio.to_thread(service.files.read, row.task_id, session_id, name)
    headers = {"X-Content-Type-Options": "nosniff", "Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers)


@router.put("/{session_id}/files/{name}", tags=["gateways"], status_code=201, responses=problems(404, 413))
async def upload(session_id: SessionId, name: FileName, request: Request, service: Here) -> File:
    """Store a file of a session, in place of an earlier one of its name. The body is the file."""
    live = service.board.live.get(session_id)  # most are of one that a gateway has: no need to ask the database
    task_id = live.task_id if live else (await service.session(session_id)).task_id
    return await _store(service, task_id, session_id, name, request.stream())


async def _result(service: Service, session_id: str) -> Result:
    found = await service.reads.result(session_id)
    if found is None:
        await service.session(session_id)
        raise NotFound(f"session {session_id!r} has not ended")
    return found


async def _store(service: Service, task_id: str, session_id: str, name: str, body: AsyncIterator[bytes]) -> File:
    incoming: Incoming | None = None
    held = bytearray()

    def write(data: bytes) -> Incoming:
        nonlocal incoming
        incoming = incoming or service.files.create(task_id, session_id, name)
        incoming.write(data)
        return incoming

    try:
        async for piece in body:
            held += piece
            if len(held) >= PIECE:
                await asyncio.to_thread(write, bytes(held))
                held.clear()
        return await asyncio.to_thread(lambda: write(bytes(held)).keep())
    except BaseException:
        if incoming is not None:
            await asyncio.shield(asyncio.to_thread(incoming.drop))
        raise
