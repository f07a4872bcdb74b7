"""The HTTP API of a gateway, which the rollout server calls."""

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CollectorRegistry, Counter, generate_latest
from starlette.exceptions import HTTPException as StarletteHTTPException

from polar_mitm import __version__
from polar_mitm.client.models import ErrorBody, Problem
from polar_mitm.client.nodes import Accepted, Assignment
from polar_mitm.engine.pool import EnginePool
from polar_mitm.rollout.gateway.engine_metrics import engine_exposition
from polar_mitm.rollout.gateway.metrics import exposition
from polar_mitm.rollout.gateway.pipeline import Busy, Draining, Pipeline
from polar_mitm.rollout.gateway.policy import policy_routes
from polar_mitm.rollout.server.guard import Guard
from polar_mitm.rollout.server.settings import MIB
from polar_mitm.rollout.server.strict import StrictRoute

LARGEST = 64 * MIB
"""Bytes of a request: the server's own limit of a task, and room for what it adds."""

CODES = {
    401: "unauthorized",
    404: "not_found",
    405: "invalid",
    409: "conflict",
    424: "failed",
    429: "busy",
    503: "unavailable",
}
_ERRORS: dict[int | str, dict[str, object]] = {
    status: {"model": ErrorBody} for status in (401, 404, 409, 422, 424, 429, 503)
}


def make_app(pipeline: Pipeline, engines: EnginePool, token: str, incarnation: str) -> FastAPI:
    """Every path but /healthz needs the token."""
    figures = CollectorRegistry()
    asked = Counter("polar_gateway_requests", "Requests, by route and status.", ["route", "status"], registry=figures)
    app = FastAPI(
        title="polar gateway",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        responses=_ERRORS,
        # Nothing leaves the machine, whatever its environment asks of FastAPI.
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
    )
    app.router.route_class = StrictRoute
    app.add_middleware(Guard, token=token, max_body=LARGEST, max_file=LARGEST, requests=asked)

    @app.post("/v1/sessions", status_code=202)
    async def take(assignment: Assignment) -> Accepted:
        """Take a session, once: asked again, the answer is the same."""
        if pipeline.stage(assignment.session_id) is None and assignment.incarnation != incarnation:
            raise HTTPException(409, f"this gateway is {incarnation}, and the session is for {assignment.incarnation}")
        try:
            stage = pipeline.take(assignment)
        except Busy as error:
            raise HTTPException(429, str(error)) from error
        except Draining as error:
            raise HTTPException(503, str(error)) from error
        return Accepted(session_id=assignment.session_id, stage=stage)

    @app.delete("/v1/sessions/{session_id}", status_code=202)
    async def end(session_id: str) -> Response:
        """End a session; it is reported as cancelled, unless it is done already."""
        if not pipeline.cancel(session_id):
            raise HTTPException(404, f"this gateway holds no session {session_id!r}")
        return Response(status_code=202)

    @app.get("/v1/sessions")
    async def sessions() -> dict[str, str]:
        """The stage of each session that is held."""
        return dict(pipeline.stages)

    app.include_router(policy_routes(engines.policy))

    @app.get("/healthz")
    async def health() -> dict[str, str]:
        return {"status": "draining" if pipeline.draining else "ok"}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """For Prometheus."""
        text = exposition(pipeline) + engine_exposition(engines) + generate_latest(figures)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.exception_handler(StarletteHTTPException)
    async def http_error(_: Request, error: StarletteHTTPException) -> JSONResponse:
        return _error(error.status_code, CODES.get(error.status_code, "invalid"), str(error.detail))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        return _error(422, "invalid", f"{place or 'body'}: {first['msg']}", place or None)

    return app


def _error(status: int, code: str, message: str, field: str | None = None) -> JSONResponse:
    body = ErrorBody(error=Problem(code=code, message=message, field=field))
    return JSONResponse(body.model_dump(), status_code=status)
