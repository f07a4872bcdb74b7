"""The arithmetic of docs/scaling.md and the simulation that it is held against."""

import pytest

from bench.scaling.costs import Costs, EngineSpeed, Load
from bench.scaling.needs import gateway_share, most_agents, needs, session_s
from bench.scaling.simulation import fleet, gateway, measured

COSTS = Costs(
    submit_s=0.005,
    server_s=0.02,
    gateway_s=0.02,
    call_s=0.02,
    harness_call_s=0.1,
    harness_bytes=100 << 20,
    queued_bytes=2000,
    in_flight_bytes=100_000,
    database_bytes=10_000,
    network_bytes=20_000,
    calls_bytes=3.0,
    flows_bytes=13.0,
    simulated_call_s=0.007,
)
LOAD = Load(calls=10, tool_s=2.0, prepare_s=2.0, grade_s=5.0)
SPEED = EngineSpeed()
TOOK = session_s(LOAD, SPEED)


def test_a_gateway_is_as_busy_in_simulated_time_as_the_arithmetic_says() -> None:
    agents = int(0.5 * TOOK / gateway_share(COSTS, LOAD))
    seen = gateway(agents, COSTS, LOAD, SPEED, seconds=800)
    assert seen.busy == pytest.approx(0.5, abs=0.05)
    assert seen.session_s == pytest.approx(TOOK, rel=0.05)
    assert seen.sequences == pytest.approx(agents / TOOK * LOAD.calls * SPEED.answer_s(LOAD), rel=0.05)


def test_beyond_what_a_gateway_can_do_its_sessions_wait() -> None:
    agents = int(2 * TOOK / gateway_share(COSTS, LOAD))
    seen = gateway(agents, COSTS, LOAD, SPEED, seconds=500)
    assert seen.busy > 0.9
    assert seen.session_s > 1.5 * TOOK


def test_a_server_keeps_up_with_as_many_as_the_arithmetic_gives_it_and_not_with_twice_as_many() -> None:
    most = most_agents(COSTS, LOAD, SPEED)
    within, beyond = fleet(most, TOOK, COSTS, seconds=100), fleet(2 * most, TOOK, COSTS, seconds=100)
    wanted = needs(most, COSTS, LOAD, SPEED)
    assert within.busy == pytest.approx(wanted.server_busy, rel=0.1)
    assert within.sessions_per_s == pytest.approx(wanted.sessions_per_s, rel=0.1)
    assert beyond.busy > 0.95
    assert beyond.wait_99 > 10 * within.wait_99


def test_the_benchmark_takes_what_its_processors_take_where_they_are_what_is_short() -> None:
    work = COSTS.server_s + COSTS.gateway_s + 2 * COSTS.simulated_call_s
    assert measured(1000, 256, 2, COSTS, cores=2) == pytest.approx(1000 * work / 2, rel=0.2)
