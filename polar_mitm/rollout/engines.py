"""Which engines a run uses: those at URLs, a local one that runs already, or a local one started for the run."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from polar_mitm.engine.client import Capabilities, Engine
from polar_mitm.engine.local import LocalEngine, Progress
from polar_mitm.engine.pool import EnginePool
from polar_mitm.engine.steps import Say


class NoEngine(Engine):
    """For runs that call no model: nothing is asked of it, and a call that is made all the same fails."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:0")
        self._capabilities = Capabilities(self.url, "none", None, None, None)

    async def open(self, model: str | None = None) -> Capabilities:
        self.connect()
        return self.capabilities


@asynccontextmanager
async def engine_for(
    model: str | None, urls: Sequence[str], *, say: Say, progress: Progress
) -> AsyncIterator[EnginePool]:
    """Opened engines. One that was started here is stopped at the end; others are left as they are.

    Without a model it is none: what runs calls no model, and a call that is made all the same fails.

    Raises EngineNotReady (URLs that do not answer, or an engine without token ids) and EngineFailed (a local engine
    that does not come up).
    """
    if model is None:
        async with EnginePool([NoEngine()]) as none:
            yield none
        return
    local = LocalEngine()
    try:
        async with EnginePool.of(urls or [(await local.start(model, say=say, progress=progress)).url]) as engines:
            yield engines
    finally:
        await local.stop()
