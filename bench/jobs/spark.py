"""Spark jobs on topics: the same work through each connector, in turns, in one session.

A connector is a format with options: `moldau`, or Spark's own `kafka` with its defaults or better ones. A sink that
takes every row and does nothing (`noop`) measures reading alone; that what was read is equal is checked once, by a
hash over all columns. CPU seconds are those of the JVM and its Python workers.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.jobs.job import Parameters, Ready
from bench.tree_cpu import TreeCpu

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM_TIMEOUT_S = 300
# Digests of rows are added up; so many bits each that the sum of some billions stays a bigint.
EVERY_COLUMN = "xxhash64(key, value, topic, partition, offset, timestamp, timestampType)"
DIGEST = f"sum({EVERY_COLUMN} & {2**30 - 1})"
# The first digit of the payload's id (`bench.payloads`): what is counted per window.
GROUP = "substring(value, 8, 1)"
# A value of 100 bytes, all different, at hardly any cost.
VALUE_100B = f"cast(concat(lpad(cast(id as string), 10, '0'), '{'x' * 90}') as binary)"


class Connector(NamedTuple):
    name: str
    format: str
    read: dict[str, str]
    write: dict[str, str]
    sink_topic: str


class Work(NamedTuple):
    """What every pass needs."""

    spark: SparkSession
    bootstrap: str
    topic: str
    write_rows: int
    cores: int
    directory: Path

    def options(self, connector: Connector) -> dict[str, str]:
        where = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.topic}
        return {**where, "startingOffsets": "earliest", **connector.read}

    def generated(self) -> DataFrame:
        key = "cast(cast(id as string) as binary) as key"
        return self.spark.range(0, self.write_rows, 1, self.cores).selectExpr(key, f"{VALUE_100B} as value")

    def rows(self, connector: Connector) -> DataFrame:
        return self.spark.read.format(connector.format).options(**self.options(connector)).load()

    def stream(self, connector: Connector) -> DataFrame:
        return self.spark.readStream.format(connector.format).options(**self.options(connector)).load()


def read(work: Work, connector: Connector) -> None:
    work.rows(connector).write.format("noop").mode("overwrite").save()


def hash_values(work: Work, connector: Connector) -> None:
    """Every byte of every value is looked at, as a real job would."""
    work.rows(connector).selectExpr("sum(crc32(value))").collect()


def stream(work: Work, connector: Connector) -> None:
    _drain(work, work.stream(connector), "append")


def window(work: Work, connector: Connector) -> None:
    """Count per second of event time and first digit of the id, with a watermark."""
    from pyspark.sql import functions as F  # noqa: N812

    views = work.stream(connector).withWatermark("timestamp", "10 seconds")
    _drain(work, views.groupBy(F.window("timestamp", "1 second"), F.expr(GROUP)).count(), "update")


def write(work: Work, connector: Connector) -> None:
    rows = work.generated()
    options = {"kafka.bootstrap.servers": work.bootstrap, "topic": connector.sink_topic, **connector.write}
    rows.write.format(connector.format).options(**options).mode("append").save()


def _drain(work: Work, rows: DataFrame, mode: str) -> None:
    """All there is now, in one micro-batch, with a checkpoint of its own."""
    checkpoint = tempfile.mkdtemp(dir=work.directory)
    sink = rows.writeStream.format("noop").outputMode(mode).option("checkpointLocation", checkpoint)
    query = sink.trigger(availableNow=True).start()
    if not query.awaitTermination(STREAM_TIMEOUT_S):
        raise TimeoutError(f"a streaming query did not end within {STREAM_TIMEOUT_S} s")


WORKLOADS: dict[str, Callable[[Work, Connector], None]] = {
    "read": read,
    "hash": hash_values,
    "stream": stream,
    "window": window,
    "write": write,
}


def spark_passes(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """Each workload through each connector: some to warm up, then round by round in turns."""
    connectors = [Connector(**each) for each in parameters["connectors"]]
    with tempfile.TemporaryDirectory(prefix="moldau-bench-spark-") as directory:
        spark = start_session(parameters["session"], parameters["master"], parameters["jars"], Path(directory))
        cores = spark.sparkContext.defaultParallelism
        where = (parameters["bootstrap"], parameters["topic"])
        work = Work(spark, *where, parameters["write_rows"], cores, Path(directory))
        for workload in parameters["workloads"] * parameters["warm_up_passes"]:
            for connector in connectors:
                WORKLOADS[workload](work, connector)
        ready()
        started = time.perf_counter()
        passes = [
            {"workload": workload, "connector": connector.name, **timed(WORKLOADS[workload], work, connector)}
            for number in range(parameters["rounds"])
            for workload in parameters["workloads"]
            # Who goes first changes, in case the first one pays for something.
            for connector in (connectors if number % 2 == 0 else reversed(connectors))
        ]
        seconds = time.perf_counter() - started
        digests = {connector.name: digest(work, connector) for connector in connectors}
        if "write" in parameters["workloads"]:
            for connector in connectors:
                expect_written(work, connector, parameters["warm_up_passes"] + parameters["rounds"])
        spark.stop()
    return {"seconds": seconds, "passes": passes, "digests": digests}


def timed(workload: Callable[[Work, Connector], None], work: Work, connector: Connector) -> dict[str, float]:
    with TreeCpu() as cpu:
        started = time.perf_counter()
        workload(work, connector)
        seconds = time.perf_counter() - started
    return {"seconds": seconds, "cpu_s": cpu.seconds}


def digest(work: Work, connector: Connector) -> list[int]:
    (row,) = work.rows(connector).selectExpr("count(*)", DIGEST).collect()
    return list(row)


def expect_written(work: Work, connector: Connector, times: int) -> None:
    """What Spark's own connector finds in the topic must be what was generated, as often as it was written."""
    sums = "count(*) as rows", "sum(crc32(key)) as keys", "sum(crc32(value)) as values"
    (due,) = work.generated().selectExpr(*sums).collect()
    where = {"kafka.bootstrap.servers": work.bootstrap, "subscribe": connector.sink_topic}
    sink = work.spark.read.format("kafka").options(**where).option("kafka.isolation.level", "read_committed").load()
    (found,) = sink.selectExpr(*sums).collect()
    if list(found) != [times * each for each in due]:
        raise ValueError(f"{connector.name} wrote {found.rows} rows where {times} × {due.rows} were due, or others")


def start_session(kind: str, master: str, jars: list[str], directory: Path) -> SparkSession:
    """`plain`: as PySpark's documentation has it; `moldau`: as ours has it."""
    import moldau.spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {"spark.ui.enabled": "false", "spark.local.dir": str(directory), "spark.jars": ",".join(jars)}
    if kind == "moldau":
        spark = moldau.spark.session(master=master, config=settings)
    else:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master(master).appName("bench")
        for name, value in settings.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        moldau.spark.register(spark)
    # A shuffle of 200 tasks would measure the scheduler; AQE does not help a stream.
    spark.conf.set("spark.sql.shuffle.partitions", spark.sparkContext.defaultParallelism)
    # The runner reads what is said only once the job has ended: a pipe full of warnings would stop it.
    spark.sparkContext.setLogLevel("ERROR")
    return spark
