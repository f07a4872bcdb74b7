"""What a gateway tells Prometheus of its engines and their weights."""

from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, generate_latest

from polar_mitm.client.policy import PolicyPhase
from polar_mitm.engine.pool import EnginePool


def engine_exposition(engines: EnginePool) -> bytes:
    """The text format."""
    registry = CollectorRegistry()
    state = engines.policy.state()

    def gauge(name: str, what: str) -> Gauge:
        return Gauge(f"polar_engine_{name}", what, ["engine"], registry=registry)

    up, running = gauge("up", "1 while calls go there."), gauge("calls_running", "Calls at the engine.")
    sessions = gauge("sessions", "Sessions that have their place there.")
    calls = Counter("polar_engine_calls", "Calls that it answered.", ["engine"], registry=registry)
    lost = Counter("polar_engine_calls_lost", "Calls that it gave no answer to.", ["engine"], registry=registry)
    for engine in state.engines:
        up.labels(engine.url).set(engine.healthy)
        running.labels(engine.url).set(engine.running)
        sessions.labels(engine.url).set(engine.sessions)
        calls.labels(engine.url).inc(engine.calls)
        lost.labels(engine.url).inc(engine.lost)
    Gauge("polar_calls_held", "Calls that wait for the end of a change of weights.", registry=registry).set(state.held)
    phases = Gauge("polar_policy_phase", "1 for the phase that it is in.", ["phase"], registry=registry)
    for phase in get_args(PolicyPhase.__value__):
        phases.labels(phase).set(phase == state.phase)
    Counter("polar_policy_changes", "Changes of the weights.", registry=registry).inc(engines.policy.changes)
    Info("polar_policy", "The weights that are served.", registry=registry).info({"version": state.version or ""})
    return generate_latest(registry)
