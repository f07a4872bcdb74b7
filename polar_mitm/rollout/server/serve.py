"""Runs the rollout server on a port until it is told to stop."""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from polar_mitm.rollout.server.app import create_app
from polar_mitm.rollout.server.service import Service
from polar_mitm.rollout.server.settings import Settings, SettingsError

logger = logging.getLogger(__name__)

STOPPING_S = 5
"""How long answers that are under way may take once the server is to stop."""


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, up: Callable[[], None]) -> None:
        super().__init__(config)
        self._up = up

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        try:
            self._up()
        except OSError as error:  # where it is told may be a file on a disk that is full; what it is there for goes on
            logger.warning("it listens, and nobody could be told: %s", error)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the caller's."""
        yield


async def serve(settings: Settings, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until cancelled; `ready` is told the address. Raises SettingsError, StoreUnusable, OSError, ValueError."""
    listening = _listen(host, port)
    with listening:
        async with Service(settings) as service:
            config = uvicorn.Config(
                create_app(settings, service),
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=STOPPING_S,
                # A gateway's connection lives from one heartbeat to the next.
                timeout_keep_alive=int(4 * settings.heartbeat_s) + 1,
                server_header=False,
            )
            shown = f"[{host}]" if ":" in host else host
            url = f"http://{shown}:{listening.getsockname()[1]}"
            server = _Server(config, lambda: ready(url))
            work = asyncio.create_task(server.serve(sockets=[listening]))
            try:
                await asyncio.shield(work)
            finally:
                service.broadcast.close()
                server.should_exit = True
                await work


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise SettingsError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    listening.setblocking(False)
    return listening
