"""The addon that makes a bare mitmproxy a polar: options for the engine and the output, and one session for anyone."""

import asyncio
import logging
import sys
import time
from pathlib import Path

from mitmproxy import ctx, exceptions
from mitmproxy.addonmanager import Loader

from polar_mitm.capture.session import SessionEngine, SessionFolder, SessionLog, SessionRecord, new_session_id
from polar_mitm.engine.client import EngineNotReady
from polar_mitm.engine.pool import EnginePool
from polar_mitm.proxy.border import Border
from polar_mitm.proxy.sessions import Session

logger = logging.getLogger(__name__)

NOT_READY = 3
"""Exit code when the environment is not ready."""


class Standalone:
    """Every option is a string: mitmproxy drops a script whose option has the wrong type, and goes on without it."""

    name = "polar-standalone"

    def __init__(self, border: Border) -> None:
        self.border = border
        self.engine: EnginePool | None = None
        self._closing: asyncio.Task[None] | None = None

    def load(self, loader: Loader) -> None:
        loader.add_option(
            "polar_engine_url",
            str,
            "http://127.0.0.1:8000",
            "vLLM's OpenAI server, without /v1; several by commas.",
        )
        loader.add_option("polar_engine_key", str, "", "API key of the engine, when it wants one.")
        loader.add_option("polar_model", str, "", "Served model name; the engine's first one when empty.")
        loader.add_option("polar_out", str, "runs", "Folder in which the session's folder is made.")
        loader.add_option("polar_grace", str, "10", "Seconds that a streamed request waits before its headers go out.")
        loader.add_option(
            "polar_session_mb", str, "2000", "How large, in MB, calls.jsonl and flows.mitm may each grow."
        )
        loader.add_option("polar_keepalive", str, "10", "Longest silence of an open stream, in seconds.")
        loader.add_option(
            "polar_tokens", str, "", "How prompts go to the engine: exact (token ids), chat, or as it can when empty."
        )
        try:
            ctx.options.process_deferred()
        except exceptions.OptionsError as error:
            # Out of here it would leave mitmproxy running without this script and without a word; an error that is
            # logged ends a mitmproxy that starts.
            logger.error("polar: %s", error)
            for name in [name for name in ctx.options.deferred if name.startswith("polar_")]:
                del ctx.options.deferred[name]

    def configure(self, updated: set[str]) -> None:
        if "polar_grace" in updated:
            self.border.grace_s = _number("polar_grace", ctx.options.polar_grace, least=0)
        if "polar_keepalive" in updated:
            self.border.keepalive_s = _number("polar_keepalive", ctx.options.polar_keepalive, least=0.1)
        if "polar_session_mb" in updated:
            megabytes = _number("polar_session_mb", ctx.options.polar_session_mb, least=1, unit="megabytes")
            self.border.session_bytes = int(megabytes * 10**6)
        if "polar_tokens" in updated and ctx.options.polar_tokens not in ("", "exact", "chat"):
            raise exceptions.OptionsError(f"polar_tokens: {ctx.options.polar_tokens!r} is neither exact nor chat")
        if "polar_engine_url" in updated:
            for url in _urls(ctx.options.polar_engine_url):
                if not url.startswith(("http://", "https://")):
                    raise exceptions.OptionsError(f"polar_engine_url: {url!r} is no http(s) URL")

    def running(self) -> None:
        # Sync, since a reloaded script's hooks are called so.
        if unknown := sorted(name for name in ctx.options.deferred if name.startswith("polar_")):
            logger.error("polar: unknown option %s", ", ".join(unknown))
            _leave(NOT_READY)
        self.border.opening = asyncio.get_running_loop().create_task(self._open())

    def done(self) -> None:
        if self.border.opening:
            self.border.opening.cancel()
        if session := self.border.sessions.anyone:
            session.log.close("completed")
            self.border.sessions.anyone = None
        if self.engine:
            self._closing = asyncio.get_running_loop().create_task(self.engine.close())

    async def _open(self) -> None:
        options = ctx.options
        self.engine = EnginePool.of(
            _urls(options.polar_engine_url),
            model=options.polar_model or None,
            api_key=options.polar_engine_key or None,
        )
        try:
            capabilities = await self.engine.open()
            tokens, reason = capabilities.tokens(options.polar_tokens or None)
            folder = SessionFolder.create(Path(options.polar_out), new_session_id())
        except (EngineNotReady, OSError) as error:
            logger.error("polar: %s", error)
            _leave(NOT_READY)
            return
        record = SessionRecord(
            session_id=folder.path.name,
            started_at=time.time(),
            engine=SessionEngine(
                url=capabilities.url, model=capabilities.model, engine_version=capabilities.engine_version
            ),
            tokens=tokens,
            tokens_reason=reason,
        )
        self.border.sessions.anyone = Session(
            id=record.session_id,
            log=SessionLog(folder, record),
            engine=self.engine.seat(record.session_id, shared=True),
            tokens=tokens,
        )
        engines = ", ".join(member.url for member in self.engine.members)
        logger.info("polar: %s on %s; calls go to %s", capabilities.model, engines, folder.calls)
        if reason:
            logger.info("polar: prompts go as messages, not as token ids: %s", reason)


def _urls(option: str) -> list[str]:
    return [url.strip() for url in option.split(",")]


def _number(name: str, text: str, *, least: float, unit: str = "seconds") -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not least <= number < float("inf"):
        raise exceptions.OptionsError(f"{name}: {text!r} is not a number of {unit} of at least {least:g}")
    return number


def _leave(code: int) -> None:
    """End the process from inside its event loop, which unwinds through mitmproxy's own shutdown."""
    asyncio.get_running_loop().call_soon(sys.exit, code)
