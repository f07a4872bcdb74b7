"""The client side of the gateways' API: what a gateway's answer to an assignment means."""

import asyncio
from typing import Literal

import aiohttp
from pydantic import BaseModel, ValidationError

from polar_mitm.client.models import ErrorBody
from polar_mitm.client.nodes import Assignment
from polar_mitm.client.policy import PolicyState

TIMEOUT = aiohttp.ClientTimeout(total=10, connect=3)
"""A gateway answers an assignment before it does anything for it."""

type Answer = Literal["taken", "busy", "other", "refused", "unreached", "unknown", "unasked"]
"""`busy`: it has no place, or is draining. `other`: it is another process. `refused`: it cannot make sense of it.
`unreached`: nothing got to it. `unknown`: it may have got it. `unasked`: the server could not read
what to ask."""


class Wire:
    """Connections to gateways. Each request carries the token."""

    def __init__(self, token: str) -> None:
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Wire":
        self._session = aiohttp.ClientSession(
            headers=self._headers, timeout=TIMEOUT, connector=aiohttp.TCPConnector(limit=256, limit_per_host=32)
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def assign(self, url: str, assignment: Assignment) -> tuple[Answer, str]:
        """What it said, and in words."""
        assert self._session is not None
        body = assignment.model_dump_json().encode()
        try:
            async with self._session.post(f"{url.rstrip('/')}/v1/sessions", data=body, allow_redirects=False) as reply:
                said = (await reply.content.read(2000)).decode(errors="replace")
                return _meaning(reply.status), f"{reply.status} {said}"
        except aiohttp.ClientConnectorError as error:
            return "unreached", str(error)
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError, OSError) as error:
            return "unknown", repr(error)

    async def policy(self, url: str, step: str, body: BaseModel, limit_s: float) -> PolicyState:
        """Where the gateway stands once the step is done. Raises StepFailed."""
        assert self._session is not None
        timeout = aiohttp.ClientTimeout(total=limit_s, connect=3)
        where = f"{url.rstrip('/')}/v1/policy/{step}"
        data = body.model_dump_json(exclude_none=True).encode()
        try:
            async with self._session.post(where, data=data, allow_redirects=False, timeout=timeout) as reply:
                said = await reply.read()
                if reply.status == 200:
                    return PolicyState.model_validate_json(said)
                raise StepFailed(_words(said) or f"it answered {reply.status}")
        except TimeoutError as error:
            raise StepFailed(f"it did not answer to {step} within {limit_s:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise StepFailed(f"it did not answer to {step}: {error}") from error

    async def cancel(self, url: str, session_id: str) -> bool:
        """Whether it was told. Its heartbeat's reply tells it as well."""
        assert self._session is not None
        try:
            async with self._session.delete(f"{url.rstrip('/')}/v1/sessions/{session_id}") as reply:
                return reply.status < 500
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False


class StepFailed(Exception):
    """A gateway did not do a step of a change of the policy; says why."""


def _meaning(status: int) -> Answer:
    match status:
        case 200 | 201 | 202:
            return "taken"
        case 429 | 503:
            return "busy"
        case 409:
            return "other"
        case 400 | 404 | 405 | 413 | 415 | 422:
            return "refused"
        case _:
            return "unknown"


def _words(body: bytes) -> str:
    try:
        return ErrorBody.model_validate_json(body).error.message
    except ValidationError:
        return body[:500].decode(errors="replace")
