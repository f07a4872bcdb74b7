"""A slice of `make chaos`: a real server and real gateways under faults lose nothing and double nothing."""

from pathlib import Path

from bench.chaos.run import Plan, run


async def test_nothing_is_lost_or_doubled_under_faults(proxy_home: Path, tmp_path: Path) -> None:
    plan = Plan(sessions=100, faults=10, seed=1, gateways=2, pause_s=0.2, limit_s=300)
    found = await run(plan, tmp_path)
    assert found.wrong == []
    assert found.figures["faults"] == plan.faults
    assert found.figures["samples"] >= plan.sessions
    assert found.figures["callbacks delivered"] >= found.figures["tasks"]
