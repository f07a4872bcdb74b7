"""python -m bench.scaling [--harness claude-code] [--calls 40] ...: write docs/scaling.md from docs/figures.

The figures are written by `make bench-scale` and `make bench-live`. Exit code 1 when simulation and arithmetic do not
agree, or the simulation takes longer than the run that was measured.
"""

import argparse
import json
import sys
from dataclasses import fields
from pathlib import Path

from bench.report import PAGE, markdown
from bench.scaling.costs import FIGURES, Costs, EngineSpeed, Load
from bench.scaling.needs import BUSY, Needs, gateway_share, most_agents, needs, session_s
from bench.scaling.simulation import fleet, gateway, measured

AGENTS = (1_000, 10_000, 100_000)
CORES = 2
"""Of the machine that the figures come from."""
CLOSE = 0.1
"""How far arithmetic and simulation may be apart, of a whole."""
GIB, TIB = 1 << 30, 1 << 40
TEMPLATE = Path(__file__).with_name("page.md")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling")
    parser.add_argument("--harness", default="claude-code", help="whose measured costs are taken")
    for kind in (Load, EngineSpeed):
        for field in fields(kind):
            parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    given = vars(parser.parse_args())
    load = Load(**{field.name: given[field.name] for field in fields(Load)})
    speed = EngineSpeed(**{field.name: given[field.name] for field in fields(EngineSpeed)})
    costs = Costs.measured(given["harness"])
    wants = [needs(agents, costs, load, speed) for agents in AGENTS]

    process = int(BUSY * session_s(load, speed) / gateway_share(costs, load))
    cells = [(agents, gateway(agents, costs, load, speed)) for agents in (process // 2, process, process * 2)]
    fleets = [(want, fleet(want.agents, want.session_s, costs)) for want in wants]
    bench = json.loads((FIGURES / "scale.json").read_text())["lines"]
    runs = [(line, _again(line, costs)) for line in bench if line["measured"] == line["sessions"]]

    most = most_agents(costs, load, speed)
    text = TEMPLATE.read_text().format(
        harness=given["harness"],
        load=_load(load, speed),
        costs=_costs(costs),
        needs=_needs(wants),
        cells=markdown(
            ("agents at one gateway process", "busy, by arithmetic", "busy, simulated", "wait, 99 of 100", "session"),
            [
                (
                    f"{agents:,}",
                    f"{agents * gateway_share(costs, load) / session_s(load, speed):.2f}",
                    f"{seen.busy:.2f}",
                    f"{seen.wait_99:.2f} s",
                    f"{seen.session_s:.0f} s",
                )
                for agents, seen in cells
            ],
        ),
        fleets=markdown(
            ("agents", "server busy, by arithmetic", "simulated", "wait, 99 of 100", "sessions a second", "wanted"),
            [
                (
                    f"{want.agents:,}",
                    f"{want.server_busy:.2f}",
                    f"{seen.busy:.2f}",
                    f"{seen.wait_99:.2f} s",
                    f"{seen.sessions_per_s:.1f}",
                    f"{want.sessions_per_s:.1f}",
                )
                for want, seen in fleets
            ],
        ),
        runs=markdown(
            ("sessions", "measured", "simulated"),
            [(f"{line['sessions']:,}", f"{line['wall_s']:.0f} s", f"{again:.0f} s") for line, again in runs],
        ),
        process=f"{process:,}",
        most=f"{most:,}",
        busy=f"{BUSY:.0%}",
        flows=f"{wants[-1].flows_per_day / wants[-1].calls_per_day:.0f}",
    )
    (PAGE.parent / "scaling.md").write_text(text)
    print(text)

    apart = [abs(seen.busy - want.server_busy) / want.server_busy for want, seen in fleets if want.server_busy < 1]
    share = gateway_share(costs, load) / session_s(load, speed)
    apart += [abs(seen.busy - agents * share) / (agents * share) for agents, seen in cells if agents * share < 1]
    took = [again / line["wall_s"] for line, again in runs]
    print(f"arithmetic and simulation are {max(apart):.0%} apart at most; the simulated runs take", end=" ")
    print(f"{min(took):.0%} to {max(took):.0%} of the measured ones, which had other work beside them")
    return 1 if max(apart) > CLOSE or max(took) > 1 + CLOSE else 0


def _again(line: dict[str, float], costs: Costs) -> float:
    """The benchmark's run in simulated time, at its own costs and with as many sessions at once."""
    return measured(int(line["sessions"]), int(line["in_flight"]), int(line["calls"]), costs, cores=CORES)


def _load(load: Load, speed: EngineSpeed) -> str:
    rows = [
        ("calls of a session", f"{load.calls}"),
        ("tools between two calls", f"{load.tool_s:g} s"),
        ("prompt of a call, in the mean; the longest", f"{load.prompt_tokens:,} tokens; {load.longest_tokens:,}"),
        ("answer", f"{load.response_tokens} tokens"),
        ("sandbox prepared; work graded", f"{load.prepare_s:g} s; {load.grade_s:g} s"),
        ("an engine: sequences at once, tokens a second for each", f"{speed.sequences}, {speed.tokens_s:g}"),
        ("time to the first token, prefix in the cache", f"{speed.first_token_s:g} s"),
        ("so a session takes", f"{session_s(load, speed):.0f} s"),
    ]
    return markdown(("assumed", ""), rows)


def _costs(costs: Costs) -> str:
    rows = [
        ("server, to take a session", f"{1000 * costs.submit_s:.1f} ms"),
        ("server, for the rest of it", f"{1000 * costs.server_s:.1f} ms"),
        ("gateway, for a session without its calls", f"{1000 * costs.gateway_s:.1f} ms"),
        ("gateway, for a call", f"{1000 * costs.call_s:.1f} ms"),
        ("the agent's own processes, for a call", f"{1000 * costs.harness_call_s:.0f} ms"),
        ("memory of an agent", f"{costs.harness_bytes / (1 << 20):.0f} MiB"),
        ("memory of a gateway, for a session that runs", f"{costs.in_flight_bytes / 1024:.0f} KiB"),
        ("memory of the server, for a session in line", f"{costs.queued_bytes / 1024:.1f} KiB"),
        ("database, for a session", f"{costs.database_bytes / 1024:.1f} KiB"),
        ("network between server and gateway, for a session", f"{costs.network_bytes / 1024:.0f} KiB"),
        ("calls.jsonl, for a token of the longest prompt", f"{costs.calls_bytes:.1f} bytes"),
        ("flows.mitm, for a token of each prompt", f"{costs.flows_bytes:.1f} bytes"),
    ]
    return markdown(("measured", ""), rows)


def _needs(wants: list[Needs]) -> str:
    rows = [
        ("sessions a second", [f"{want.sessions_per_s:.1f}" for want in wants]),
        ("calls a second", [f"{want.calls_per_s:,.0f}" for want in wants]),
        ("rollout server, of one core", [f"{want.server_busy:.2f}" for want in wants]),
        ("gateway processes, a core each", [f"{want.gateways:,}" for want in wants]),
        ("engines", [f"{want.engines:,}" for want in wants]),
        ("cores for the agents", [f"{want.harness_cores:,.0f}" for want in wants]),
        ("memory for the agents", [f"{want.harness_memory / TIB:.2f} TiB" for want in wants]),
        ("memory of all gateways", [f"{want.gateway_memory / GIB:.1f} GiB" for want in wants]),
        ("memory of the server, ten times as many in line", [f"{want.line_memory / GIB:.2f} GiB" for want in wants]),
        ("database a day", [f"{want.database_per_day / GIB:.1f} GiB" for want in wants]),
        ("calls.jsonl a day", [f"{want.calls_per_day / TIB:.2f} TiB" for want in wants]),
        ("flows.mitm a day", [f"{want.flows_per_day / TIB:.2f} TiB" for want in wants]),
        ("network at the server", [f"{want.network_per_s / (1 << 20):.2f} MiB/s" for want in wants]),
    ]
    return markdown(("agents at once", *(f"{want.agents:,}" for want in wants)), [(name, *row) for name, row in rows])


if __name__ == "__main__":
    sys.exit(main())
