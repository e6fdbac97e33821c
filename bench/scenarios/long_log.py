"""Logs on disk: a fetch costs the same anywhere in a long log, a killed broker comes back with all of it."""

from __future__ import annotations

import random
import time

from bench.metrics import KAFKA, Metric, Sample, at_most
from bench.scenarios.scenario import Bench, Phase, Scenario
from bench.servers.server import ServerProcess
from bench.stats import median
from bench.topics import await_topic, create_topic, expect_records

RECORD_BYTES = 1_000
BATCH_BYTES = 128 << 10
FETCH_BYTES = 1 << 20
# Where in the log the fetches fall, as shares of its records; the last one stays clear of the end itself.
PLACES = {"start": (0.0, 0.02), "middle": (0.49, 0.51), "end": (0.96, 0.98)}


def fill_log(bench: Bench, server: ServerProcess, log_bytes: int) -> tuple[str, int]:
    """A topic of one partition with a log of that size: its name and its end offset."""
    topic = create_topic(server)
    job = {"topic": topic, "partition": 0, "record_bytes": RECORD_BYTES, "batch_bytes": BATCH_BYTES}
    records = bench.drivers.run(server, "fill", {**job, "log_bytes": log_bytes}).result["records_in_log"]
    expect_records(server, topic, 1, records)
    return topic, records


class FetchAnywhere(Scenario):
    """1 MB fetches on a plain socket at the start, the middle and the end, in turns; nothing is dropped from
    the page cache. The value is the slowest place's median over the fastest one's."""

    name = "log_size"
    phase = Phase.ALONE
    repeats_itself = True
    fetch = Metric("fetch_1mb", "fetch of 1 MB from a 5 GB log, median", "ms", "lower")
    flatness = Metric("fetch_flatness", "… slowest over fastest of start, middle, end", "×", "lower", at_most(1.3))
    metrics = (fetch, flatness)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        server.start()
        bench.say(f"writing {bench.sizes.long_log_bytes >> 20:,} MB")
        topic, records = fill_log(bench, server, bench.sizes.long_log_bytes)
        offsets = self._offsets(records, bench.sizes.fetches_per_place)
        job = {"topic": topic, "offsets": offsets, "max_bytes": FETCH_BYTES}
        bench.drivers.run(server, "fetch_at", job)
        samples: list[Sample] = []
        for _ in range(bench.repeat):
            latencies_ms = bench.drivers.run(server, "fetch_at", job).result["latencies_ms"]
            medians_ms = [median(latencies_ms[place :: len(PLACES)]) for place in range(len(PLACES))]
            samples.append(Sample(self.fetch, median(latencies_ms)))
            samples.append(Sample(self.flatness, max(medians_ms) / min(medians_ms)))
        server.stop()
        return samples

    def _offsets(self, records: int, per_place: int) -> list[int]:
        source = random.Random(1)
        shares = [source.uniform(low, high) for _ in range(per_place) for low, high in PLACES.values()]
        return [int(records * share) for share in shares]


class Recovery(Scenario):
    """`kill -9` right after the last acknowledgement, then start until the partition gives its end offset.

    A killed Kafka first waits until its controller forgets the old session, by default for 9 s. That is no
    recovery of a log, so the session is set to 1 s here.
    """

    name = "recovery"
    phase = Phase.ALONE
    until_served = Metric("recovery_1gb", "recovery of a 1 GB log after kill -9", "s", "lower")
    metrics = (until_served,)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        if server.name == KAFKA:
            server.extra = {"broker.session.timeout.ms": 1_000, "broker.heartbeat.interval.ms": 250}
        server.start()
        topic, records = fill_log(bench, server, bench.sizes.recovery_bytes)
        server.kill()
        before = time.perf_counter()
        server.start()
        (end_offset,) = await_topic(server, topic, 1)
        seconds = time.perf_counter() - before
        if end_offset != records:
            raise AssertionError(f"{server.title} came back with {end_offset} of {records} records")
        server.stop()
        return [Sample(self.until_served, seconds)]
