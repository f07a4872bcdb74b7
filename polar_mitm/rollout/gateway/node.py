"""A gateway as a whole: proxy, pipeline, HTTP API, and the link to the rollout server."""

import asyncio
import contextlib
import logging
import secrets
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from polar_mitm import __version__
from polar_mitm.client.nodes import Assignment, Heartbeat, Registered, Registration, Report
from polar_mitm.engine.pool import EnginePool
from polar_mitm.harnesses import HARNESSES
from polar_mitm.harnesses.base import HarnessMissing
from polar_mitm.proxy.addons import core
from polar_mitm.proxy.border import Border
from polar_mitm.proxy.master import EmbeddedProxy
from polar_mitm.rollout.gateway.app import make_app
from polar_mitm.rollout.gateway.fitness import Fitness
from polar_mitm.rollout.gateway.link import Link
from polar_mitm.rollout.gateway.listening import address, bind, listening
from polar_mitm.rollout.gateway.opening import Make, Opening
from polar_mitm.rollout.gateway.pipeline import Held, Pipeline
from polar_mitm.rollout.gateway.problems import Unregistered, passing
from polar_mitm.rollout.gateway.reporting import answered, assignments_left, bare, remember, report_left, report_of
from polar_mitm.rollout.gateway.settings import Settings
from polar_mitm.rollout.resume import held as folder_held
from polar_mitm.rollout.sample import Sample
from polar_mitm.rollout.server.settings import SettingsError
from polar_mitm.sandboxes import SANDBOXES
from polar_mitm.sandboxes.base import to_the_end
from polar_mitm.tasks.reading import bundled

logger = logging.getLogger(__name__)

OUTCOMES = {
    "counts": "the result of its sample",
    "again": "its sample is begun again",
    "late": "kept beside the result that its sample has",
    "duplicate": "reported before",
    "unknown": "the server does not have it, and its folder stays",
}
"""What the server makes of a report, in words."""

LEAVING_S = 20.0
"""What deliveries are given when the gateway stops; what is left is sent in its next life."""
DELIVERIES = 16
"""At once."""
SETTLE_S = 1.0
"""After a harness was ended from outside: the calls that this cut off are recorded meanwhile."""
ROOM_S = 5.0
"""After which a report is tried again that there was no room for."""


