"""How long a user waits: for a server process, and for a broker inside a process that is already warm."""

from __future__ import annotations

from bench.metrics import MOLDAU, Metric, Sample, at_most
from bench.scenarios.scenario import Bench, Phase, Scenario
from bench.servers.server import ServerProcess


class ProcessStart(Scenario):
    """From the spawn of the process to its first answered request (connect and ApiVersions, polled)."""

    name = "start"
    phase = Phase.ALONE
    first_answer = Metric("start_to_answer", "process start to first answered request", "s", "lower", at_most(0.35))
    metrics = (first_answer,)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        # Not measured: it writes the directories and, on a fresh checkout, compiles bytecode.
        server.start()
        server.stop()
        seconds = server.start()
        server.stop()
        return [Sample(self.first_answer, seconds)]


class EmbeddedStart(Scenario):
    """`Broker()` in a process that has already started one: what every test of a user's suite pays."""

    name = "embedded"
    phase = Phase.ALONE
    servers = (MOLDAU,)
    repeats_itself = True
    constructed = Metric("embedded_start", "Broker() in a warm process", "ms", "lower", at_most(50))
    metrics = (constructed,)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        result = bench.drivers.run_alone("embedded_starts", {"starts": bench.sizes.embedded_starts})
        return [Sample(self.constructed, start_ms) for start_ms in result["starts_ms"]]
