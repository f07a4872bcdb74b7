"""Which engine a run uses: the one at a URL, a local one that runs already, or a local one started for the run."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from polar_mitm.engine.client import Capabilities, Engine
from polar_mitm.engine.local import LocalEngine, Progress
from polar_mitm.engine.steps import Say


class NoEngine(Engine):
    """For runs that call no model: it is never opened, and a call that is made all the same fails."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:0")
        self._capabilities = Capabilities(self.url, "none", None, None, None)


@asynccontextmanager
async def engine_for(model: str | None, url: str | None, *, say: Say, progress: Progress) -> AsyncIterator[Engine]:
    """An opened engine. One that was started here is stopped at the end; others are left as they are.

    Without a model it is none: what runs calls no model, and a call that is made all the same fails.

    Raises EngineNotReady (a URL that does not answer, or an engine without token ids) and EngineFailed (a local engine
    that does not come up).
    """
    if model is None:
        yield NoEngine()
        return
    local = LocalEngine()
    try:
        engine = Engine(url or (await local.start(model, say=say, progress=progress)).url)
        try:
            await engine.open()
            yield engine
        finally:
            await engine.close()
    finally:
        await local.stop()