class Node:
    """`await Node(settings, engine).serve()` runs until it is cancelled, or displaced by another of its name."""

    def __init__(self, settings: Settings, engine: EnginePool, *, make: Make = Sample) -> None:
        self.settings = settings
        self.engine = engine
        self.incarnation = f"i{secrets.token_hex(8)}"
        self.url = ""
        self.pipeline = Pipeline(settings.workers, open_sample=self._open, done=self._done)
        self.link = Link(settings.server_url, settings.token, settings.name)
        self.fitness = Fitness(engine, settings.state)
        self._make = make
        self._opening: Opening | None = None
        self._deliveries: set[asyncio.Task[None]] = set()
        self._building = asyncio.Semaphore(settings.workers.grading)
        self._delivering = asyncio.Semaphore(DELIVERIES)
        self._kinds: tuple[list[str], list[str], list[str]] = ([], [], [])

    @property
    def sessions(self) -> Path:
        return self.settings.state / "sessions"

    @property
    def assignments(self) -> Path:
        return self.settings.state / "assignments"

    async def serve(self, ready: Callable[[str], None] = lambda url: None) -> None:
        """`ready` is told the address. Raises RunBusy when another gateway has the state folder, SettingsError,
        ProxyFailed, OSError, Displaced and RegistrationRefused."""
        settings = self.settings
        for folder in (self.sessions, self.assignments):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        tokens, reason = self.engine.capabilities.tokens(settings.tokens)
        with folder_held(settings.state, alone=True, gateway=True), bind(settings.host, settings.port) as bound:
            self.url = settings.url or address(bound, settings.host)
            self._kinds = await asyncio.to_thread(_kinds, settings.scenarios)
            await self.fitness.look()
            border = Border()
            async with EmbeddedProxy(core(border), names=True) as proxy:
                self._opening = Opening(
                    self.engine,
                    border,
                    proxy,
                    self.sessions,
                    self.assignments,
                    settings.scenarios,
                    tokens,
                    reason,
                    self._make,
                )
                await self._take_up()
                async with listening(make_app(self.pipeline, self.engine, settings.token, self.incarnation), bound):
                    try:
                        ready(self.url)
                        await self._beat()
                    finally:
                        await to_the_end(self._stop())

    async def _take_up(self) -> None:
        """Hold what an earlier life left here, and deliver it. Nothing else of that life matters any more."""
        for path in self.assignments.iterdir():
            path.unlink()
        for path, assignment in await asyncio.to_thread(lambda: list(assignments_left(self.sessions))):
            self.pipeline.hold(Held(assignment, stage="done"))
            report = lambda path=path, assignment=assignment: report_left(path, assignment, self.incarnation)  # noqa: E731
            self._start(self._deliver(assignment, report, path))

    async def _open(self, assignment: Assignment) -> Sample:
        assert self._opening
        sample = await self._opening(assignment)
        try:
            remember(sample.folder.path, assignment)  # no await since it was made: nothing can come between
        except OSError as error:
            await to_the_end(sample.failed(error))
            shutil.rmtree(sample.folder.path, ignore_errors=True)  # nothing has happened in it
            raise
        return sample

    def _done(self, held: Held) -> None:
        """The session has come to its end: what came of it is written down, and goes to the server."""

        def report() -> Report:
            try:
                return report_of(held, self.incarnation)
            except Exception as error:  # a report that cannot be made would hold the session for ever
                if passing(error):
                    raise
                logger.exception("session %s cannot be reported as it is", held.assignment.session_id)
                return bare(held, self.incarnation, f"polar failed: what came of it cannot be read: {error!r}")

        sample = held.sample
        settle = SETTLE_S if sample and sample.log.session.status in ("timeout", "cancelled", "error") else 0
        self._start(self._deliver(held.assignment, report, sample.folder.path if sample else None, settle))

    async def _deliver(
        self, assignment: Assignment, make: Callable[[], Report | None], folder: Path | None, settle: float = 0
    ) -> None:
        session_id = assignment.session_id
        await asyncio.sleep(settle)
        async with self._building:
            report = await self._written(make, session_id)
        if report is not None:
            async with self._delivering:
                reported = await self.link.deliver(folder, assignment.task_id, report)
            logger.info("session %s: %s, %s", session_id, report.status, OUTCOMES[reported.outcome])
            if folder is not None:
                keep = self.settings.keep or reported.outcome == "unknown"
                try:
                    await asyncio.to_thread(answered, folder, keep=keep)
                except OSError as error:
                    logger.warning("session %s: its folder stays: %s", session_id, error)
        (self.assignments / f"{session_id}.yaml").unlink(missing_ok=True)
        self.pipeline.forget(session_id)

    async def _written(self, make: Callable[[], Report | None], session_id: str) -> Report | None:
        """Wait for room, where there is none: a report that is not on disk would be lost with this process."""
        while True:
            try:
                return await asyncio.to_thread(make)
            except OSError as error:
                logger.warning("session %s cannot be reported yet: %s", session_id, error)
                await asyncio.sleep(ROOM_S)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._deliveries.add(task)
        task.add_done_callback(self._deliveries.discard)

    async def _beat(self) -> None:
        """Register, then beat for ever. Raises Displaced and RegistrationRefused."""
        while True:
            registered = await self.link.register(self._registration)
            self._obey(registered.cancel, registered.drain)
            with contextlib.suppress(Unregistered):
                await self._beats(registered)

    async def _beats(self, registered: Registered) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + registered.heartbeat_s, loop.time())
            await self.fitness.look()
            self.pipeline.unfit = self.fitness.trouble
            await asyncio.sleep(due - loop.time())
            reply = await self.link.beat(self._heartbeat(), seconds=max(1.0, registered.heartbeat_s))
            if reply is not None:
                self._obey(reply.cancel, reply.drain)

    def _obey(self, cancel: list[str], drain: bool) -> None:
        self.pipeline.draining = drain
        for session_id in cancel:
            self.pipeline.cancel(session_id)

    def _registration(self) -> Registration:
        settings = self.settings
        installed, sandboxes, scenarios = self._kinds
        return Registration(
            name=settings.name,
            incarnation=self.incarnation,
            url=self.url,
            capacity=settings.workers.capacity,
            harnesses=installed,
            sandboxes=sandboxes,
            scenarios=scenarios,
            policy_version=self.engine.policy.version,
            version=__version__,
            sessions=self.pipeline.stages,
            labels=settings.labels,
        )

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            incarnation=self.incarnation,
            state="draining" if self.pipeline.draining or self.pipeline.unfit else "ready",
            capacity=self.settings.workers.capacity,
            policy=self.engine.policy.state(),
            policy_version=self.engine.policy.version,
            sessions=self.pipeline.stages,
        )

    async def _stop(self) -> None:
        """End what runs, deliver what can be delivered soon, and leave."""
        await self.pipeline.close()
        await asyncio.sleep(0)  # the last sessions' ends have been told
        if self._deliveries:
            await asyncio.wait(self._deliveries, timeout=LEAVING_S)
        left = list(self._deliveries)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self.link.leave(self.incarnation)
        await self.link.close()


def pool_of(settings: Settings) -> EnginePool:
    """The gateway's engines, with what an earlier life knows of their weights. Raises SettingsError."""
    kept = settings.state / "policy.json"
    try:
        settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        return EnginePool.of(settings.engine_urls, policy_version=settings.policy_version, kept=kept)
    except (OSError, ValueError, KeyError, TypeError) as error:
        mend = "its weights are not known: remove the file once they are those of --policy-version"
        raise SettingsError(f"{kept} cannot be read ({error}); {mend}") from error


def _kinds(folder: Path | None) -> tuple[list[str], list[str], list[str]]:
    """What can be run here: harnesses, sandboxes, scenarios."""
    harnesses = []
    for name, harness in HARNESSES.items():
        with contextlib.suppress(HarnessMissing):
            harness.find()
            harnesses.append(name)
    sandboxes = [name for name, sandbox in SANDBOXES.items() if not sandbox.check()]
    own = bundled("hello").parent
    scenarios = sorted({path.stem for place in (own, folder) if place for path in place.glob("*.yaml")})
    return harnesses, sandboxes, scenarios
