"""Resident memory of the whole broker, before it did anything and after all the load of the run."""

from __future__ import annotations

import time

from bench.metrics import Metric, Sample, at_most
from bench.scenarios.scenario import Bench, Phase, Scenario
from bench.servers.server import ServerProcess

# A broker that has just answered is still tidying up after its start.
SETTLE_S = 2.0
MB = 1_000_000


class IdleMemory(Scenario):
    name = "memory_idle"
    phase = Phase.IDLE
    repeats_itself = True
    resident = Metric("memory_idle", "resident memory, idle", "MB", "lower", at_most(60))
    metrics = (resident,)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        time.sleep(SETTLE_S)
        return [Sample(self.resident, server.rss_bytes() / MB)]


class LoadedMemory(Scenario):
    name = "memory_loaded"
    phase = Phase.AFTER
    repeats_itself = True
    resident = Metric("memory_loaded", "resident memory, after the load", "MB", "lower", at_most(150))
    metrics = (resident,)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        return [Sample(self.resident, server.rss_bytes() / MB)]
