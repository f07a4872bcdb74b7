"""Gateways as Ray actors. Ray says on which nodes they run, and begins them again when a process or a node is lost.

Each gateway registers with the rollout server over HTTP like any other. No session, result or token id goes through
Ray, and what becomes of a lost gateway's sessions is the server's business.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from polar_mitm.errors import NotReady
from polar_mitm.rollout.cluster.actor import LEAVING_S, GatewayActor, Health
from polar_mitm.rollout.cluster.placing import Placing, Secret, actor_options, names, server_url
from polar_mitm.sandboxes.base import to_the_end

logger = logging.getLogger(__name__)

LOOK_S: Final = 15.0
NAMES_S: Final = 60.0
"""Actors of a server that was killed keep their names until Ray has ended them."""


class Fleet:
    """The gateways of one rollout server. `connect`, then `begin` once the server listens, then `end`."""

    def __init__(self, placing: Placing, token: str) -> None:
        self.placing = placing
        self.actors: dict[str, Any] = {}
        self._token = Secret(token)
        self._ending = threading.Event()
        self._watching: threading.Thread | None = None

    def connect(self) -> None:
        """Raises NotReady without Ray, or without a cluster."""
        try:
            import ray
        except ModuleNotFoundError as missing:
            raise NotReady(
                f"{missing.name} is not installed: `pip install '.[rollout,ray]'` in polar's folder brings it"
            ) from missing
        try:
            ray.init(
                address=self.placing.address,
                namespace=self.placing.namespace,
                logging_level=logging.WARNING,
                log_to_driver=False,
            )
        except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            what = f"the Ray cluster at {self.placing.address!r} cannot be joined: {str(error).rstrip('.')}"
            raise NotReady(f"{what}. `ray start --head` begins one; --ray-address names another") from error

    def begin(self, url: str) -> list[str]:
        """Place the gateways, and look after them from now on; their names. Raises NotReady and SettingsError."""
        import ray

        nodes = ray.nodes()
        reached = server_url(url, nodes, ray.util.get_node_ip_address())
        for name in names(self.placing, nodes):
            self.actors[name] = self._place(name, reached)
        self._watching = threading.Thread(target=self._watch, name="looks after gateways", daemon=True)
        self._watching.start()
        return list(self.actors)

    def _place(self, name: str, url: str) -> Any:
        import ray

        actor = ray.remote(GatewayActor).options(**actor_options(name, self.placing))
        until = time.monotonic() + NAMES_S
        while True:
            try:
                return actor.remote(name, url, self._token, self.placing)
            except ValueError as taken:  # Ray's own word for a name that another actor has
                if time.monotonic() > until or self._ending.wait(1.0):
                    where = f"namespace {self.placing.namespace}"
                    raise NotReady(f"another rollout server has a gateway {name} on this cluster, {where}") from taken

    def _watch(self) -> None:
        """Say what changes: where a gateway is, and why one does not run."""
        known: dict[str, str] = {}
        while not self._ending.is_set():
            for name, actor in self.actors.items():
                now = self._state(actor)
                if now != known.get(name):
                    logger.info("gateway %s: %s", name, now)
                    known[name] = now
            self._ending.wait(LOOK_S if all(map(known.get, self.actors)) else 1.0)

    def _state(self, actor: Any) -> str:
        import ray

        try:
            health: Health = ray.get(actor.health.remote(), timeout=LOOK_S)
        except ray.exceptions.GetTimeoutError:
            return "waits for a node with room, or for one that does not answer"
        except ray.exceptions.RayError as error:
            return f"lost: {str(error).splitlines()[0]}"
        if not health["running"]:
            return f"on {health['node']}, not running: {health['trouble'] or 'it is being started'}"
        return f"on {health['node']}" if health["starts"] == 1 else f"on {health['node']}, start {health['starts']}"

    def end(self) -> None:
        """End all gateways in order, those that cannot be reached by Ray's own means."""
        import ray

        self._ending.set()
        if self._watching is not None:
            self._watching.join(LOOK_S)
        asked = [actor.stop.remote() for actor in self.actors.values()]
        if asked:
            ray.wait(asked, num_returns=len(asked), timeout=LEAVING_S)
        for actor in self.actors.values():
            with suppress(ray.exceptions.RayError):
                ray.kill(actor, no_restart=True)
        ray.shutdown()


type Ready = Callable[[str], None]


async def beside(serve: Callable[[Ready], Coroutine[Any, Any, None]], fleet: Fleet, ready: Ready) -> None:
    """Serve, with the fleet, until cancelled or over. The fleet ends first, while the server still hears of it."""
    up = asyncio.get_running_loop().create_future()
    work = asyncio.create_task(serve(up.set_result))
    try:
        await asyncio.wait({work, up}, return_when=asyncio.FIRST_COMPLETED)
        if up.done():
            ready(up.result())
            placed = await asyncio.to_thread(fleet.begin, up.result())
            logger.info("gateways: %s", ", ".join(placed))
        await asyncio.shield(work)
    finally:
        await to_the_end(asyncio.to_thread(fleet.end))
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
