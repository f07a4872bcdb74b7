"""How many gateways there are, what each takes of a node, and where they reach the server. No I/O; Ray's nodes come in
as `ray.nodes()` gives them."""

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from polar_mitm.errors import NotReady
from polar_mitm.rollout.server.settings import SettingsError

PROGRAM: Final = (sys.executable, "-c", "from polar_mitm.cli import app; app()", "gateway", "serve")
STATE: Final = Path(tempfile.gettempdir()) / f"polar-gateways-{os.getuid()}"
OURS: Final = ("--server-url", "--token-file", "--name", "--host", "--port", "--url", "--state")
"""Options of a gateway that its actor gives it."""
NODE: Final = "{node}"
"""Stands in a gateway's options for its node's address."""


@dataclass(slots=True, frozen=True)
class Secret:
    """Goes to actors without standing in what Ray logs of them."""

    value: str = field(repr=False)


@dataclass(slots=True, frozen=True, kw_only=True)
class Placing:
    """How many gateways there are, what each takes of a node, and what it is started with."""

    arguments: tuple[str, ...] = ()
    """Options of `polar gateway serve`, but for `OURS`."""
    gateways: int | None = None
    """None: one for each node that has room for one."""
    cpus: float = 1.0
    """That Ray sets aside for each."""
    resource: str | None = None
    """Ray's name of a resource of which each takes 1; nodes without it have no gateway."""
    state: Path = STATE
    """A folder on each node; a gateway has its sessions in `<state>/<name>`."""
    address: str = "auto"
    """Of the Ray cluster."""
    namespace: str = "polar"
    program: tuple[str, ...] = PROGRAM

    def __post_init__(self) -> None:
        for argument in self.arguments:
            if argument.split("=")[0] in OURS:
                raise SettingsError(f"{argument}: with --on ray every gateway is given its own; leave it out")


def names(placing: Placing, nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of the gateways on these nodes (`ray.nodes()`). They stay the same when an actor comes back elsewhere.

    Raises NotReady when no node has room for one.
    """
    needed = {"CPU": placing.cpus} | ({placing.resource: 1.0} if placing.resource else {})
    roomy = [
        node
        for node in nodes
        if node["Alive"] and all(node["Resources"].get(name, 0.0) >= much for name, much in needed.items())
    ]
    if not roomy:
        what = ", ".join(f"{much:g} {name}" for name, much in needed.items() if much)
        raise NotReady(f"none of the Ray cluster's {len(nodes)} nodes has {what or 'room'} for a gateway")
    return [f"gw-{number}" for number in range(placing.gateways or len(roomy))]


def actor_options(name: str, placing: Placing) -> dict[str, Any]:
    """What the actor is started with: spread over the nodes, begun again as often as it takes, no call sent twice."""
    return {
        "name": name,
        "namespace": placing.namespace,
        "num_cpus": placing.cpus,
        "resources": {placing.resource: 1.0} if placing.resource else {},
        "scheduling_strategy": "SPREAD",
        "max_restarts": -1,
        "max_task_retries": 0,
    }


def server_url(url: str, nodes: Sequence[Mapping[str, Any]], own: str) -> str:
    """Where gateways reach the server, which listens at `url`, from all nodes; `own` is the address of its node.

    Raises SettingsError when it listens where other nodes cannot reach it.
    """
    scheme, _, rest = url.partition("://")
    host, _, port = rest.rpartition(":")
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return url
    if address.is_unspecified:
        return f"{scheme}://{f'[{own}]' if ':' in own else own}:{port}"
    elsewhere = [node["NodeManagerAddress"] for node in nodes if node["Alive"] and node["NodeManagerAddress"] != own]
    if address.is_loopback and elsewhere:
        raise SettingsError(f"the node {elsewhere[0]} cannot reach {url}: say --host {own}")
    return url
