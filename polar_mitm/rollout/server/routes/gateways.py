"""Gateways: they register, beat and leave; people look at them and drain them."""

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict

from polar_mitm.client.models import Name
from polar_mitm.client.nodes import Gateway, Heartbeat, HeartbeatReply, Registered, Registration
from polar_mitm.rollout.server.parts import GatewayName, Here, problems
from polar_mitm.rollout.server.strict import StrictRoute

router = APIRouter(prefix="/v1/gateways", tags=["gateways"], route_class=StrictRoute)


class Leaving(BaseModel):
    model_config = ConfigDict(extra="forbid")

    incarnation: Name


@router.post("", responses=problems(409))
async def register(registration: Registration, service: Here) -> Registered:
    """A gateway comes, or comes again. Sessions of its name that it does not hold are begun again elsewhere."""
    return await service.fleet.register(registration)


@router.get("", responses=problems())
async def gateways(service: Here) -> list[Gateway]:
    """By name."""
    nodes = sorted(service.board.nodes.values(), key=lambda node: node.name)
    return [service.board.gateway(node) for node in nodes]


@router.post("/{name}/heartbeat", responses=problems(404, 409))
async def heartbeat(name: GatewayName, beat: Heartbeat, service: Here) -> HeartbeatReply:
    """404: register again. 409: another process has this name now; end all sessions and stop."""
    return service.fleet.beat(name, beat)


@router.post("/{name}/leave", status_code=204, responses=problems(404, 409))
async def leave(name: GatewayName, leaving: Leaving, service: Here) -> Response:
    """It stops. What it still holds is begun again elsewhere."""
    await service.fleet.leave(name, leaving.incarnation)
    return Response(status_code=204)


@router.post("/{name}/drain", responses=problems(404))
async def drain(name: GatewayName, service: Here) -> Gateway:
    """Give it nothing more; what it holds goes on."""
    return service.board.gateway(await service.fleet.drain(name, True))


@router.post("/{name}/undrain", responses=problems(404))
async def undrain(name: GatewayName, service: Here) -> Gateway:
    """Give it sessions again."""
    return service.board.gateway(await service.fleet.drain(name, False))
