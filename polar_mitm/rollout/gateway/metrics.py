"""A gateway's figures for Prometheus."""

from collections import Counter

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from polar_mitm.client.models import Stage
from polar_mitm.rollout.gateway.pipeline import Pipeline

STAGES: tuple[Stage, ...] = ("waiting", "preparing", "ready", "running", "grading", "done")


def exposition(pipeline: Pipeline) -> bytes:
    """The text format."""
    registry = CollectorRegistry()
    sessions = Gauge("polar_gateway_sessions", "Sessions held, by stage.", ["stage"], registry=registry)
    counts = Counter(pipeline.stages.values())
    for stage in STAGES:
        sessions.labels(stage).set(counts[stage])
    places = Gauge("polar_gateway_places_taken", "Places that sessions have, by stage.", ["stage"], registry=registry)
    for name, taken in pipeline.taken.items():
        places.labels(name).set(taken)
    Gauge("polar_gateway_capacity", "Sessions that can be held at once.", registry=registry).set(
        pipeline.workers.capacity
    )
    Gauge("polar_gateway_draining", "1 while no sessions are taken.", registry=registry).set(pipeline.draining)
    return generate_latest(registry)
