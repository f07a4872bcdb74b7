"""mitmproxy embedded: a proxy port and a base-URL port in this process, in this event loop."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mitmproxy import ctx, exceptions, options
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.master import Master
from mitmproxy.tools.dump import DumpMaster
from mitmproxy.tools.web.master import WebMaster

from polar_mitm.home import home
from polar_mitm.proxy.context import keep_masters_apart

START_LIMIT_S = 60.0
"""Ports open within a second on an idle machine; this is for a very busy one."""
STOP_LIMIT_S = 5.0
"""What connections are given to end; a handler that is cancelled ends at once."""


class ProxyFailed(Exception):
    """The embedded proxy could not start; the message says why."""


class EmbeddedProxy:
    """An async context: inside it the proxy listens.

    `port` and `base_url_port` of 0 pick free ones; read them back inside. `options` are mitmproxy options, the addons'
    own included; a bad one raises ProxyFailed.
    """

    def __init__(
        self,
        addons: Sequence[object],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        base_url_port: int = 0,
        web_port: int | None = None,
        **mitmproxy_options: Any,
    ) -> None:
        self.addons = addons
        self.host = host
        self.port = port
        self.base_url_port = base_url_port
        self.web_port = web_port
        self.options = mitmproxy_options
        self.confdir = home() / "ca"
        self._master: Master | None = None
        self._run: asyncio.Task[None] | None = None

    @property
    def ca(self) -> Path:
        """The CA certificate that clients must trust, PEM."""
        return self.confdir / "mitmproxy-ca-cert.pem"

    @property
    def web_url(self) -> str:
        """mitmweb's page, its token included."""
        assert isinstance(self._master, WebMaster)
        return self._master.web_url

    async def __aenter__(self) -> Self:
        self.confdir.mkdir(parents=True, exist_ok=True, mode=0o700)
        modes = [f"regular@{self.port}", f"reverse:http://polar.invalid@{self.base_url_port}"]
        keep_masters_apart()
        opts = options.Options(confdir=str(self.confdir), listen_host=self.host, mode=modes)
        if self.web_port is None:
            self._master = DumpMaster(opts, with_termlog=False, with_dumper=False)
        else:
            self._master = WebMaster(opts, with_termlog=False)
        try:
            if self.web_port is not None:
                self._master.options.update(web_port=self.web_port, web_open_browser=False)
            # It would end this whole process on an error at start; here that becomes ProxyFailed.
            self._master.addons.remove(check := self._master.addons.get("errorcheck"))
            check.finish()
            self._master.addons.add(*self.addons)
            self._master.options.update(**self.options)
        except exceptions.OptionsError as error:
            await self._master.done()
            raise ProxyFailed(str(error)) from error
        self._run = asyncio.create_task(self._master.run(), name="mitmproxy")
        try:
            async with asyncio.timeout(START_LIMIT_S):
                self.port, self.base_url_port = await self._listening(self._master, modes)
        except TimeoutError:
            await self.stop()
            raise ProxyFailed(f"the proxy did not listen within {START_LIMIT_S:g} s") from None
        except ProxyFailed:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End calls, ports and connections. mitmproxy leaves the last two open, for it ends with its process."""
        assert self._master and self._run
        self._master.shutdown()
        await asyncio.wait([self._run])
        server: Proxyserver = self._master.addons.get("proxyserver")
        await server.servers.update([])
        await _hang_up(server)
        await self._run

    async def wait(self) -> None:
        """Until the proxy ends by itself."""
        assert self._run
        await asyncio.shield(self._run)

    async def _listening(self, master: Master, modes: Sequence[str]) -> tuple[int, ...]:
        """The ports of the modes, once they listen. mitmproxy logs why a port can't be had, and then exits."""
        assert self._run
        server: Proxyserver = master.addons.get("proxyserver")
        log = _StartErrors(master)
        logging.getLogger().addHandler(log)
        try:
            while True:
                if log.messages or self._run.done():
                    raise ProxyFailed("; ".join(log.messages) or "mitmproxy ended while starting")
                with suppress(KeyError, IndexError):
                    return tuple(server.servers[mode].listen_addrs[0][1] for mode in modes)
                await asyncio.sleep(0.02)
        finally:
            logging.getLogger().removeHandler(log)


async def _hang_up(server: Proxyserver) -> None:
    """Close the client connections, and see each one's last hooks through."""
    for connection in list(server.connections.values()):
        client = connection.transports.get(connection.client)
        if client and client.handler:
            client.handler.cancel("the proxy ends")
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_LIMIT_S):
            while server.connections:  # noqa: ASYNC110  mitmproxy tells nobody that one is gone
                await asyncio.sleep(0.01)


class FlowReader:
    """An async context: inside it mitmweb shows a file of saved flows at `web_url`; nothing else listens."""

    def __init__(self, flows: Path, web_port: int) -> None:
        self.flows = flows
        self.web_port = web_port

    @property
    def web_url(self) -> str:
        return self._master.web_url

    async def __aenter__(self) -> Self:
        keep_masters_apart()
        opts = options.Options(confdir=str(home() / "ca"), server=False)
        self._master = WebMaster(opts, with_termlog=False)
        self._master.options.update(web_port=self.web_port, web_open_browser=False, rfile=str(self.flows))
        self._run = asyncio.create_task(self._master.run(), name="mitmweb")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._master.shutdown()
        await self._run

    async def wait(self) -> None:
        await asyncio.shield(self._run)


class _StartErrors(logging.Handler):
    """The errors that one mitmproxy logs, and no one else's."""

    def __init__(self, master: Master) -> None:
        super().__init__(logging.ERROR)
        self.addFilter(logging.Filter("mitmproxy"))
        self.master = master
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(ctx, "master", None) is self.master:
            self.messages.append(record.getMessage())
