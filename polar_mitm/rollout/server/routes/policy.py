"""The policy: which weights the gateways' engines serve, and its change."""

from fastapi import APIRouter

from polar_mitm.client.policy import FleetPolicy, Pause, Resume, Update
from polar_mitm.rollout.server.parts import Here, problems
from polar_mitm.rollout.server.strict import StrictRoute

router = APIRouter(prefix="/v1/policy", tags=["policy"], route_class=StrictRoute)


@router.get("", responses=problems())
async def policy(service: Here) -> FleetPolicy:
    """Where it stands. A change has ended when the phase is `serving`, `paused` or `failed`."""
    return service.policies.view()


@router.post("", status_code=202, responses=problems(404, 409))
async def update(asked: Update, service: Here) -> FleetPolicy:
    """Begin a change: pause all gateways, have their engines load the weights, probe, resume."""
    return service.policies.update(asked)


@router.post("/pause", status_code=202, responses=problems(404, 409))
async def pause(asked: Pause, service: Here) -> FleetPolicy:
    """Begin a pause, for a trainer that changes the weights itself."""
    return service.policies.pause(asked)


@router.post("/resume", status_code=202, responses=problems(404, 409))
async def resume(asked: Resume, service: Here) -> FleetPolicy:
    """Begin to let calls go on: with `version`, the name of the weights that the engines have now; else as before."""
    return service.policies.resume(asked)
