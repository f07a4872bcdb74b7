"""The routes by which the rollout server, or whoever has the token, changes the weights of this gateway's engines.

Each is answered when its step is done; asked for again, a step that was done is done.
"""

from fastapi import APIRouter, HTTPException

from polar_mitm.client.policy import Load, Pause, PolicyState, Resume
from polar_mitm.engine.pool.policy import Policy, PolicyBusy, PolicyFailed
from polar_mitm.rollout.server.strict import StrictRoute


def policy_routes(policy: Policy) -> APIRouter:
    router = APIRouter(prefix="/v1/policy", route_class=StrictRoute)

    @router.get("")
    async def state() -> PolicyState:
        """Where it stands."""
        return policy.state()

    @router.post("/pause")
    async def pause(asked: Pause) -> PolicyState:
        """Hold new calls, and see to those that run."""
        with _answered():
            await policy.pause(asked.mode, asked.limit_s, to_load=asked.to_load)
        return policy.state()

    @router.post("/load")
    async def load(asked: Load) -> PolicyState:
        """Have engines load weights, forget their prefixes, and name the weights so."""
        with _answered():
            await policy.load(asked.version, asked.weights, asked.limit_s, asked.engines)
        return policy.state()

    @router.post("/resume")
    async def resume(asked: Resume) -> PolicyState:
        """Probe the engines, and let calls go on."""
        with _answered():
            await policy.resume(asked.version)
        return policy.state()

    return router


class _answered:  # noqa: N801  (a context manager)
    """424: an engine or a call is in the way. 409: it has no place now."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        match error:
            case PolicyFailed():
                raise HTTPException(424, str(error)) from error
            case PolicyBusy():
                raise HTTPException(409, str(error)) from error
