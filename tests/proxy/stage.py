"""The proxy under test as a whole: a real mitmproxy in this process, a stand-in engine, open sessions, an HTTP client.

`asks` holds the requests that tests send; what an answer must be is each test's own business.
"""

import asyncio
import base64
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import aiohttp
import orjson
from mitmproxy.http import HTTPFlow
from mitmproxy.io import FlowReader

from polar_mitm.capture.reader import read_calls
from polar_mitm.capture.record import Call
from polar_mitm.capture.session import SessionFolder, SessionLog, SessionRecord, new_session_id
from polar_mitm.engine.client import Engine
from polar_mitm.engine.pool import EnginePool
from polar_mitm.prompts import Tokens
from polar_mitm.proxy.addons import core
from polar_mitm.proxy.border import Border
from polar_mitm.proxy.master import EmbeddedProxy
from polar_mitm.proxy.sessions import Session
from tests.fakes.vllm import FakeVllm, Reply
from tests.proxy.asks import Ask

TICK_S = 0.02
LIMIT_S = 20.0
"""For any one exchange, on a busy machine."""


@dataclass
class Got:
    """An answer as it came: `at` holds, for each piece of the body, the seconds since the request was sent."""

    status: int
    headers: Mapping[str, str]
    headers_at: float
    pieces: list[bytes]
    at: list[float]

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def ok(self) -> bool:
        return self.status == 200

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


@dataclass
class Stage:
    fake: FakeVllm
    pool: EnginePool
    border: Border
    proxy: EmbeddedProxy
    out: Path
    http: aiohttp.ClientSession
    tokens: Tokens = "chat"
    """How the sessions' prompts go to the engine."""
    sessions: list[Session] = field(default_factory=list)
    late_s: float = 0.0
    """How late this event loop, which the proxy shares, has run in all: what a busy machine takes from every limit."""

    async def measure(self) -> None:
        """Keep `late_s`, for as long as it is not cancelled."""
        while True:
            asked = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            self.late_s += time.monotonic() - asked

    @property
    def engine(self) -> Engine:
        """The only one."""
        return self.pool.members[0].engine

    @property
    def session(self) -> Session:
        return self.sessions[0]

    def open_session(self, **fields: Any) -> Session:
        folder = SessionFolder.create(self.out, new_session_id())
        log = SessionLog(folder, SessionRecord(session_id=folder.path.name, started_at=time.time()), durability="none")
        seat = self.pool.seat(folder.path.name)
        session = Session(**{"id": folder.path.name, "log": log, "engine": seat, "tokens": self.tokens, **fields})
        self.border.sessions.add(session)
        self.sessions.append(session)
        return session

    def calls(self, session: Session | None = None) -> list[Call]:
        return list(read_calls((session or self.session).log.folder.calls))

    def flows(self, session: Session | None = None) -> list[HTTPFlow]:
        path = (session or self.session).log.folder.flows
        return read_flows(path) if path.exists() else []

    def base_url(self, session: Session | None = None) -> str:
        return f"http://127.0.0.1:{self.proxy.base_url_port}/s/{(session or self.session).id}"

    def proxy_url(self, session: Session | None = None, token: str | None = None) -> str:
        session = session or self.session
        return f"http://{session.id}:{token or session.token}@127.0.0.1:{self.proxy.port}"

    @cached_property
    def trust(self) -> ssl.SSLContext:
        """One for all requests: an HTTP client reuses a tunnel only under the same."""
        return ssl.create_default_context(cafile=str(self.proxy.ca))

    async def post(self, ask: Ask, *, session: Session | None = None, key: str | None = None, **kwargs: Any) -> Got:
        """Send the request to the base-URL port, with the session's key unless another is given."""
        session = session or self.session
        sent = ask.with_key(session.token if key is None else key)
        return await self.request("POST", self.base_url(session) + sent.target, **_parts(sent, kwargs))

    async def post_through(self, ask: Ask, *, session: Session | None = None, **kwargs: Any) -> Got:
        """Send the request to the provider's own host, through the proxy port and its CA."""
        kwargs |= {"proxy": self.proxy_url(session), "ssl": self.trust}
        return await self.request("POST", f"https://{ask.host}{ask.target}", **_parts(ask, kwargs))

    async def request(
        self, method: str, url: str, *, watch: Callable[[Got], object] = lambda got: None, **kwargs: Any
    ) -> Got:
        """Send the request; `watch` sees the answer as it grows."""
        began = time.monotonic()
        async with asyncio.timeout(LIMIT_S), self.http.request(method, url, **kwargs) as response:
            got = Got(response.status, response.headers, time.monotonic() - began, [], [])
            while piece := await response.content.readany():
                got.pieces.append(piece)
                got.at.append(time.monotonic() - began)
                watch(got)
            return got


def _parts(ask: Ask, kwargs: dict[str, Any]) -> dict[str, Any]:
    kwargs.setdefault("data", orjson.dumps(ask.body))
    kwargs["headers"] = {"content-type": "application/json", **ask.headers, **kwargs.get("headers", {})}
    return kwargs


def read_flows(path: Path) -> list[HTTPFlow]:
    with path.open("rb") as file:
        return [flow for flow in FlowReader(file).stream() if isinstance(flow, HTTPFlow)]


@asynccontextmanager
async def staged(
    out: Path,
    *replies: Reply,
    grace_s: float = 10.0,
    keepalive_s: float = 10.0,
    engine_url: str | None = None,
    tokens: Tokens = "chat",
    **options: Any,
) -> AsyncIterator[Stage]:
    """A proxy with one open session, in front of an engine that gives these replies, or of a real one."""
    async with (
        FakeVllm(*replies) as fake,
        EnginePool.of([engine_url or fake.url]) as pool,
        client() as http,
    ):
        border = Border(grace_s=grace_s, keepalive_s=keepalive_s)
        async with EmbeddedProxy(core(border), **options) as proxy:
            stage = Stage(fake, pool, border, proxy, out, http, tokens)
            stage.open_session()
            measuring = asyncio.create_task(stage.measure())
            yield stage
            measuring.cancel()


def client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)


def basic(session: Session) -> str:
    """The session's proxy credentials."""
    return "Basic " + base64.b64encode(f"{session.id}:{session.token}".encode()).decode()


class Wire:
    """A bare TCP connection, for what an HTTP client would never send."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.writer.close()

    async def tunnel(self, host: str, session: Session, trust: ssl.SSLContext) -> None:
        """Go through the proxy port to this host, with TLS."""
        await self.send(f"CONNECT {host}:443 HTTP/1.1\r\nProxy-Authorization: {basic(session)}\r\n\r\n".encode())
        assert (await self.response())[0] == 200
        await self.writer.start_tls(trust, server_hostname=host)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def response(self, *, head: bool = False) -> tuple[int, dict[str, str], bytes]:
        """One HTTP response with a known length. EOFError when the connection ends first."""
        async with asyncio.timeout(LIMIT_S):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:-2])}
            length = 0 if head else int(headers.get("content-length", 0))
            return int(lines[0].split()[1]), headers, await self.reader.readexactly(length)

    async def rest(self) -> bytes:
        """Everything until the other side closes."""
        async with asyncio.timeout(LIMIT_S):
            return await self.reader.read()

    def abort(self) -> None:
        """Leave without a farewell, as a killed process does."""
        self.writer.transport.abort()


async def until(condition: Callable[[], object], *, seconds: float = LIMIT_S) -> float:
    """Wait until the condition holds; returns the seconds that took. TimeoutError when it never does."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"not so within {seconds:g} s")
        await asyncio.sleep(0.005)
    return time.monotonic() - began
