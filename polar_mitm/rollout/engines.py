"""Which engine a run uses: the one at a URL, a local one that runs already, or a local one started for the run."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from polar_mitm.engine.client import Engine
from polar_mitm.engine.local import LocalEngine, find


@asynccontextmanager
async def engine_for(
    model: str, url: str | None, *, say: Callable[[str], None], progress: Callable[[float, str], None]
) -> AsyncIterator[Engine]:
    """An opened engine. One that was started here is stopped at the end; others are left as they are.

    Raises EngineNotReady (a URL that does not answer, or an engine without token ids) and EngineFailed (a local engine that
    does not come up).
    """
    local: LocalEngine | None = None
    if url is None:
        running = find(model)
        if running is None:
            local = LocalEngine()
            running = await local.start(model, say=say, progress=progress)
        url = running.url
    engine = Engine(url)
    try:
        await engine.open()
        yield engine
    finally:
        await engine.close()
        if local:
            await local.stop()
