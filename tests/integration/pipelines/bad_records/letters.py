"""Pipelines with bad records, and what became of these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
from pyspark.sql import SparkSession

from moldau.pipelines.engine.queries import Settings, plan_queries, start_query
from moldau.pipelines.model.options import Given
from moldau.pipelines.model.pipeline import Expectation, Pipeline, Sink, Source, Step

RUN_S = 120
CONNECT = "__connect.errors."


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int
    offset: int = -1

    @property
    def own_headers(self) -> list[tuple[str, bytes | None]]:
        return [(name, value) for name, value in self.headers if not name.startswith((CONNECT, "moldau."))]

    def header(self, name: str) -> str:
        (value,) = [value for header, value in self.headers if header == name]
        assert value is not None
        return value.decode()

    @property
    def reason(self) -> str:
        return self.header(f"{CONNECT}exception.message")

    @property
    def origin(self) -> tuple[str, int, int]:
        topic, partition, offset = (self.header(CONNECT + name) for name in ("topic", "partition", "offset"))
        return topic, int(partition), int(offset)


def records(bootstrap: str, topic: str) -> list[Record]:
    """All committed records of a topic, partition by partition; none if it does not exist."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "tests", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    try:
        metadata = consumer.list_topics(topic, 30).topics[topic]
        partitions = sorted(metadata.partitions)
        consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in partitions])
        found: dict[int, list[Record]] = {index: [] for index in partitions}
        open_partitions = set(partitions)
        while open_partitions:
            message: Any = consumer.poll(30)
            assert message is not None, f"{topic}: no end within 30 s"
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                open_partitions.discard(message.partition())
                continue
            _, timestamp_ms = message.timestamp()
            headers = list(message.headers() or [])
            found[message.partition()].append(
                Record(message.key(), message.value(), headers, timestamp_ms, message.offset())
            )
    finally:
        consumer.close()
    return [record for index in partitions for record in found[index]]


def values(bootstrap: str, topic: str) -> list[bytes | None]:
    return [record.value for record in records(bootstrap, topic)]


def given(**options: Any) -> dict[str, Given]:
    return {name.replace("__", "."): Given(value) for name, value in options.items()}


def shop(
    bootstrap: str,
    folder: Path,
    topic: str,
    *steps: Step,
    expect: Iterable[Expectation] = (),
    sinks: Sequence[Sink] | None = None,
    letters: str | None = "",
    source: dict[str, Any] | None = None,
    **settings: Any,
) -> Pipeline:
    """From `topic`, JSON with page and n, to `<topic>-out`; dead letters to `<topic>-letters`, unless that is None."""
    options = {"topic": topic, "format": "json", "schema": "page STRING, n STRING"} | (source or {})
    view = steps[-1].name if steps else "clicks"
    given_settings = given(checkpoint="checkpoints", trigger="available now", kafka__bootstrap__servers=bootstrap)
    given_settings |= {name.replace("_", " "): Given(value) for name, value in settings.items()}
    if letters is not None:
        given_settings["dead letters"] = Given(letters or f"{topic}-letters")
    return Pipeline(
        "shop",
        (Source("clicks", "topic", given(**options)),),
        steps,
        tuple(sinks or (Sink("out", view, "topic", options=given(topic=f"{topic}-out")),)),
        tuple(expect),
        settings=given_settings,
        folder=folder,
    )


def run_once(spark: SparkSession, pipeline: Pipeline) -> dict[str, Any]:
    """Each query until there is no more; the last progress of each."""
    last = {}
    for plan in plan_queries(pipeline):
        query = start_query(spark, plan, Settings.of(pipeline))
        try:
            assert query.awaitTermination(RUN_S), query.status
        finally:
            query.stop()
        last[plan.name] = query.lastProgress
    return last
