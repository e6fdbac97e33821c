"""Compaction: how fast the cleaner is, and how long the broker keeps others waiting meanwhile."""

from __future__ import annotations

from bench.logs import CLEANER_CHECKPOINT, segments
from bench.metrics import Metric, Sample, at_most
from bench.scenarios.scenario import Bench, Phase, Scenario
from bench.servers.server import ServerProcess
from bench.topics import create_topic, delete_topic

# Each key is overwritten about so many times.
RECORDS_PER_KEY = 10
QUIET_SECONDS = 2.0
MB = 1_000_000

# The cleaner looks for work often, and all but the active segment is work as soon as it is allowed to.
SERVER_SETTINGS = {"log.cleaner.backoff.ms": 50, "log.cleaner.threads": 1}
TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.01",
    # Until it is set to 0, which starts the clock.
    "min.compaction.lag.ms": str(24 * 3600 * 1000),
}


class Compaction(Scenario):
    """A log full of overwritten keys, not to be cleaned yet; then min.compaction.lag.ms is set to 0, and the clock
    runs until the cleaner's checkpoint covers all but the active segment. MB are those of the dirty log.

    Meanwhile ApiVersions is asked every millisecond: the longest answer is the longest pause. Both brokers have
    one cleaner thread, segments of 16 MB and a first cleaning that does not count. Every key must keep its last
    value.
    """

    name = "compaction"
    phase = Phase.ALONE
    repeats_itself = True
    rate_1kb = Metric("compaction_1000b", "compaction of 1 KB records", "MB/s", "higher")
    rate_100b = Metric("compaction_100b", "compaction of 100 B records", "MB/s", "higher")
    pause = Metric("compaction_pause", "longest pause while cleaning", "ms", "lower", at_most(20))
    quiet = Metric("compaction_quiet_pause", "… and without cleaning", "ms", "lower")
    metrics = (rate_1kb, rate_100b, pause, quiet)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        server.extra = dict(SERVER_SETTINGS)
        server.start()
        samples: list[Sample] = []
        sizes = bench.sizes
        for metric, record_bytes, log_bytes in (
            (self.rate_1kb, 1_000, sizes.compaction_bytes_1kb),
            (self.rate_100b, 100, sizes.compaction_bytes_100b),
        ):
            for number in range(1 + sizes.compactions):
                megabytes, result = self._clean(bench, server, record_bytes, log_bytes)
                if number > 0:
                    samples.append(Sample(metric, megabytes / result["seconds"]))
                    samples.append(Sample(self.pause, result["longest_ms"]))
        for _ in range(sizes.compactions):
            quiet = bench.drivers.run(server, "probe", {"seconds": QUIET_SECONDS}).result
            samples.append(Sample(self.quiet, quiet["longest_ms"]))
        server.stop()
        return samples

    def _clean(
        self, bench: Bench, server: ServerProcess, record_bytes: int, log_bytes: int
    ) -> tuple[float, dict[str, float]]:
        """Fill a log and have it cleaned: how many MB were dirty, and what the client saw."""
        records = log_bytes // record_bytes
        topic = create_topic(server, config=TOPIC_SETTINGS)
        job = {"topic": topic, "records": records, "keys": records // RECORDS_PER_KEY, "record_bytes": record_bytes}
        bench.drivers.run(server, "produce_keyed", job)
        *dirty, (active_from, _) = segments(server.data_directory / f"{topic}-0").items()
        checkpoint = str(server.data_directory / CLEANER_CHECKPOINT)
        cleaning = {"topic": topic, "dirty_end": active_from, "checkpoint": checkpoint}
        result = bench.drivers.run(server, "clean", cleaning).result
        held = bench.drivers.run(server, "check_keys", job).result["records"]
        if held >= records:
            raise AssertionError(f"{server.title} removed none of {records} records")
        delete_topic(server, topic)
        return sum(size for _, size in dirty) / MB, result
