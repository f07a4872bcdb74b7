"""A loopback HTTP server inside the proxy's event loop, through which mitmproxy streams answers that take long.

mitmproxy can't send bytes before a hook returns, so a call that outlives its grace is diverted here: headers go out at
once, keep-alives follow while the engine works, then the answer. A request needs a ticket, which is good for one use.
"""

import asyncio
import secrets
from dataclasses import dataclass
from weakref import WeakValueDictionary

from aiohttp import web
from mitmproxy.http import HTTPFlow

from polar_mitm.proxy.border import Border
from polar_mitm.proxy.exchange import Answer, Exchange

TICKET_HEADER = "x-polar-ticket"
MAX_HEADER = 2**20
"""Bytes. mitmproxy has taken the request already; aiohttp's own limit of 8190 would fail a call for long headers."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Waiting:
    """A call on its way, and the flow that waits for it."""

    flow: HTTPFlow
    exchange: Exchange
    task: asyncio.Task[Answer]
    scheme: str | None = None
    """The scheme that the client used, once the call is diverted to the loopback; mitmproxy reaches that by http."""
    passed: int = 0
    """Bytes handed over to the client, keep-alives included."""
    keepalives: int = 0
    """Bytes of keep-alives written, which come before the answer."""
    left: bool = False
    """Whether the client is gone."""

    def leave(self, *, for_good: bool = False) -> None:
        """The client is gone: its wait ends. Several hooks tell of it. `for_good`: no other is waited for either."""
        if for_good and self.exchange.shared:
            self.exchange.shared.linger_s = 0.0
        if for_good or not self.left:
            self.left = True
            self.task.cancel()

    @property
    def sent(self) -> int:
        """Bytes of the answer handed over."""
        return max(0, self.passed - self.keepalives)

    def passing(self, chunk: bytes) -> bytes:
        """Counts a streamed chunk on its way to the client."""
        self.passed += len(chunk)
        return chunk


class Loopback:
    def __init__(self, border: Border) -> None:
        self.border = border
        self._tickets: WeakValueDictionary[str, Waiting] = WeakValueDictionary()
        """A call whose client leaves before mitmproxy has brought it here is forgotten with its ticket."""
        self._runner: web.AppRunner | None = None
        self._starting = asyncio.Lock()
        self._address: tuple[str, int] | None = None

    async def admit(self, waiting: Waiting) -> tuple[str, tuple[str, int]]:
        """A ticket for this call, and the address to bring it to. Starts the server when it is the first."""
        async with self._starting:
            if self._address is None:
                self._address = await self._start()
        ticket = secrets.token_urlsafe(24)
        self._tickets[ticket] = waiting
        return ticket, self._address

    async def close(self) -> None:
        if self._runner:
            await self._runner.cleanup()

    async def _start(self) -> tuple[str, int]:
        app = web.Application(client_max_size=0)
        app.router.add_route("*", "/{path:.*}", self._serve)
        # Without handler_cancellation a client that left would not cancel the handler, nor that the engine.
        # The body was read before the call came here: decompressing it again would only find new ways to fail.
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            max_line_size=MAX_HEADER,
            max_field_size=MAX_HEADER,
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        return host, port

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        waiting = self._tickets.pop(request.headers.get(TICKET_HEADER, ""), None)
        if waiting is None:
            return web.Response(status=403, text="polar: no ticket")
        await request.read()
        exchange = waiting.exchange
        response = web.StreamResponse(headers={"content-type": exchange.provider.stream_type(exchange.ask)})
        # mitmproxy dials anew for every call, and keeps to five connections for one client: an idle one is in the way.
        response.force_close()
        try:
            await response.prepare(request)
            done, nth = False, 0
            while not done:
                keepalive = exchange.provider.keepalive(exchange.ask, exchange.begun, nth)
                nth += 1
                waiting.keepalives += len(keepalive)
                await response.write(keepalive)
                done = bool((await asyncio.wait([waiting.task], timeout=self.border.keepalive_s))[0])
            answer = waiting.task.result()
            if exchange.call.error:
                exchange.call.error.status = None
            await response.write(answer.late(nth))
            await response.write_eof()
        finally:
            waiting.leave()
        return response
