"""The requests of the rollout server's API and the reading of its answers, for both clients. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from polar_mitm.client.models import ErrorBody, RetryRequest, TaskRequest
from polar_mitm.client.nodes import Gateway
from polar_mitm.client.policy import Pause, PauseMode, Resume, Update


class RolloutError(Exception):
    """The rollout server did not do what was asked; `str` says why, for people."""


class Unreachable(RolloutError):
    """No answer, or one that is no rollout server's."""


class ApiError(RolloutError):
    """The server's own refusal."""

    def __init__(self, status: int, code: str, message: str, field: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field and not message.startswith(f"{field}:") else message)
        self.status = status
        self.code = code
        """`not_found`, `conflict`, `invalid`, `unauthorized`, `too_large`, `unavailable`, ..."""
        self.field = field


class StreamCut(RolloutError):
    """A stream ended before its last line. Go on after `seq`."""

    def __init__(self, seq: int | None) -> None:
        super().__init__("the stream of results broke off before its end")
        self.seq = seq


@dataclass(slots=True, frozen=True)
class Ask:
    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def params(self) -> dict[str, Any]:
        """The query's fields that were given."""
        return {name: value for name, value in self.query.items() if value is not None}


GATEWAYS = TypeAdapter(list[Gateway])
ROWS = TypeAdapter(list[dict[str, Any]])
NDJSON = {"Accept": "application/x-ndjson"}
_JSON = {"Content-Type": "application/json"}


def submit(request: TaskRequest, idempotency_key: str | None) -> Ask:
    key = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
    body = request.model_dump_json(exclude_unset=True).encode()
    return Ask("POST", "/v1/tasks", content=body, headers={**_JSON, **key})


def retry(task_id: str, samples: list[int] | None) -> Ask:
    body = RetryRequest(samples=samples).model_dump_json().encode()
    return Ask("POST", f"/v1/tasks/{task_id}/retry", content=body, headers=_JSON)


def rows(session_id: str, form: str) -> Ask:
    return Ask("GET", f"/v1/sessions/{session_id}/rows", {"format": form})


def update(version: str, weights: str | None, mode: PauseMode, limit_s: float, gateways: Sequence[str] | None) -> Ask:
    body = Update(version=version, weights=weights, mode=mode, limit_s=limit_s, **_named(gateways))
    return _posted("/v1/policy", body)


def pause(mode: PauseMode, limit_s: float, gateways: Sequence[str] | None) -> Ask:
    return _posted("/v1/policy/pause", Pause(mode=mode, limit_s=limit_s, **_named(gateways)))


def resume(version: str | None, gateways: Sequence[str] | None) -> Ask:
    return _posted("/v1/policy/resume", Resume(version=version, **_named(gateways)))


def _named(gateways: Sequence[str] | None) -> dict[str, Any]:
    return {"gateways": list(gateways) if gateways else None}


def _posted(path: str, body: BaseModel) -> Ask:
    return Ask("POST", path, content=body.model_dump_json(exclude_none=True).encode(), headers=_JSON)


def read[Answer: BaseModel](status: int, body: bytes, answer: type[Answer]) -> Answer:
    """Raises ApiError for the server's refusal and Unreachable for an answer that can't be read."""
    check(status, body)
    try:
        return answer.model_validate_json(body)
    except ValidationError as error:
        raise Unreachable(f"the answer is none of a rollout server: {error.errors()[0]['msg']}") from error


def check(status: int, body: bytes) -> None:
    """Raises ApiError, or Unreachable where it is not the server that refused."""
    if status < 400:
        return
    try:
        problem = ErrorBody.model_validate_json(body).error
    except ValidationError as error:
        raise Unreachable(f"HTTP status {status} from something that is no rollout server") from error
    raise ApiError(status, problem.code, problem.message, problem.field)
