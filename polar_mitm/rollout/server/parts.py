"""What the routes share: the service, parameters, pages."""

from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request
from pydantic import BaseModel

from polar_mitm.client.models import ErrorBody, Name, Page
from polar_mitm.rollout.server.service import Service

HIGHEST = 2**62


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Here = Annotated[Service, Depends(_service)]
TaskId = Annotated[Name, Path(description="A task's id.")]
SessionId = Annotated[Name, Path(description="A session's id.")]
GatewayName = Annotated[Name, Path(description="A gateway's name.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many.")]
Cursor = Annotated[
    str | None, Query(pattern=r"^[0-9]{1,18}$", description="`next_cursor` of the page before; leave it out at first.")
]
After = Annotated[int, Query(ge=0, le=HIGHEST, description="Begin after this `seq`.")]

type Responses = dict[int | str, dict[str, Any]]


def problems(*statuses: int) -> Responses:
    """The errors that a route may answer with, for the API's page. Those of every route are added."""
    return {status: {"model": ErrorBody} for status in (*statuses, 401, 422, 503)}


def page[Item: BaseModel](found: list[tuple[int, Item]], limit: int) -> Page[Item]:
    """`found` has one more than fits, if there is one."""
    more = found[limit - 1][0] if len(found) > limit else None
    return Page(items=[item for _, item in found[:limit]], next_cursor=None if more is None else str(more))
