"""The rollout server as an ASGI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from polar_mitm import __version__
from polar_mitm.rollout.server import errors
from polar_mitm.rollout.server.guard import Guard
from polar_mitm.rollout.server.routes import dashboard, events, gateways, operations, policy, results, sessions, tasks
from polar_mitm.rollout.server.service import Service
from polar_mitm.rollout.server.settings import Settings


def create_app(settings: Settings, service: Service | None = None) -> FastAPI:
    """The service is entered and left with the application, unless it is given: then that is its owner's to do."""
    owned = service is None
    service = service or Service(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if owned:
            async with service:
                yield
        else:
            yield

    app = FastAPI(
        title="polar rollout",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        # Nothing leaves the machine, whatever its environment asks of FastAPI.
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
    )
    app.state.service = service
    for room in (dashboard, tasks, sessions, results, events, gateways, policy, operations):
        app.include_router(room.router)
    errors.install(app)
    app.add_middleware(
        Guard,
        token=settings.token,
        max_body=settings.max_body,
        max_file=settings.max_file,
        requests=service.metrics.requests,
    )
    return app
