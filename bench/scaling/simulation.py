"""The same in simulated time: agents that take turns, processes that do one thing at a time, and what waits for them.

Two models, each as large as it must be. `gateway` has one gateway process, its agents and their share of the engines,
call by call. `fleet` has one rollout server and all the gateways, session by session, with the durations that `gateway`
found. `measured` is the benchmark that the costs come from, to hold the models against.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from random import Random
from statistics import mean, quantiles
from typing import Any

import simpy

from bench.scaling.costs import Costs, EngineSpeed, Load

type Steps = Generator[simpy.Event, Any, Any]

PARTS = 8
"""Requests of a session's life to the server: taken, handed out, stages, files, end, callback."""


@dataclass(slots=True)
class Queue:
    """A process that does one thing at a time, or several that share what comes."""

    env: simpy.Environment
    places: int = 1
    worked: float = 0.0
    waits: list[float] = field(default_factory=list)
    resource: simpy.Resource = field(init=False)

    def __post_init__(self) -> None:
        self.resource = simpy.Resource(self.env, self.places)

    def use(self, seconds: float) -> Steps:
        asked = self.env.now
        with self.resource.request() as turn:
            yield turn
            self.waits.append(self.env.now - asked)
            self.worked += seconds
            yield self.env.timeout(seconds)

    def forget(self) -> None:
        """What came before does not count."""
        self.worked = 0.0
        self.waits.clear()

    def busy(self, seconds: float) -> float:
        return self.worked / (seconds * self.places)

    def slowest(self) -> float:
        """Seconds that one in a hundred waits for longer."""
        return quantiles(self.waits, n=100)[-1] if len(self.waits) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What a simulation saw after its warming up."""

    session_s: float
    sessions_per_s: float
    busy: float
    wait_99: float
    """Seconds for the process, of one in a hundred."""
    sequences: float = 0.0
    """Calls at the engines, in the mean."""


def gateway(
    agents: int, costs: Costs, load: Load, speed: EngineSpeed, *, seconds: float = 3_600.0, seed: int = 0
) -> Seen:
    """One process, whose sessions begin anew as soon as one ends."""
    env, dice = simpy.Environment(), Random(seed)
    process = Queue(env)
    took: list[float] = []
    at_engine = 0.0

    def one() -> Steps:
        nonlocal at_engine
        yield env.timeout(dice.uniform(0, load.prepare_s + load.calls * load.tool_s))
        while True:
            began = env.now
            yield env.timeout(dice.expovariate(1 / load.prepare_s))
            for _ in range(load.calls):
                yield env.timeout(dice.expovariate(1 / load.tool_s))
                yield from process.use(costs.call_s / 2)
                answer = speed.first_token_s + dice.expovariate(1 / load.response_tokens) / speed.tokens_s
                at_engine += answer
                yield env.timeout(answer)
                yield from process.use(costs.call_s / 2)
            yield from process.use(costs.gateway_s)
            yield env.timeout(dice.expovariate(1 / load.grade_s))
            took.append(env.now - began)

    for _ in range(agents):
        env.process(one())
    env.run(until=seconds)
    return Seen(
        session_s=mean(took),
        sessions_per_s=len(took) / seconds,
        busy=process.busy(seconds),
        wait_99=process.slowest(),
        sequences=at_engine / seconds,
    )


def fleet(agents: int, session_s: float, costs: Costs, *, seconds: float = 900.0, seed: int = 0) -> Seen:
    """One server, for each end a new session; seen for so long, after everybody has had a first session."""
    env, dice = simpy.Environment(), Random(seed)
    server = Queue(env)
    took: list[float] = []

    def one() -> Steps:
        yield env.timeout(dice.uniform(0, session_s))  # its first one, halfway
        while True:
            began = env.now
            yield from server.use(costs.submit_s)
            for _ in range(PARTS // 2):
                yield from server.use(costs.server_s / PARTS)
            yield env.timeout(dice.uniform(0.7, 1.3) * session_s)
            for _ in range(PARTS // 2):
                yield from server.use(costs.server_s / PARTS)
            took.append(env.now - began)

    for _ in range(agents):
        env.process(one())
    env.run(until=session_s)
    took.clear()
    server.forget()
    env.run(until=session_s + seconds)
    return Seen(
        session_s=mean(took) if took else float("inf"),
        sessions_per_s=len(took) / seconds,
        busy=server.busy(seconds),
        wait_99=server.slowest(),
    )


def measured(sessions: int, in_flight: int, calls: int, costs: Costs, *, cores: int, seed: int = 0) -> float:
    """Seconds that the benchmark should take: everything on so many cores, stages that sleep 0.2 s in the mean."""
    env, dice = simpy.Environment(), Random(seed)
    machine, running = Queue(env, cores), simpy.Resource(env, in_flight)
    server = Queue(env)

    def one() -> Steps:
        with running.request() as place:
            yield place
            yield from work(server, costs.server_s / 2)
            for _ in range(2 + calls):
                yield env.timeout(dice.uniform(0, 0.4))
                yield from work(machine, (costs.gateway_s + calls * costs.simulated_call_s) / (2 + calls))
            yield from work(server, costs.server_s / 2)

    def work(process: Queue, seconds: float) -> Steps:
        """The server is one process, and the machine has only so many cores."""
        if process is machine:
            yield from machine.use(seconds)
            return
        with process.resource.request() as turn:
            yield turn
            yield from machine.use(seconds)

    for _ in range(sessions):
        env.process(one())
    env.run()
    return float(env.now)
