"""What the addons of one proxy share: the open sessions, the waiting times, and the sockets that may be dialled."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from mitmproxy.connection import Client
from mitmproxy.http import HTTPFlow

from polar_mitm.capture.record import Call
from polar_mitm.proxy.lines import log_call
from polar_mitm.proxy.sessions import Session, Sessions

type Address = tuple[str, int]


@dataclass(slots=True)
class Border:
    sessions: Sessions = field(default_factory=Sessions)
    grace_s: float = 10.0
    """How long a streamed request waits silently: within it, a failure still gets its true status."""
    keepalive_s: float = 10.0
    """Longest silence of a stream whose headers are out."""
    session_bytes: int = 2 * 10**9
    """How large each of a session's two files may grow: past it no flow is kept, and no call is served."""
    on_call: Callable[[Call, str], None] = log_call
    """Told of each call once it is recorded, with the model that the client asked for."""
    opening: asyncio.Task[None] | None = None
    """Opens the session that calls belong to, where the proxy opens one itself; calls that come earlier wait for it."""
    by_flow: WeakKeyDictionary[HTTPFlow, Session | None] = field(default_factory=WeakKeyDictionary)
    """Who sent each request; None: nobody that is known here."""
    diverted: WeakKeyDictionary[Client, tuple[Address, Address]] = field(default_factory=WeakKeyDictionary)
    """Per client connection: the provider address its waiting call names, and the loopback address dialled instead."""

    async def opened(self) -> None:
        """Until the proxy's own session is open, or could not be opened."""
        if self.opening:
            await asyncio.wait([self.opening])
