"""What a gateway says to the rollout server: it registers, beats, delivers files and reports until it was answered."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import fsspec
import httpx
from pydantic import BaseModel, ValidationError

from polar_mitm.client.nodes import Heartbeat, HeartbeatReply, Registered, Registration, Report, Reported
from polar_mitm.rollout.gateway.reporting import KEPT

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0


class Displaced(Exception):
    """Another process has this gateway's name now: this one is to end."""


class Unregistered(Exception):
    """The server does not know this gateway any more."""


class Link:
    """An async context: one HTTP client, every request with the token."""

    def __init__(self, server_url: str, token: str, name: str) -> None:
        self.name = name
        self.url = server_url.rstrip("/")
        self._http = httpx.AsyncClient(
            base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=30.0, trust_env=False
        )
        self.store_url: str | None = None
        """Where files go, when the server says so; None: to the server itself."""

    async def close(self) -> None:
        await self._http.aclose()

    async def register(self, registration: Callable[[], Registration]) -> Registered:
        """Register, for as long as it takes. A refusal that will not change is raised as httpx.HTTPStatusError."""
        pause = FIRST_PAUSE_S
        while True:
            try:
                registered = await self._post("/v1/gateways", registration(), Registered)
                self.store_url = registered.store_url
                return registered
            except httpx.HTTPStatusError as error:
                if error.response.status_code < 500 and error.response.status_code != 429:
                    raise
                trouble: Exception = error
            except (httpx.HTTPError, ValidationError) as error:
                trouble = error
            logger.warning("the rollout server at %s does not answer: %s", self.url, trouble)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE_S, pause * 2)

    async def beat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Raises Unregistered, Displaced and httpx.HTTPError."""
        try:
            return await self._post(f"/v1/gateways/{self.name}/heartbeat", heartbeat, HeartbeatReply)
        except httpx.HTTPStatusError as error:
            match error.response.status_code:
                case 404:
                    raise Unregistered from error
                case 409:
                    raise Displaced from error
            raise

    async def leave(self, incarnation: str) -> None:
        """Say that this gateway stops in order; the server may be gone as well."""
        try:
            await self._http.post(f"/v1/gateways/{self.name}/leave", json={"incarnation": incarnation})
        except httpx.HTTPError as error:
            logger.warning("the rollout server was not told that this gateway stops: %s", error)

    async def deliver(self, folder: Path | None, task_id: str, report: Report) -> Reported:
        """Bring the files where they belong and report, again and again until the server has answered."""
        pause, began = FIRST_PAUSE_S, time.monotonic()
        while True:
            try:
                if folder is not None:
                    report = await self._files(folder, task_id, report)
                return await self._post(f"/v1/sessions/{report.session_id}/report", report, Reported)
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
                if status < 500 and status not in (401, 403, 404, 408, 409, 429):
                    logger.error("session %s: its report is refused: %s", report.session_id, error.response.text)
                    return Reported(outcome="unknown")
                trouble: Exception = error
            except (httpx.HTTPError, OSError, ValidationError) as error:
                trouble = error
            waited = time.monotonic() - began
            logger.warning("session %s is not delivered after %.0f s: %s", report.session_id, waited, trouble)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE_S, pause * 2)

    async def _files(self, folder: Path, task_id: str, report: Report) -> Report:
        names = [file.name for file in report.files if file.name in KEPT]
        if self.store_url is not None:
            target = f"{self.store_url.rstrip('/')}/{task_id}/{report.session_id}"
            await asyncio.to_thread(_store, folder, names, target)
            return report.model_copy(update={"files_url": target})
        for name in names:
            path = f"/v1/sessions/{report.session_id}/files/{name}"
            answer = await self._http.put(path, content=_pieces(folder / name), timeout=600.0)
            answer.raise_for_status()
        return report

    async def _post[Answer: BaseModel](self, path: str, body: BaseModel, answer: type[Answer]) -> Answer:
        response = await self._http.post(
            path, content=body.model_dump_json(), headers={"Content-Type": "application/json"}
        )
        response.raise_for_status()
        return answer.model_validate_json(response.content)


async def _pieces(path: Path):  # type: ignore[no-untyped-def]  # an async generator that httpx reads
    file = await asyncio.to_thread(path.open, "rb")
    try:
        while piece := await asyncio.to_thread(file.read, 1 << 20):
            yield piece
    finally:
        file.close()


def _store(folder: Path, names: list[str], target: str) -> None:
    filesystem, path = fsspec.core.url_to_fs(target)
    filesystem.makedirs(path, exist_ok=True)
    for name in names:
        filesystem.put_file(str(folder / name), f"{path}/{name}")
