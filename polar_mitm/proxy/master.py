"""mitmproxy embedded: a proxy port and a base-URL port in this process, in this event loop."""

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mitmproxy import ctx, exceptions, options
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.master import Master
from mitmproxy.tools.dump import DumpMaster
from mitmproxy.tools.web.master import WebMaster
from mitmproxy_rs.udp import UdpServer
from tornado.ioloop import IOLoop
from tornado.platform.asyncio import BaseAsyncIOLoop

from polar_mitm.errors import NotReady
from polar_mitm.home import home
from polar_mitm.proxy.authority import make_authority
from polar_mitm.proxy.context import keep_masters_apart
from polar_mitm.proxy.look import Look
from polar_mitm.proxy.standalone import Standalone

START_LIMIT_S = 60.0
"""Ports open within a second on an idle machine; this is for a very busy one."""
WEB: dict[str, Any] = {
    "web_open_browser": False,
    # With mitmweb's own columns the comment, where polar says what a call was, is not shown.
    "web_columns": ["icon", "path", "comment", "status", "size", "time"],
}
STOP_LIMIT_S = 5.0
"""What connections are given to end; a handler that is cancelled ends at once."""


class ProxyFailed(NotReady):
    """The embedded proxy could not start; the message says why."""


class _Running:
    """An addon that tells when mitmproxy serves: its ports listen, mitmweb's page too."""

    name = "polar-running"

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def running(self) -> None:
        self.event.set()


class _Embedded:
    """A mitmproxy that runs in this event loop until it is stopped."""

    _master: Master | None = None
    _run: asyncio.Task[None] | None = None
    _context: Context

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End calls, ports and connections. mitmproxy leaves the last two open, for it ends with its process."""
        assert self._master and self._run
        # Whoever stops it may be another task than the one that started it, to which this mitmproxy is unknown.
        await asyncio.create_task(_end(self._master, self._run), context=self._context)

    async def wait(self) -> None:
        """Until the proxy ends by itself. Raises what it ended with."""
        assert self._run
        await asyncio.shield(self._run)

    async def _start(self, master: Master) -> None:
        """Run it until it serves. Raises ProxyFailed, with what mitmproxy logged or raised."""
        self._master, self._context = master, copy_context()
        # It would end this whole process on an error at start; here that becomes ProxyFailed.
        master.addons.remove(check := master.addons.get("errorcheck"))
        check.finish()
        master.addons.add(running := _Running())
        log = _StartErrors(master)
        logging.getLogger().addHandler(log)
        self._run = asyncio.create_task(master.run(), name="mitmproxy")
        runs = asyncio.create_task(running.event.wait())
        try:
            await asyncio.wait([self._run, runs], timeout=START_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            runs.cancel()
            logging.getLogger().removeHandler(log)
        if log.messages or not running.event.is_set():
            await self.stop()
            raise ProxyFailed("; ".join(log.messages) or _why_ended(self._run))


class EmbeddedProxy(_Embedded):
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
        names: bool = False,
        **mitmproxy_options: Any,
    ) -> None:
        self.addons = addons
        self.host = host
        self.port = port
        self.base_url_port = base_url_port
        self.web_port = web_port
        self.names = names
        self.names_port = 0
        """Takes TLS for any name, from clients that believe to talk to that host; 0 without `names`."""
        self.options = mitmproxy_options
        self.confdir = home() / "ca"

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
        try:
            make_authority(self.confdir)
        except OSError as error:
            raise ProxyFailed(f"the certificate authority in {self.confdir} cannot be made: {error}") from error
        modes = [f"regular@{self.port}", f"reverse:http://polar.invalid@{self.base_url_port}"]
        if self.names:
            modes.append("reverse:https://polar.invalid@0")
        master = self._make(options.Options(confdir=str(self.confdir), listen_host=self.host, mode=modes))
        try:
            if self.web_port is not None:
                master.options.update(web_port=self.web_port, **WEB)
            master.addons.add(*self.addons)
            master.options.update(**self.options)
        except (exceptions.OptionsError, TypeError, KeyError) as error:  # a bad value, a bad type, an unknown name
            master.addons.get("errorcheck").finish()
            await master.done()
            raise ProxyFailed(str(error)) from error
        await self._start(master)
        server: Proxyserver = master.addons.get("proxyserver")
        ports = [server.servers[mode].listen_addrs[0][1] for mode in modes]
        self.port, self.base_url_port = ports[:2]
        self.names_port = ports[2] if self.names else 0
        try:
            for addon in self.addons:
                if isinstance(addon, Standalone):  # whose session is open only once its engine has answered
                    await addon.border.opened()
        except asyncio.CancelledError:
            await self.stop()
            raise
        return self

    def _make(self, opts: options.Options) -> Master:
        keep_masters_apart()
        if self.web_port is None:
            return DumpMaster(opts, with_termlog=False, with_dumper=False)
        return WebMaster(opts, with_termlog=False)


class FlowReader(_Embedded):
    """An async context: inside it mitmweb shows a file of saved flows at `web_url`; nothing else listens."""

    def __init__(self, flows: Path, web_port: int) -> None:
        self.flows = flows
        self.web_port = web_port

    @property
    def web_url(self) -> str:
        assert isinstance(self._master, WebMaster)
        return self._master.web_url

    async def __aenter__(self) -> Self:
        keep_masters_apart()
        master = WebMaster(options.Options(confdir=str(home() / "ca"), server=False), with_termlog=False)
        master.addons.add(Look())
        master.options.update(web_port=self.web_port, rfile=str(self.flows), **WEB)
        await self._start(master)
        return self


async def _end(master: Master, run: asyncio.Task[None]) -> None:
    master.shutdown()
    await asyncio.wait([run])
    server: Proxyserver = master.addons.get("proxyserver")
    datagrams = _datagram_servers(server)
    await server.servers.update([])
    for one in datagrams:
        await one.wait_closed()
    await _hang_up(server)
    if isinstance(master, WebMaster):
        _close_page(master)


def _datagram_servers(server: Proxyserver) -> list[UdpServer]:
    """The servers of HTTP/3, which run in threads of their own. mitmproxy closes them and does not wait, and a thread
    that asks for the interpreter while it ends takes the process with it."""
    listening = [one for instance in server.servers for one in getattr(instance, "_servers", ())]
    return [one for one in listening if isinstance(one, UdpServer)]


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


def _close_page(master: WebMaster) -> None:
    """Close mitmweb's port, whose server mitmproxy keeps no hold of."""
    loop = IOLoop.current()
    assert isinstance(loop, BaseAsyncIOLoop)
    for number, (listener, _) in list(loop.handlers.items()):
        if isinstance(listener, socket.socket) and listener.getsockname()[1] == master.options.web_port:
            loop.remove_handler(number)
            listener.close()


def _why_ended(run: asyncio.Task[None]) -> str:
    error = None if run.cancelled() else run.exception()
    return str(error) if error else f"the proxy did not listen within {START_LIMIT_S:g} s"


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
