"""Who is calling: the sessions that are open at this proxy, and how a request names its own.

A session's secret token is the proxy password or the API key; its id is the proxy user or the `/s/<id>/` path prefix.
Nothing of a token ever reaches a flow's metadata, a record or a log line.
"""

import asyncio
import base64
import binascii
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from itertools import count
from typing import Any

from polar_mitm.capture.session import SessionLog
from polar_mitm.engine.pool import Seat
from polar_mitm.prompts import Tokens
from polar_mitm.proxy.chains import Chains
from polar_mitm.proxy.kinds import Opening
from polar_mitm.proxy.limits import Meter
from polar_mitm.proxy.retries import Retries
from polar_mitm.proxy.scripting import Progress, Step

__all__ = ["KEY_HEADERS", "Session", "Sessions", "Step", "UnknownSession", "find_key", "same", "split_session_path"]

KEY_HEADERS = ("x-api-key", "x-goog-api-key", "api-key", "authorization")
"""Where the provider SDKs put the API key; `api-key` is Azure's."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Session:
    """One run of one harness, as the proxy knows it."""

    id: str
    log: SessionLog
    engine: Seat
    """Its place at an engine."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    identity: Mapping[str, Any] = field(default_factory=dict)
    """task_id, sample, attempt, harness and harness_version, for the call records."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters of the session; they win over what the harness asks."""
    script: tuple[Step, ...] | None = None
    """Scripted turns; after the last one, the model may only answer with text. None: the model chooses freely."""
    tokens: Tokens = "chat"
    """How its prompts go to the engine."""
    chains: Chains = field(default_factory=Chains)
    """What its model has said so far."""
    summary: str = ""
    """What the model is made to write where a harness asks for a summary, in a session with a script."""
    progress: Progress = field(default_factory=Progress)
    """How far it is in its script."""
    meter: Meter = field(default_factory=Meter)
    """What it has used of its limits."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once its harness has ended: no request of it will be sent again."""
    retries: Retries = field(default_factory=Retries)
    """Its calls, as far as a client may ask for one again. They hold the session: what holds them beside it would hold
    it for good."""
    main: Opening | None = None
    """How its first turn began, where it is one run of one harness: side requests are told by how they differ."""


class UnknownSession(Exception):
    """The request named a session, or a key, that is not open here."""


class Sessions:
    """The open sessions. With `anyone` set, a caller who names no session belongs to it and any key is accepted."""

    def __init__(self) -> None:
        self.anyone: Session | None = None
        self._by_id: dict[str, Session] = {}
        self._addresses: dict[str, Session] = {}
        self._address = count(int(IPv4Address("127.64.0.1")))

    def add(self, session: Session) -> None:
        self._by_id[session.id] = session

    def remove(self, session: Session) -> None:
        self._by_id.pop(session.id, None)
        for address in [address for address, its in self._addresses.items() if its is session]:
            del self._addresses[address]

    def address(self, session: Session) -> str:
        """A loopback address of the session's own: whoever connects from there needs no key. Never given twice."""
        address = str(IPv4Address(next(self._address)))
        self._addresses[address] = session
        return address

    def of_address(self, address: str) -> Session | None:
        """The session whose own address this is."""
        return self._addresses.get(address)

    def find(self, session_id: str | None) -> Session | None:
        """The open session of this id, the one for anyone included."""
        if self.anyone and session_id == self.anyone.id:
            return self.anyone
        return self._by_id.get(session_id or "")

    def of_proxy_credentials(self, header: str | None) -> Session:
        """The session of a `Proxy-Authorization` header. Raises UnknownSession."""
        if header is not None and (credentials := parse_basic(header)):
            user, password = credentials
            session = self._by_id.get(user)
            if session and same(session.token, password):
                return session
        if self.anyone:
            return self.anyone
        raise UnknownSession("these proxy credentials belong to no open session")

    def of_key(self, path_id: str | None, key: str | None) -> Session:
        """The session of an API key, which must be the one that the path names, when it names one."""
        if path_id is not None:
            session = self._by_id.get(path_id)
            if session and key is not None and same(session.token, key):
                return session
            if self.anyone and path_id == self.anyone.id:
                return self.anyone
            raise UnknownSession(f"no open session {path_id!r} has this API key")
        for session in self._by_id.values():
            if key is not None and same(session.token, key):
                return session
        if self.anyone:
            return self.anyone
        raise UnknownSession("this API key belongs to no open session")


def same(secret: str, given: str) -> bool:
    return hmac.compare_digest(secret.encode(), given.encode())


def parse_basic(header: str) -> tuple[str, str] | None:
    """User and password of a Basic credentials header, or None when it is none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (user, password) if colon else None


def split_session_path(path: str) -> tuple[str | None, str]:
    """`/s/<id>/v1/x` -> (id, `/v1/x`); any other path -> (None, path)."""
    if not path.startswith("/s/"):
        return None, path
    session_id, slash, rest = path[3:].partition("/")
    return session_id, slash + rest if slash else "/"


def find_key(headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
    """The API key of a request, wherever its SDK puts it."""
    for name in KEY_HEADERS:
        if value := headers.get(name):
            return value[7:].strip() if value[:7].lower() == "bearer " else value
    return query.get("key")
