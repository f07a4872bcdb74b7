"""What so many agents at once need: rates, processes, engines, memory, disk and network, by multiplication."""

import math
from dataclasses import dataclass

from bench.scaling.costs import Costs, EngineSpeed, Load

BUSY = 0.6
"""How much of its time a process may work, so that what comes to it hardly waits."""
DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Needs:
    agents: int
    session_s: float
    """From its start on a gateway to its result."""
    sessions_per_s: float
    calls_per_s: float
    server_busy: float
    """Of one rollout server's processor; above 1 it cannot be done."""
    gateways: int
    """Processes, one core each."""
    engines: int
    harness_cores: float
    harness_memory: float
    """Bytes."""
    gateway_memory: float
    line_memory: float
    """Bytes at the server, with ten times as many sessions in line as run."""
    database_per_day: float
    calls_per_day: float
    """Bytes of calls.jsonl."""
    flows_per_day: float
    """Bytes of flows.mitm."""
    network_per_s: float
    """Bytes at the server, with the gateways' files going to a store of their own."""


def session_s(load: Load, speed: EngineSpeed) -> float:
    return load.prepare_s + load.calls * (load.tool_s + speed.answer_s(load)) + load.grade_s


def gateway_share(costs: Costs, load: Load) -> float:
    """Of a gateway process's time, for one session."""
    return costs.gateway_s + load.calls * costs.call_s


def needs(agents: int, costs: Costs, load: Load, speed: EngineSpeed) -> Needs:
    took = session_s(load, speed)
    rate = agents / took
    calls = rate * load.calls
    return Needs(
        agents=agents,
        session_s=took,
        sessions_per_s=rate,
        calls_per_s=calls,
        server_busy=rate * (costs.submit_s + costs.server_s),
        gateways=math.ceil(rate * gateway_share(costs, load) / BUSY),
        engines=math.ceil(calls * speed.answer_s(load) / speed.sequences),
        harness_cores=calls * costs.harness_call_s,
        harness_memory=agents * costs.harness_bytes,
        gateway_memory=agents * costs.in_flight_bytes,
        line_memory=10 * agents * costs.queued_bytes,
        database_per_day=rate * DAY_S * costs.database_bytes,
        calls_per_day=rate * DAY_S * costs.calls_bytes * load.longest_tokens,
        flows_per_day=calls * DAY_S * costs.flows_bytes * load.prompt_tokens,
        network_per_s=rate * costs.network_bytes,
    )


def most_agents(costs: Costs, load: Load, speed: EngineSpeed) -> int:
    """That one rollout server keeps up with."""
    return int(BUSY * session_s(load, speed) / (costs.submit_s + costs.server_s))
