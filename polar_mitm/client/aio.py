"""The asynchronous client of a rollout server.

async with AsyncRolloutClient(url, token) as rollout:
    task = await rollout.submit(TaskRequest(scenario="hello", num_samples=8))
    async for line in rollout.stream_results(task.task_id): ...
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Self

import httpx
from pydantic import BaseModel

from polar_mitm.client import requests
from polar_mitm.client.models import ENDED, Event, Overview, Page, ResultLine, Results, Session, Task, TaskRequest
from polar_mitm.client.nodes import Gateway
from polar_mitm.client.policy import FleetPolicy, PauseMode
from polar_mitm.client.requests import Ask, StreamCut, Unreachable

POLICY_POLL_S = 0.2


class AsyncRolloutClient:
    """Safe to share between tasks of one event loop. Methods raise ApiError (a refusal) and Unreachable."""

    def __init__(self, url: str, token: str | None = None, *, timeout_s: float = 30.0) -> None:
        """`token` by default is $POLAR_ROLLOUT_TOKEN. `timeout_s`: of one answer, of a stream's silence."""
        token = token if token is not None else os.environ.get("POLAR_ROLLOUT_TOKEN", "")
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/"),
            headers={"Authorization": f"Bearer {token}"},
            timeout=timeout_s,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),  # a stream holds one to its end
            trust_env=False,
        )
        self._url = url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def submit(self, request: TaskRequest, *, idempotency_key: str | None = None) -> Task:
        """Accepted once it is on the server's disk. With a key the same request may be sent again and again."""
        return await self._get(requests.submit(request, idempotency_key), Task)

    async def task(self, task_id: str) -> Task:
        return await self._get(Ask("GET", f"/v1/tasks/{task_id}"), Task)

    async def tasks(
        self, *, status: str | None = None, group_id: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[Task]:
        """Newest first."""
        query = {"status": status, "group_id": group_id, "limit": limit, "cursor": cursor}
        return await self._get(Ask("GET", "/v1/tasks", query), Page[Task])

    async def sessions(self, task_id: str, *, limit: int = 100, cursor: str | None = None) -> Page[Session]:
        return await self._get(
            Ask("GET", f"/v1/tasks/{task_id}/sessions", {"limit": limit, "cursor": cursor}), Page[Session]
        )

    async def results(self, task_id: str, *, trajectory: bool = False) -> Results:
        """Those there are by now."""
        query = {"trajectory": "true" if trajectory else None}
        return await self._get(Ask("GET", f"/v1/tasks/{task_id}/results", query), Results)

    async def stream_results(self, task_id: str, *, trajectory: bool = False) -> AsyncIterator[ResultLine]:
        """Results as sessions end, up to the task's end. Raises StreamCut when it broke off before that."""
        query = {"trajectory": "true" if trajectory else None}
        seq: int | None = None
        async for line in self._lines(Ask("GET", f"/v1/tasks/{task_id}/results", query, headers=requests.NDJSON)):
            read = requests.read(200, line.encode(), ResultLine)
            if read.type == "result" and read.result:
                seq = read.result.seq
            if read.type != "ping":
                yield read
            if read.type == "end":
                return
        raise StreamCut(seq)

    async def wait(self, task_id: str) -> Task:
        """Until the task has ended, through streams that break off and servers that start again."""
        while True:
            try:
                async for line in self.stream_results(task_id):
                    if line.type == "end":
                        return await self.task(task_id)
            except (StreamCut, Unreachable):
                await asyncio.sleep(1.0)
                task = await self._task_if_there(task_id)
                if task and task.status in ENDED:
                    return task

    async def cancel(self, task_id: str) -> Task:
        return await self._get(Ask("POST", f"/v1/tasks/{task_id}/cancel"), Task)

    async def retry(self, task_id: str, samples: list[int] | None = None) -> Task:
        """Begin samples again: those given, else all that have ended and are not usable."""
        return await self._get(requests.retry(task_id, samples), Task)

    async def overview(self) -> Overview:
        return await self._get(Ask("GET", "/v1/overview"), Overview)

    async def gateways(self) -> list[Gateway]:
        """Those the server knows."""
        status, body = await self._raw(Ask("GET", "/v1/gateways"))
        requests.check(status, body)
        return requests.GATEWAYS.validate_json(body)

    async def policy(self) -> FleetPolicy:
        """Which weights the gateways' engines serve, and where a change of them stands."""
        return await self._get(Ask("GET", "/v1/policy"), FleetPolicy)

    async def update_policy(
        self,
        version: str,
        *,
        weights: str | None = None,
        mode: PauseMode = "drain",
        limit_s: float = 600,
        gateways: Sequence[str] | None = None,
    ) -> FleetPolicy:
        """Pause, have the engines load `weights` (a folder on their machines), resume; returns at the end of it.

        The phase is `serving` or `failed` then. Made again, a change that was done is done.
        """
        asked = requests.update(version, weights, mode, limit_s, gateways)
        return await self._ended(await self._get(asked, FleetPolicy))

    async def pause_policy(
        self, *, mode: PauseMode = "drain", limit_s: float = 600, gateways: Sequence[str] | None = None
    ) -> FleetPolicy:
        """Hold all calls, for a trainer that changes the weights itself; returns when none runs, or `failed`."""
        return await self._ended(await self._get(requests.pause(mode, limit_s, gateways), FleetPolicy))

    async def resume_policy(self, version: str | None = None, *, gateways: Sequence[str] | None = None) -> FleetPolicy:
        """Let calls go on. `version`: of the weights that the engines have now; None: as before the pause."""
        return await self._ended(await self._get(requests.resume(version, gateways), FleetPolicy))

    async def file(self, session_id: str, name: str) -> bytes:
        """A file of a session, whole: `calls.jsonl`, `trajectory.json`, `workspace.diff`, ..."""
        status, body = await self._raw(Ask("GET", f"/v1/sessions/{session_id}/files/{name}"))
        requests.check(status, body)
        return body

    async def rows(self, session_id: str, form: str) -> list[dict[str, Any]]:
        """What came of a session as rows of an export format: `nemo-gym`, `trl`, ... See docs/exporters.md."""
        status, body = await self._raw(requests.rows(session_id, form))
        requests.check(status, body)
        return requests.ROWS.validate_json(body)

    async def events(self, *, after: int | None = None, task_id: str | None = None) -> AsyncIterator[Event]:
        """What happens, as it happens. Ends when the connection does; go on after the last event's `seq`."""
        query = {"after": after, "task_id": task_id}
        async for line in self._lines(Ask("GET", "/v1/events", query, headers={"Accept": "text/event-stream"})):
            if line.startswith("data:"):
                yield requests.read(200, line[5:].encode(), Event)

    async def _ended(self, policy: FleetPolicy) -> FleetPolicy:
        """Where the change ended: it is asked for until then."""
        while policy.phase in ("pausing", "updating", "resuming"):
            await asyncio.sleep(POLICY_POLL_S)
            policy = await self.policy()
        return policy

    async def _task_if_there(self, task_id: str) -> Task | None:
        try:
            return await self.task(task_id)
        except Unreachable:
            return None

    async def _get[Answer: BaseModel](self, ask: Ask, answer: type[Answer]) -> Answer:
        status, body = await self._raw(ask)
        return requests.read(status, body, answer)

    async def _raw(self, ask: Ask) -> tuple[int, bytes]:
        try:
            response = await self._http.request(
                ask.method, ask.path, params=ask.params, content=ask.content, headers=dict(ask.headers)
            )
        except httpx.HTTPError as error:
            raise self._gone(error) from error
        return response.status_code, response.content

    async def _lines(self, ask: Ask) -> AsyncIterator[str]:
        try:
            async with self._http.stream(
                ask.method, ask.path, params=ask.params, headers=dict(ask.headers)
            ) as response:
                if response.status_code >= 400:
                    requests.check(response.status_code, await response.aread())
                async for line in response.aiter_lines():
                    if line:
                        yield line
        except httpx.HTTPError as error:
            raise self._gone(error) from error

    def _gone(self, error: httpx.HTTPError) -> Unreachable:
        return Unreachable(f"{self._url}: {str(error) or type(error).__name__}")
