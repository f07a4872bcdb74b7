"""HTTP to one engine: JSON out, an answer in, patience with an engine that is overloaded.

Never through a proxy, never to another host. What a body asks and an answer means is not known here.
"""

import asyncio
import logging
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

import aiohttp

from polar_mitm.chat import CallError
from polar_mitm.engine.refusals import engine_error, engine_lost
from polar_mitm.json_text import dumps

logger = logging.getLogger(__name__)

_CONNECT_S: Final = 10.0
_OVERLOADED: Final = (429, 503)
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0
_LARGEST_ANSWER: Final = 512 * 2**20
"""Bytes. 100,000 sampled tokens with their log-probabilities are about 30 MB; one answer without an end would take the
memory of all sessions."""
_KEEP_ALIVE_S: Final = 4.0
"""Under the 5 s after which vLLM closes an idle connection: a request must not meet a connection being closed."""


@dataclass(slots=True, frozen=True)
class Answer:
    status: int
    json: bool
    content_type: str
    raw: bytes
    retry_after_s: float | None
    """How long the engine wants to be left alone, where it says so."""


class Transport:
    """`open` before the first request, `close` after the last."""

    def __init__(self, url: str, api_key: str | None) -> None:
        """`url` with or without a trailing `/v1`. A user and password in it are sent, and shown and written nowhere."""
        address, self._auth = _without_credentials(url)
        self.url = address.rstrip("/").removesuffix("/v1").rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Safe to call twice."""
        if self._session is not None:
            return
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            auth=self._auth,
            # Concurrency is the client's business; aiohttp's own limit would hide calls from their time limit.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    async def close(self) -> None:
        """Close all connections; requests under way fail. Safe to call twice."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str) -> Answer:
        """Raises CallError('engine') when there is no answer."""
        return await self._request("GET", path)

    async def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Raises CallError: engine when there is no answer, invalid_request when the body has no UTF-8 form."""
        try:
            data = dumps(body)
        except (TypeError, ValueError) as error:
            # What JSON can say and UTF-8 cannot: half of a surrogate pair, as cutting a string in the middle leaves it.
            raise CallError("invalid_request", f"the request cannot be written as UTF-8 JSON: {error}") from error
        return await self._request("POST", path, data)

    async def patient_post(self, path: str, body: Mapping[str, Any], deadline: float) -> Answer:
        """The answer once there is one: while the engine is overloaded it is asked again, ever more rarely.

        The refusal itself where the next try would come after the deadline, a time of the event loop.
        """
        now = asyncio.get_running_loop().time
        pause = _FIRST_PAUSE_S
        while True:
            answer = await self.post(path, body)
            if answer.status not in _OVERLOADED:
                return answer
            # Calls that were refused together must not come back together.
            wait = max(answer.retry_after_s or 0, pause) * random.uniform(1, 1.25)
            if now() + wait >= deadline:
                return answer
            if pause == _FIRST_PAUSE_S:
                logger.warning("polar: the engine at %s is overloaded (%d): calls wait", self.url, answer.status)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            await asyncio.sleep(wait)

    async def _request(self, method: str, path: str, data: bytes | None = None) -> Answer:
        if self._session is None:
            raise RuntimeError("Engine.open() has not been awaited")
        headers = {"Content-Type": "application/json"} if data is not None else {}
        try:
            # A redirect could lead off this machine, and would lose a POST's body on the way.
            async with self._session.request(
                method, self.url + path, data=data, headers=headers, allow_redirects=False
            ) as response:
                kind = response.content_type if "Content-Type" in response.headers else ""
                is_json = bool(re.search(r"[/+]json$", kind))
                pause = _seconds(response.headers.get("Retry-After"))
                return Answer(response.status, is_json, kind, await self._body(response), pause)
        except (aiohttp.ClientError, OSError) as error:
            raise engine_lost(self.url + path, "gave no answer", str(error) or type(error).__name__) from error

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        whole = bytearray()
        async for piece in response.content.iter_any():
            whole += piece
            if len(whole) > _LARGEST_ANSWER:
                raise engine_error(self.url, f"answered with more than {_LARGEST_ANSWER} bytes")
        return bytes(whole)


def _seconds(retry_after: str | None) -> float | None:
    """A Retry-After header in its form of seconds; the other, a date, no engine sends."""
    return float(retry_after) if retry_after and re.fullmatch(r"\d{1,6}(\.\d+)?", retry_after.strip()) else None


def _without_credentials(url: str) -> tuple[str, aiohttp.BasicAuth | None]:
    """The URL without its user and password, and those. A URL that can't be read is left for the request to refuse."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url, None
    if parts.username is None:
        return url, None
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return bare, aiohttp.BasicAuth(unquote(parts.username), unquote(parts.password or ""))
