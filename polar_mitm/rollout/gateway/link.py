"""What a gateway says to the rollout server: it registers, beats, delivers files and reports until it was answered."""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import fsspec
import orjson
from pydantic import BaseModel, ValidationError

from polar_mitm.client.nodes import Heartbeat, HeartbeatReply, Registered, Registration, Report, Reported
from polar_mitm.rollout.gateway.problems import Displaced, RegistrationRefused, Unregistered

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
ANSWER_S = 30.0
"""For one request; a file may take as long as it moves."""
PASSING = (401, 403, 404, 408, 409, 425, 429)
"""Refusals of a report that an operator can mend: a token, a path of a reverse proxy."""


class Answered(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status, self.text = status, text


class Link:
    """One HTTP client, every request with the token. `close` at the end."""

    def __init__(self, server_url: str, token: str, name: str) -> None:
        self.name = name
        self.url = server_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"}
        self._session: aiohttp.ClientSession | None = None
        self.store_url: str | None = None
        """Where files go, when the server says so; None: to the server itself."""

    async def close(self) -> None:
        if self._session:
            await self._session.close()

    async def register(self, registration: Callable[[], Registration]) -> Registered:
        """Register, for as long as it takes. Raises RegistrationRefused."""
        pauses = _Pauses()
        while True:
            try:
                registered = await self._post("/v1/gateways", registration(), Registered)
            except Answered as error:
                if error.status < 500 and error.status not in (408, 425, 429):
                    where = f"the rollout server at {self.url} refuses gateway {self.name}"
                    raise RegistrationRefused(f"{where}: {error.text}") from error
                trouble: Exception = error
            except (aiohttp.ClientError, TimeoutError, OSError, ValidationError) as error:
                trouble = error
            else:
                self.store_url = registered.store_url
                return registered
            logger.warning("the rollout server at %s does not register this gateway: %s", self.url, _short(trouble))
            await pauses.next()

    async def beat(self, heartbeat: Heartbeat, *, seconds: float) -> HeartbeatReply | None:
        """None when there was no answer in time. Raises Unregistered and Displaced."""
        try:
            return await self._post(f"/v1/gateways/{self.name}/heartbeat", heartbeat, HeartbeatReply, seconds=seconds)
        except Answered as error:
            match error.status:
                case 404:
                    raise Unregistered from error
                case 409:
                    raise Displaced(
                        f"another process has registered as gateway {self.name}: give each a --name"
                    ) from error
            trouble: Exception = error
        except (aiohttp.ClientError, TimeoutError, OSError, ValidationError) as error:
            trouble = error
        logger.warning("a heartbeat was not answered: %s", _short(trouble))
        return None

    async def leave(self, incarnation: str) -> None:
        """Say that this gateway stops in order; the server may be gone as well."""
        try:
            async with self._open().post(
                f"{self.url}/v1/gateways/{self.name}/leave", json={"incarnation": incarnation}, timeout=_within(5.0)
            ):
                pass
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            logger.warning("the rollout server was not told that this gateway stops: %s", _short(error))

    async def deliver(self, folder: Path | None, task_id: str, report: Report) -> Reported:
        """Bring the files where they belong and report, again and again until the server has answered.

        A file that the server does not take is left out of the report, which says so.
        """
        pauses, began = _Pauses(), time.monotonic()
        delivered: set[str] = set()
        while True:
            try:
                if folder is not None:
                    report = await self._files(folder, task_id, report, delivered)
                return await self._post(f"/v1/sessions/{report.session_id}/report", report, Reported)
            except Answered as error:
                if error.status < 500 and error.status not in PASSING:
                    logger.error("session %s: its report is refused, and stays here: %s", report.session_id, error)
                    return Reported(outcome="unknown")
                trouble: Exception = error
            except (aiohttp.ClientError, TimeoutError, OSError, ValidationError) as error:
                trouble = error
            waited = time.monotonic() - began
            logger.warning("session %s is not delivered after %.0f s: %s", report.session_id, waited, _short(trouble))
            await pauses.next()

    async def _files(self, folder: Path, task_id: str, report: Report, delivered: set[str]) -> Report:
        if self.store_url is not None:
            target = f"{self.store_url.rstrip('/')}/{task_id}/{report.session_id}"
            await asyncio.to_thread(_store, folder, [file.name for file in report.files], target)
            return report.model_copy(update={"files_url": target})
        kept = []
        for file in report.files:
            if file.name not in delivered and not await self._put(folder / file.name, report.session_id):
                continue
            delivered.add(file.name)
            kept.append(file)
        return report.model_copy(update={"files": kept})

    async def _put(self, path: Path, session_id: str) -> bool:
        """Whether the server took it. One that is gone, or that it says is too large or badly named, is not sent."""
        if not await asyncio.to_thread(path.is_file):
            logger.error("session %s: %s is gone", session_id, path)
            return False
        where = f"{self.url}/v1/sessions/{session_id}/files/{path.name}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_S, sock_read=120.0)
        with await asyncio.to_thread(path.open, "rb") as file:
            async with self._open().put(where, data=file, timeout=timeout, allow_redirects=False) as answer:
                if answer.status < 300:
                    return True
                text = (await answer.content.read(2000)).decode(errors="replace")
        # 404: the server does not know the session, which the report will tell.
        if answer.status in (404, 413, 422):
            logger.error("session %s: %s is not taken: %s %s", session_id, path.name, answer.status, text)
            return False
        raise Answered(answer.status, text)

    async def _post[Answer: BaseModel](
        self, path: str, body: BaseModel, answer: type[Answer], *, seconds: float = ANSWER_S
    ) -> Answer:
        async with self._open().post(
            self.url + path,
            data=body.model_dump_json().encode(),
            headers={"Content-Type": "application/json"},
            timeout=_within(seconds),
            allow_redirects=False,
        ) as response:
            content = await response.read()
            if response.status >= 300:
                raise Answered(response.status, _words(content))
        return answer.model_validate_json(content)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers, connector=aiohttp.TCPConnector(limit=64, keepalive_timeout=5)
            )
        return self._session


class _Pauses:
    """Longer and longer, and never the same for two that began at once."""

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE_S

    async def next(self) -> None:
        await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))
        self._pause = min(LONGEST_PAUSE_S, self._pause * 2)


def _short(trouble: Exception) -> str:
    return str(trouble) or type(trouble).__name__


def _within(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds)


def _words(content: bytes) -> str:
    """What an error's body says, in the form of the API or any other."""
    try:
        found: Any = orjson.loads(content)
        return str(found["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return content[:500].decode(errors="replace")


def _store(folder: Path, names: list[str], target: str) -> None:
    filesystem, path = fsspec.core.url_to_fs(target)
    filesystem.makedirs(path, exist_ok=True)
    for name in names:
        filesystem.put_file(str(folder / name), f"{path}/{name}")
