"""The gateway's HTTP server: a socket that is bound before anything is told where it is, and uvicorn on it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from fastapi import FastAPI

from polar_mitm.rollout.server.settings import SettingsError

STOPPING_S = 2


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the caller's."""
        yield


def bind(host: str, port: int) -> socket.socket:
    """Raises SettingsError."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise SettingsError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    return bound


def address(bound: socket.socket, host: str) -> str:
    """The URL of a bound socket."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{bound.getsockname()[1]}"


@asynccontextmanager
async def listening(app: FastAPI, bound: socket.socket) -> AsyncIterator[None]:
    """Serve on the socket, which is closed at the end."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=STOPPING_S,
        timeout_keep_alive=75,  # longer than the server's client keeps a connection
        server_header=False,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[bound]), name="gateway-http")
    try:
        while not server.started and not serving.done():  # noqa: ASYNC110  (uvicorn sets no event)
            await asyncio.sleep(0.02)
        yield
    finally:
        server.should_exit = True
        await serving
        bound.close()
