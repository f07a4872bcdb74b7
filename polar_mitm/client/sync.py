"""The synchronous client of a rollout server.

with RolloutClient(url, token) as rollout:
    task = rollout.submit(TaskRequest(scenario="hello", num_samples=8))
    for line in rollout.stream_results(task.task_id): ...
"""

import os
import time
from collections.abc import Iterator, Sequence
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


class RolloutClient:
    """Safe to share between threads. Methods raise ApiError (a refusal) and Unreachable."""

    def __init__(self, url: str, token: str | None = None, *, timeout_s: float = 30.0) -> None:
        """`token` by default is $POLAR_ROLLOUT_TOKEN. `timeout_s`: of one answer, of a stream's silence."""
        token = token if token is not None else os.environ.get("POLAR_ROLLOUT_TOKEN", "")
        self._http = httpx.Client(
            base_url=url.rstrip("/"), headers={"Authorization": f"Bearer {token}"}, timeout=timeout_s, trust_env=False
        )
        self._url = url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def submit(self, request: TaskRequest, *, idempotency_key: str | None = None) -> Task:
        """Accepted once it is on the server's disk. With a key the same request may be sent again and again."""
        return self._get(requests.submit(request, idempotency_key), Task)

    def task(self, task_id: str) -> Task:
        return self._get(Ask("GET", f"/v1/tasks/{task_id}"), Task)

    def tasks(
        self, *, status: str | None = None, group_id: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[Task]:
        """Newest first."""
        query = {"status": status, "group_id": group_id, "limit": limit, "cursor": cursor}
        return self._get(Ask("GET", "/v1/tasks", query), Page[Task])

    def sessions(self, task_id: str, *, limit: int = 100, cursor: str | None = None) -> Page[Session]:
        return self._get(Ask("GET", f"/v1/tasks/{task_id}/sessions", {"limit": limit, "cursor": cursor}), Page[Session])

    def results(self, task_id: str, *, trajectory: bool = False) -> Results:
        """Those there are by now."""
        query = {"trajectory": "true" if trajectory else None}
        return self._get(Ask("GET", f"/v1/tasks/{task_id}/results", query), Results)

    def stream_results(self, task_id: str, *, trajectory: bool = False) -> Iterator[ResultLine]:
        """Results as sessions end, up to the task's end. Raises StreamCut when it broke off before that."""
        query = {"trajectory": "true" if trajectory else None}
        seq: int | None = None
        for line in self._lines(Ask("GET", f"/v1/tasks/{task_id}/results", query, headers=requests.NDJSON)):
            read = requests.read(200, line.encode(), ResultLine)
            if read.type == "result" and read.result:
                seq = read.result.seq
            if read.type != "ping":
                yield read
            if read.type == "end":
                return
        raise StreamCut(seq)

    def wait(self, task_id: str) -> Task:
        """Until the task has ended, through streams that break off and servers that start again."""
        while True:
            try:
                for line in self.stream_results(task_id):
                    if line.type == "end":
                        return self.task(task_id)
            except (StreamCut, Unreachable):
                time.sleep(1.0)
                task = self._task_if_there(task_id)
                if task and task.status in ENDED:
                    return task

    def cancel(self, task_id: str) -> Task:
        return self._get(Ask("POST", f"/v1/tasks/{task_id}/cancel"), Task)

    def retry(self, task_id: str, samples: list[int] | None = None) -> Task:
        """Begin samples again: those given, else all that have ended and are not usable."""
        return self._get(requests.retry(task_id, samples), Task)

    def overview(self) -> Overview:
        return self._get(Ask("GET", "/v1/overview"), Overview)

    def gateways(self) -> list[Gateway]:
        """Those the server knows."""
        status, body = self._raw(Ask("GET", "/v1/gateways"))
        requests.check(status, body)
        return requests.GATEWAYS.validate_json(body)

    def policy(self) -> FleetPolicy:
        """Which weights the gateways' engines serve, and where a change of them stands."""
        return self._get(Ask("GET", "/v1/policy"), FleetPolicy)

    def update_policy(
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
        return self._ended(self._get(asked, FleetPolicy))

    def pause_policy(
        self, *, mode: PauseMode = "drain", limit_s: float = 600, gateways: Sequence[str] | None = None
    ) -> FleetPolicy:
        """Hold all calls, for a trainer that changes the weights itself; returns when none runs, or `failed`."""
        return self._ended(self._get(requests.pause(mode, limit_s, gateways), FleetPolicy))

    def resume_policy(self, version: str | None = None, *, gateways: Sequence[str] | None = None) -> FleetPolicy:
        """Let calls go on. `version`: of the weights that the engines have now; None: as before the pause."""
        return self._ended(self._get(requests.resume(version, gateways), FleetPolicy))

    def file(self, session_id: str, name: str) -> bytes:
        """A file of a session, whole: `calls.jsonl`, `trajectory.json`, `workspace.diff`, ..."""
        status, body = self._raw(Ask("GET", f"/v1/sessions/{session_id}/files/{name}"))
        requests.check(status, body)
        return body

    def rows(self, session_id: str, form: str) -> list[dict[str, Any]]:
        """What came of a session as rows of an export format: `nemo-gym`, `trl`, ... See docs/exporters.md."""
        status, body = self._raw(requests.rows(session_id, form))
        requests.check(status, body)
        return requests.ROWS.validate_json(body)

    def events(self, *, after: int | None = None, task_id: str | None = None) -> Iterator[Event]:
        """What happens, as it happens. Ends when the connection does; go on after the last event's `seq`."""
        query = {"after": after, "task_id": task_id}
        for line in self._lines(Ask("GET", "/v1/events", query, headers={"Accept": "text/event-stream"})):
            if line.startswith("data:"):
                yield requests.read(200, line[5:].encode(), Event)

    def _ended(self, policy: FleetPolicy) -> FleetPolicy:
        """Where the change ended: it is asked for until then."""
        while policy.phase in ("pausing", "updating", "resuming"):
            time.sleep(POLICY_POLL_S)
            policy = self.policy()
        return policy

    def _task_if_there(self, task_id: str) -> Task | None:
        try:
            return self.task(task_id)
        except Unreachable:
            return None

    def _get[Answer: BaseModel](self, ask: Ask, answer: type[Answer]) -> Answer:
        status, body = self._raw(ask)
        return requests.read(status, body, answer)

    def _raw(self, ask: Ask) -> tuple[int, bytes]:
        try:
            response = self._http.request(
                ask.method, ask.path, params=ask.params, content=ask.content, headers=dict(ask.headers)
            )
        except httpx.HTTPError as error:
            raise self._gone(error) from error
        return response.status_code, response.content

    def _lines(self, ask: Ask) -> Iterator[str]:
        try:
            with self._http.stream(ask.method, ask.path, params=ask.params, headers=ask.headers) as response:
                if response.status_code >= 400:
                    requests.check(response.status_code, response.read())
                for line in response.iter_lines():
                    if line:
                        yield line
        except httpx.HTTPError as error:
            raise self._gone(error) from error

    def _gone(self, error: httpx.HTTPError) -> Unreachable:
        return Unreachable(f"{self._url}: {str(error) or type(error).__name__}")
