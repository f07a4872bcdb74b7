"""Why what stands in line cannot go to any gateway that is here, however long it waits for a place."""

from collections.abc import Iterable

from polar_mitm.rollout.server.board import Node
from polar_mitm.rollout.store.entries import Lane


def missing(lane: Lane, nodes: Iterable[Node]) -> str | None:
    """In words; None where a gateway is here that can run it."""
    here = [node for node in nodes if node.alive]
    if any(node.fits(lane) for node in here):
        return None
    if not here:
        return "waiting for a gateway: none is here (`polar gateway serve` starts one)"
    needs = {
        f"knows the scenario {lane.scenario!r} (a file in its --scenarios folder, or one of polar's own)": Lane(
            scenario=lane.scenario
        ),
        f"has the harness {lane.harness!r}": Lane(harness=lane.harness),
        f"has the sandbox {lane.sandbox!r}": Lane(sandbox=lane.sandbox),
        f"serves the policy {lane.policy_version!r}": Lane(policy_version=lane.policy_version),
    }
    unmet = [what for what, need in needs.items() if not any(node.fits(need) for node in here)]
    return "waiting for a gateway that " + (
        " and ".join(unmet) or "has all that it needs at once: each lacks something"
    )
