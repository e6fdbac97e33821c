"""Five hundred connections that only stay open beside a hundred that produce: everyone is served."""

from __future__ import annotations

from bench.metrics import Metric, Sample, at_least
from bench.scenarios.scenario import Bench, Phase, Scenario
from bench.servers.server import ServerProcess
from bench.stats import percentile
from bench.topics import temporary_topic

IDLE = 500
BUSY = 100
RECORD_BYTES = 100


class ManyConnections(Scenario):
    name = "connections"
    phase = Phase.LOAD
    served = Metric(
        "connections_served", "connections served, 500 idle and 100 busy", "", "higher", at_least(IDLE + BUSY)
    )
    p99 = Metric("busy_connections_p99", "single-record produce on 100 busy connections, p99", "ms", "lower")
    metrics = (served, p99)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        with temporary_topic(server) as topic:
            job = {"topic": topic, "idle": IDLE, "busy": BUSY, "record_bytes": RECORD_BYTES}
            result = bench.drivers.run(
                server, "connections", {**job, "seconds": bench.sizes.connections_seconds}
            ).result
        return [
            Sample(self.served, result["idle_served"] + result["busy_served"]),
            Sample(self.p99, percentile(result["latencies_ms"], 99)),
        ]
