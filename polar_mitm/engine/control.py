"""What vLLM offers for a change of weights: a pause, new weights, a name for them, an empty prefix cache.

Its routes are open in development mode only (VLLM_SERVER_DEV_MODE=1), but for the one that ends calls, which comes with
--enable-scale-out. When each is to be called is `pool`'s business.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final

from polar_mitm.chat import CallError
from polar_mitm.engine.refusals import read_refusal
from polar_mitm.engine.transport import Answer, Transport
from polar_mitm.json_text import loads

_STEP_S: Final = 30.0
_NOT_OFFERED: Final = (403, 404, 405)
_BEGAN: Final = re.compile(rb"^process_start_time_seconds (\S+)", re.MULTILINE)
MEND: Final = "start vLLM with VLLM_SERVER_DEV_MODE=1, where nobody else reaches it"

UNNAMED: Final = "default"
"""What vLLM calls its weights until somebody names them."""


class ControlFailed(Exception):
    """The engine did not do a step of a change of weights. The message names the engine, the step and the mend."""


class Control:
    """One engine's routes. Each method raises ControlFailed unless it says otherwise."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def offered(self) -> bool:
        """Whether the engine is in development mode."""
        return await self._asked("/is_paused") is not None

    async def paused(self) -> bool:
        """False where it cannot be told."""
        found = await self._asked("/is_paused")
        return bool(found and found.get("is_paused"))

    async def name(self) -> str | None:
        """What the engine calls its weights; None where it does not say."""
        found = await self._asked("/weight_info")
        name = found and found.get("weight_version")
        return name if isinstance(name, str) else None

    async def began(self) -> float | None:
        """When the engine's process began, Unix seconds: another one has other weights. None where it is not told."""
        try:
            async with asyncio.timeout(_STEP_S):
                answer = await self._transport.get("/metrics")
        except (CallError, TimeoutError):
            return None
        found = _BEGAN.search(answer.raw) if answer.status == 200 else None
        try:
            return float(found[1]) if found else None
        except ValueError:
            return None

    async def pause(self) -> None:
        """Stop sampling where it is: calls that run stay, and go on after `resume`."""
        await self._step("be paused", "/pause?mode=keep")

    async def resume(self) -> None:
        await self._step("go on", "/resume")

    async def load(self, weights: str, limit_s: float) -> None:
        """Put the weights of this folder, a path on the engine's machine, in the place of those that are served."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": weights}, "timeout": limit_s}
        await self._step(f"load the weights in {weights}", "/collective_rpc", body, limit_s=limit_s)

    async def rename(self, name: str) -> None:
        """Of tokens that are sampled from now on, the engine says that these weights sampled them."""
        await self._step("name its weights", "/update_weight_version", {"new_version": name})

    async def reset_prefix_cache(self) -> None:
        """Forget all prefixes, those of calls that are held too: they are read again."""
        answer = await self._step("reset its prefix cache", "/reset_prefix_cache?reset_running_requests=true")
        if answer.get("success") is False:
            raise ControlFailed(
                f"the engine at {self._transport.url} did not reset its prefix cache: blocks are in use"
            )

    async def abort(self, ids: Sequence[str]) -> bool:
        """End these calls; each is answered with what was sampled so far. False where the engine has no such route."""
        try:
            async with asyncio.timeout(_STEP_S):
                answer = await self._transport.post("/inference/v1/abort_requests", {"request_ids": list(ids)})
        except (CallError, TimeoutError):
            return False
        return answer.status == 200

    async def _asked(self, path: str) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(_STEP_S):
                return _object(await self._transport.get(path))
        except (CallError, TimeoutError):
            return None

    async def _step(self, what: str, path: str, body: dict[str, Any] | None = None, *, limit_s: float = _STEP_S) -> Any:
        where = f"the engine at {self._transport.url}"
        try:
            async with asyncio.timeout(limit_s):
                answer = await self._transport.post(path, body or {})
        except CallError as error:
            raise ControlFailed(f"{where} was asked to {what}: {error.detail}") from error
        except TimeoutError as error:
            raise ControlFailed(f"{where} was asked to {what}, and did not answer within {limit_s:g} s") from error
        if answer.status in _NOT_OFFERED:
            raise ControlFailed(f"{where} has no route by which it can {what}: {MEND}")
        if answer.status != 200:
            said = read_refusal(answer.status, answer.raw).message
            raise ControlFailed(f"{where} was asked to {what}, and answered {answer.status}: {said}")
        return _object(answer) or {}


def _object(answer: Answer) -> dict[str, Any] | None:
    if answer.status != 200:
        return None
    try:
        value = loads(answer.raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
