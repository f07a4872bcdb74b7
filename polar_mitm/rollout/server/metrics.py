"""What Prometheus is told. Counters grow as things happen; gauges are read when it asks."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from polar_mitm.rollout.server.board import Board
from polar_mitm.rollout.store.writer import Writer

SECONDS = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400)


class Metrics:
    def __init__(self, board: Board, writer: Writer) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "polar_http_requests", "Requests by route and status.", ["route", "status"], registry=self.registry
        )
        self.tasks = Counter("polar_tasks_submitted", "Accepted task requests.", registry=self.registry)
        self.events = Counter("polar_events", "Events by type.", ["type"], registry=self.registry)
        self.ended = Counter(
            "polar_sessions_ended", "Sessions that ended, by status.", ["status"], registry=self.registry
        )
        self.reports = Counter("polar_reports", "Reports by what became of them.", ["outcome"], registry=self.registry)
        self.dispatches = Counter(
            "polar_dispatches", "Assignments by what the gateway answered.", ["answer"], registry=self.registry
        )
        self.callbacks = Counter(
            "polar_callbacks", "Tries to deliver a callback, by outcome.", ["outcome"], registry=self.registry
        )
        self.policies = Counter(
            "polar_policy_changes",
            "Changes of the policy, by phase in which they ended.",
            ["phase"],
            registry=self.registry,
        )
        self.waited = Histogram("polar_session_wait_seconds", "Time in line.", buckets=SECONDS, registry=self.registry)
        self.registry.register(_Gauges(board, writer))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Gauges(Collector):
    def __init__(self, board: Board, writer: Writer) -> None:
        self.board = board
        self.writer = writer

    def collect(self) -> Iterator[Metric]:
        stages = GaugeMetricFamily("polar_sessions", "Sessions that are not done, by stage.", labels=["stage"])
        for stage, count in self.board.stages().items():
            stages.add_metric([stage], count)
        yield stages
        nodes = GaugeMetricFamily("polar_gateways", "Gateways by state.", labels=["state"])
        places = GaugeMetricFamily("polar_gateway_places", "Free places.", labels=["gateway"])
        counts: dict[str, int] = {}
        for node in self.board.nodes.values():
            counts[node.state] = counts.get(node.state, 0) + 1
            places.add_metric([node.name], node.places)
        for state, count in counts.items():
            nodes.add_metric([state], count)
        yield nodes
        yield places
        written = self.writer.written
        yield CounterMetricFamily("polar_store_transactions", "Transactions on disk.", value=written.transactions)
        yield CounterMetricFamily("polar_store_operations", "Operations in them.", value=written.operations)
        yield CounterMetricFamily("polar_store_failures", "Transactions that failed.", value=written.failures)
        yield CounterMetricFamily("polar_store_seconds", "Time spent writing.", value=written.seconds)
        yield GaugeMetricFamily("polar_store_queue", "Operations that wait to be written.", value=self.writer.depth)
