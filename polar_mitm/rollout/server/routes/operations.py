"""For who runs the server: callbacks, the overview, metrics, health, the API's page."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response

from polar_mitm import __version__
from polar_mitm.client.models import CallbackView, Name, Overview, Page
from polar_mitm.rollout.server.page import api_page
from polar_mitm.rollout.server.parts import Cursor, Here, Limit, page, problems
from polar_mitm.rollout.server.strict import StrictRoute

router = APIRouter(tags=["operations"], route_class=StrictRoute)


@router.get("/v1/callbacks", responses=problems())
async def callbacks(
    service: Here,
    state: Literal["pending", "delivered", "dead"] | None = None,
    task_id: Annotated[Name | None, Query()] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[CallbackView]:
    """Callbacks, oldest first. `dead` ones were given up on."""
    after = 0 if cursor is None else int(cursor)
    return page(await service.reads.callbacks(state=state, task_id=task_id, after=after, limit=limit + 1), limit)


@router.post("/v1/callbacks/{id}/resend", status_code=202, responses=problems(404, 409))
async def resend(id: Annotated[Name, Path(description="A callback's id.")], service: Here) -> CallbackView:
    """Send one again, with all its tries."""
    return await service.resend(id)


@router.get("/v1/overview", responses=problems())
async def overview(service: Here) -> Overview:
    """The server at a glance."""
    return await service.overview()


@router.get("/metrics", response_class=PlainTextResponse, responses=problems())
async def metrics(service: Here) -> Response:
    """For Prometheus."""
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/healthz", response_class=PlainTextResponse)
async def healthz() -> str:
    """Open to all; it says nothing but that the server answers."""
    return "ok\n"


@router.get("/docs", response_class=HTMLResponse, include_in_schema=False)
async def docs(request: Request) -> str:
    return api_page(request.app.openapi(), __version__)
