"""A gateway as a whole: proxy, pipeline, HTTP API, and the link to the rollout server."""

import asyncio
import contextlib
import logging
import secrets
from pathlib import Path

import httpx
import uvicorn

from polar_mitm import __version__
from polar_mitm.client.nodes import Assignment, EngineState, Heartbeat, Registration
from polar_mitm.engine.client import Engine
from polar_mitm.harnesses import HARNESSES
from polar_mitm.harnesses.base import HarnessMissing
from polar_mitm.proxy.addons import core
from polar_mitm.proxy.border import Border
from polar_mitm.proxy.master import EmbeddedProxy
from polar_mitm.rollout.gateway.app import make_app
from polar_mitm.rollout.gateway.link import Displaced, Link, Unregistered
from polar_mitm.rollout.gateway.opening import Opening
from polar_mitm.rollout.gateway.pipeline import Held, Pipeline
from polar_mitm.rollout.gateway.reporting import answered, left_behind, remember, report_of
from polar_mitm.rollout.gateway.settings import Settings
from polar_mitm.rollout.resume import held as folder_held
from polar_mitm.rollout.sample import Sample
from polar_mitm.sandboxes import SANDBOXES

logger = logging.getLogger(__name__)

LEAVING_S = 20.0
"""What deliveries are given when the gateway stops; what is left is sent in its next life."""


class Node:
    """`await Node(settings, engine).serve()` runs until it is cancelled, or displaced by another of its name."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self.settings = settings
        self.engine = engine
        self.incarnation = f"i{secrets.token_hex(8)}"
        self.port = settings.port
        self.pipeline = Pipeline(settings.workers, open_sample=self._open, done=self._done)
        self.link = Link(settings.server_url, settings.token, settings.name)
        self._border = Border()
        self._opening: Opening | None = None
        self._deliveries: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Raises RunBusy when another gateway has the state folder, ProxyFailed, OSError, Displaced, and
        httpx.HTTPStatusError when the server refuses the registration."""
        settings = self.settings
        sessions, assignments = settings.state / "sessions", settings.state / "assignments"
        for folder in (sessions, assignments):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        tokens, reason = self.engine.capabilities.tokens(settings.tokens)
        with folder_held(settings.state, alone=True):
            async with EmbeddedProxy(core(self._border), names=True) as proxy:
                self._opening = Opening(
                    self.engine,
                    self._border,
                    proxy,
                    sessions,
                    assignments,
                    settings.scenarios,
                    tokens,
                    reason,
                )
                async with self._listening():
                    await self._take_up(sessions)
                    try:
                        await self._beat()
                    finally:
                        await self._stop()

    @contextlib.asynccontextmanager
    async def _listening(self):  # type: ignore[no-untyped-def]  # an async context without a value
        app = make_app(self.pipeline, self.settings.token, self.incarnation)
        config = uvicorn.Config(
            app, host=self.settings.host, port=self.settings.port, log_level="warning", lifespan="off"
        )
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]  # whoever runs the node has them
        sockets = [config.bind_socket()]
        self.port = sockets[0].getsockname()[1]
        serving = asyncio.create_task(server._serve(sockets), name="gateway-http")
        try:
            while not server.started and not serving.done():  # noqa: ASYNC110  (uvicorn sets no event)
                await asyncio.sleep(0.02)
            yield
        finally:
            server.should_exit = True
            await serving

    async def _take_up(self, sessions: Path) -> None:
        """Hold what an earlier life left here, and deliver it."""
        for assignment, report in await asyncio.to_thread(lambda: list(left_behind(sessions, self.incarnation))):
            held = Held(assignment, stage="done")
            self.pipeline.hold(held)
            self._start(self._deliver(assignment, report, sessions / assignment.session_id))

    async def _open(self, assignment: Assignment) -> Sample:
        assert self._opening
        sample = await self._opening(assignment)
        await asyncio.to_thread(remember, sample.folder.path, assignment)
        return sample

    async def _done(self, held: Held) -> None:
        """The session has come to its end: what came of it is on disk, and goes to the server."""
        report = await asyncio.to_thread(report_of, held, self.incarnation)
        folder = held.sample.folder.path if held.sample else None
        self._start(self._deliver(held.assignment, report, folder))

    async def _deliver(self, assignment: Assignment, report, folder: Path | None) -> None:  # type: ignore[no-untyped-def]
        reported = await self.link.deliver(folder, assignment.task_id, report)
        logger.info("session %s: %s, %s", assignment.session_id, report.status, reported.outcome)
        if folder is not None:
            await asyncio.to_thread(answered, folder)
        (self.settings.state / "assignments" / f"{assignment.session_id}.yaml").unlink(missing_ok=True)
        self.pipeline.forget(assignment.session_id)

    def _start(self, work) -> None:  # type: ignore[no-untyped-def]  # a coroutine
        task = asyncio.create_task(work)
        self._deliveries.add(task)
        task.add_done_callback(self._deliveries.discard)

    async def _beat(self) -> None:
        """Register, then beat for ever. Raises Displaced."""
        while True:
            registered = await self.link.register(self._registration)
            self._obey(registered.cancel, registered.drain)
            with contextlib.suppress(Unregistered):
                while True:
                    await asyncio.sleep(registered.heartbeat_s)
                    try:
                        reply = await self.link.beat(self._heartbeat())
                    except Displaced:
                        logger.error("another process has the name %s now: this gateway stops", self.settings.name)
                        raise
                    except httpx.HTTPError as error:
                        logger.warning("no heartbeat: %s", error)
                        continue
                    self._obey(reply.cancel, reply.drain)

    def _obey(self, cancel: list[str], drain: bool) -> None:
        self.pipeline.draining = drain
        for session_id in cancel:
            self.pipeline.cancel(session_id)

    def _registration(self) -> Registration:
        settings = self.settings
        return Registration(
            name=settings.name,
            incarnation=self.incarnation,
            url=settings.url or f"http://{settings.host}:{self.port}",
            capacity=settings.workers.capacity,
            harnesses=_installed(),
            sandboxes=[name for name, sandbox in SANDBOXES.items() if not sandbox.check()],
            scenarios=_scenarios(settings.scenarios),
            policy_version=None,
            version=__version__,
            sessions=self.pipeline.stages,
            labels=settings.labels,
        )

    def _heartbeat(self) -> Heartbeat:
        capabilities = self.engine.capabilities
        stages = self.pipeline.stages
        return Heartbeat(
            incarnation=self.incarnation,
            state="draining" if self.pipeline.draining else "ready",
            capacity=self.settings.workers.capacity,
            policy_version=None,
            sessions=stages,
            engines=[EngineState(url=capabilities.url, healthy=True, model=capabilities.model)],
        )

    async def _stop(self) -> None:
        """End what runs, deliver what can be delivered soon, and leave."""
        await self.pipeline.close()
        if self._deliveries:
            await asyncio.wait(self._deliveries, timeout=LEAVING_S)
        for task in list(self._deliveries):
            task.cancel()
        await self.link.leave(self.incarnation)
        await self.link.close()


def _installed() -> list[str]:
    names = []
    for name, harness in HARNESSES.items():
        with contextlib.suppress(HarnessMissing):
            harness.find()
            names.append(name)
    return names


def _scenarios(folder: Path | None) -> list[str]:
    from polar_mitm.tasks.reading import bundled

    own = bundled("hello").parent
    return sorted({path.stem for place in (own, folder) if place for path in place.glob("*.yaml")})
