"""Spark on topics: our source and sink beside Spark's own Kafka connector, on the same broker, data and session.

The servers are only where the data lies here; what is compared are the connectors (`metrics.JVM`, at its defaults,
and `metrics.JVM_BEST`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

from bench import jvm_connector
from bench.metrics import (
    JVM,
    JVM_BEST,
    KAFKA,
    MOLDAU,
    SHORT_NAMES,
    Goal,
    Metric,
    Sample,
    ratio_at_least,
    ratio_at_most,
)
from bench.scenarios.scenario import BOTH, Bench, Phase, Scenario
from bench.servers.server import ServerProcess
from bench.topics import create_topic

PARTITIONS = 2
RECORD_BYTES = 100
# Enough that both partitions have some, few enough that starting is all there is.
ONE_SHOT_RECORDS = 1_000
WORKS = ("batch", "stream")

# A JVM compiles for long: the third pass is the first that costs what the next ones do, through any connector.
WARM_UP_PASSES = 2

BROKERS = {MOLDAU: "Moldau", KAFKA: "Apache Kafka"}
TITLES = {
    "read": "batch read",
    "hash": "batch read, every value hashed",
    "stream": "streaming read",
    "window": "streaming windowed count",
    "write": "write",
}
GOALS: dict[tuple[str, str], Goal] = {
    ("read", JVM): ratio_at_least(2.5),
    ("read", JVM_BEST): ratio_at_least(1.5),
    ("stream", JVM): ratio_at_least(2.5),
    ("stream", JVM_BEST): ratio_at_least(1.5),
    ("write", JVM): ratio_at_least(2.0),
}


def connectors(names: Sequence[str], sink_topics: Sequence[str]) -> list[dict[str, Any]]:
    settings: dict[str, dict[str, Any]] = {
        MOLDAU: {"format": "moldau", "read": {}, "write": {}},
        JVM: {"format": "kafka", "read": {}, "write": {}},
        JVM_BEST: {
            "format": "kafka",
            "read": dict(jvm_connector.BEST_READ),
            "write": dict(jvm_connector.BEST_WRITE),
        },
    }
    return [
        {"name": name, **settings[name], "sink_topic": topic} for name, topic in zip(names, sink_topics, strict=True)
    ]


class SparkScenario(Scenario):
    phase = Phase.ALONE

    def obstacle(self, say: Callable[[str], None]) -> str | None:
        if importlib.util.find_spec("pyspark") is None:
            return "PySpark is not installed: pip install 'moldau[spark]'"
        return jvm_connector.JARS.obstacle(say)


class SparkThroughput(SparkScenario):
    """100-byte records in two partitions, written by librdkafka; each job through each connector in turns in one
    Spark session, after two passes of each that do not count. Reads end in Spark's `noop` sink with all columns; a
    stream is one `availableNow` trigger; a write has keys and generated values (ours exactly once, as is its
    default, the JVM connector's at least once, the best it has). That all connectors read the same is checked by a
    hash over all columns, what they wrote by the sum of its CRCs. CPU is that of the driver, the JVM and its Python
    workers, without the broker's.
    """

    repeats_itself = True

    def __init__(self, session: str, cores: int, workloads: Sequence[str], servers: Sequence[str] = BOTH) -> None:
        self.name = f"spark_{session}_{cores}"
        self.servers = tuple(servers)
        self._session = session
        self._master = f"local[{cores}]"
        self._workloads = tuple(workloads)
        self._rivals = (JVM, JVM_BEST) if session == "plain" else (JVM,)
        self._rates = {
            (server, workload, rival): self._rate(server, workload, rival)
            for server in servers
            for workload in workloads
            for rival in self._rivals
        }
        self._cpu = {(server, workload): self._cost(server, workload) for server in servers for workload in workloads}
        self.metrics = (*self._rates.values(), *self._cpu.values())

    def _where(self, server: str) -> str:
        suffix = ", moldau.spark.session()" if self._session == "moldau" else ""
        return f"{BROKERS[server]}, {self._master}{suffix}"

    def _rate(self, server: str, workload: str, rival: str) -> Metric:
        return Metric(
            f"{self.name}_{server}_{workload}_{rival}",
            f"{TITLES[workload]}, {self._where(server)}" + (", JVM at best" if rival == JVM_BEST else ""),
            "rows/s",
            "higher",
            GOALS.get((workload, rival)) if self._session == "plain" else None,
            rival=rival,
        )

    def _cost(self, server: str, workload: str) -> Metric:
        title = f"CPU of 1 M rows, {TITLES[workload]}, {self._where(server)}"
        return Metric(f"{self.name}_{server}_{workload}_cpu", title, "CPU s", "lower", rival=JVM)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        server.start()
        sizes = bench.sizes
        topic = fill(bench, server, sizes.spark_records)
        names = (MOLDAU, *self._rivals)
        job = {
            "session": self._session,
            "master": self._master,
            "jars": jvm_connector.jar_paths(),
            "topic": topic,
            "write_rows": sizes.spark_write_rows,
            "workloads": self._workloads,
            "connectors": connectors(names, [create_topic(server, PARTITIONS) for _ in names]),
            "warm_up_passes": WARM_UP_PASSES if sizes.warms_up_fully else 1,
            "rounds": bench.repeat,
        }
        result = bench.drivers.run(server, "spark_passes", job).result
        server.stop()
        expect_equal(result["digests"], sizes.spark_records)
        return [
            sample
            for each in result["passes"]
            for sample in self._samples(
                server.name,
                sizes.spark_write_rows if each["workload"] == "write" else sizes.spark_records,
                each,
            )
        ]

    def _samples(self, server: str, rows: int, measured: dict[str, Any]) -> list[Sample]:
        workload, connector = measured["workload"], measured["connector"]
        rivals = self._rivals if connector == MOLDAU else (connector,)
        samples = [
            Sample(self._rates[server, workload, rival], rows / measured["seconds"], of=connector) for rival in rivals
        ]
        if connector != JVM_BEST:
            cpu_s = measured["cpu_s"] / rows * 1_000_000
            samples.append(Sample(self._cpu[server, workload], cpu_s, of=connector))
        return samples


class SparkFirstResult(SparkScenario):
    """A small script from the start of its Python process to its printed result, over a topic of 1,000 records: with
    `moldau.spark.session(short_job=True)` and our source, and with a plain SparkSession and the connector's jars on
    disk. Our session uses the class archive that the set-up has made. One run of each does not count: it fills the page
    cache."""

    name = "spark_first_result"
    repeats_itself = True

    def __init__(self) -> None:
        self._times = {(server, work): self._time(server, work) for server in BOTH for work in WORKS}
        self.metrics = tuple(self._times.values())

    def _time(self, server: str, work: str) -> Metric:
        what = "a batch job" if work == "batch" else "one micro-batch"
        title = f"process start to the result of {what}, {BROKERS[server]}"
        return Metric(f"{self.name}_{server}_{work}", title, "s", "lower", ratio_at_most(0.6), rival=JVM)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        server.start()
        topic = fill(bench, server, ONE_SHOT_RECORDS)
        jars = ",".join(jvm_connector.jar_paths())
        contenders = {
            MOLDAU: {"session": "moldau", "format": "moldau", "jars": ""},
            JVM: {"session": "plain", "format": "kafka", "jars": jars},
        }
        samples: list[Sample] = []
        uncounted = 1 if bench.sizes.warms_up_fully else 0
        for number in range(uncounted + bench.repeat):
            for work in WORKS:
                for of, contender in contenders.items():
                    job = {**contender, "work": work, "topic": topic, "records": ONE_SHOT_RECORDS}
                    seconds = bench.drivers.run(server, "spark_first_result", job).seconds
                    if number >= uncounted:
                        samples.append(Sample(self._times[server.name, work], seconds, of=of))
        server.stop()
        return samples


def fill(bench: Bench, server: ServerProcess, records: int) -> str:
    topic = create_topic(server, PARTITIONS)
    # The producer's first record, before its clock runs, is one of them.
    job = {"topic": topic, "records": records - 1, "record_bytes": RECORD_BYTES, "codec": "none"}
    bench.drivers.run(server, "produce", job)
    return topic


def expect_equal(digests: dict[str, list[int]], records: int) -> None:
    """A connector that is fast because it reads less, or something else, is not fast."""
    counts = {name: count for name, (count, _) in digests.items()}
    if set(counts.values()) != {records}:
        raise AssertionError(f"of {records} records were read: {counts}")
    if len({digest for _, digest in digests.values()}) != 1:
        names = ", ".join(SHORT_NAMES.get(name, name) for name in digests)
        raise AssertionError(f"{names} read different rows from the same topic")
