"""Records into topics with confluent-kafka, and DataFrames out of them, for the tests of the source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from moldau.spark.data_source import MoldauDataSource

FLUSH_S = 30
STREAM_S = 60


def produce(bootstrap: str, topic: str, values: Iterable[Any], **config: Any) -> None:
    """`values` are bytes, or what Producer.produce takes."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **config})
    errors: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            errors.append(error)

    for value in values:
        fields = value if isinstance(value, dict) else {"value": value, "partition": 0}
        producer.produce(topic, **fields, on_delivery=delivered)
    assert (producer.flush(FLUSH_S), errors) == (0, [])


def numbered(start: int, end: int, partition: int = 0) -> list[dict[str, Any]]:
    return [{"value": b"%d" % number, "partition": partition} for number in range(start, end)]


def frame(spark: SparkSession, bootstrap: str, schema: str | None = None, **options: object) -> DataFrame:
    reader = spark.read.format("moldau").options(**_options(bootstrap, options))
    return (reader.schema(schema) if schema else reader).load()


def stream(spark: SparkSession, bootstrap: str, schema: str | None = None, **options: object) -> DataFrame:
    reader = spark.readStream.format("moldau").options(**_options(bootstrap, options))
    return (reader.schema(schema) if schema else reader).load()


def _options(bootstrap: str, options: dict[str, object]) -> dict[str, str]:
    return {"kafka.bootstrap.servers": bootstrap} | {name: str(value) for name, value in options.items()}


def source(bootstrap: str, **options: object) -> MoldauDataSource:
    """As Spark's Python process makes it, without the process."""
    return MoldauDataSource(_options(bootstrap, options))


def values(df: DataFrame) -> list[bytes]:
    return sorted(bytes(row.value) for row in df.select("value").collect())


def sentence(error: BaseException) -> str:
    """Ours in Spark's error: on the first line, or behind Spark's own first one."""
    return next(line for line in str(error).splitlines()[:2] if "moldau.errors." in line)


class Copy:
    """A streaming query whose rows are kept, batch by batch; `fail` makes a batch fail before it keeps any."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.batches: dict[int, list[bytes]] = {}
        self.fail = False

    @contextmanager
    def of(self, df: DataFrame, **trigger: Any) -> Iterator[StreamingQuery]:
        writer = df.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self.checkpoint))
        query = (writer.trigger(**trigger) if trigger else writer).start()
        try:
            yield query
        finally:
            query.stop()

    def run(self, df: DataFrame) -> StreamingQuery:
        """All there is, then no more."""
        with self.of(df, availableNow=True) as query:
            assert query.awaitTermination(STREAM_S)
        return query

    @property
    def rows(self) -> list[bytes]:
        return sorted(value for batch in self.batches.values() for value in batch)

    def _keep(self, df: DataFrame, batch_id: int) -> None:
        if self.fail:
            raise RuntimeError("this batch was to fail")
        self.batches[batch_id] = values(df)
