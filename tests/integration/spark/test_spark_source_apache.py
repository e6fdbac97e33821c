"""The source on Apache Kafka: the same plans, positions and losses as on our broker, without a Spark in between."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest

from moldau.client.admin import create_topic, delete_records, delete_topics
from moldau.client.groups import committed_offsets
from moldau.errors import DataLossError
from moldau.wire.topic_partition import TopicPartition
from tests.integration.conftest import cluster_at, make_topic
from tests.integration.records.test_apache import pytestmark  # noqa: F401 - skips where there are no jars
from tests.integration.spark.test_spark_stream import ALL, numbers, ranges, reader_of, through_json
from tests.integration.spark.topics import FLUSH_S, numbered, produce, source
from tests.integration.waiting import eventually

AT_MS = 1_700_000_000_000


def read(bootstrap: str, **options: object) -> list[bytes]:
    wanted = source(bootstrap, **options)
    reader = wanted.reader(wanted.schema())
    batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
    return sorted(value for batch in batches for value in batch.column("value").to_pylist())


def test_batches_start_and_end_where_they_should(apache: str) -> None:
    topic = make_topic(apache, 2)
    produce(apache, topic, [record | {"timestamp": AT_MS + n} for n, record in enumerate(numbered(0, 20))])
    produce(apache, topic, numbered(20, 30, partition=1), **{"compression.codec": "zstd"})
    assert read(apache, subscribe=topic, minPartitions=5) == numbers(30)
    assert read(apache, assign=f'{{"{topic}":[0]}}', startingTimestamp=AT_MS + 15) == numbers(20, start=15)
    assert read(apache, subscribe=topic, endingTimestamp=AT_MS + 5) == numbers(5)


def test_committed_records_alone_are_read_and_a_stream_waits_for_open_ones(apache: str) -> None:
    topic, group = make_topic(apache), "positions"
    reader = reader_of(apache, subscribe=topic, startingOffsets="earliest", commitGroupId=group)
    producer = confluent_kafka.Producer({"bootstrap.servers": apache, "transactional.id": topic})
    producer.init_transactions(FLUSH_S)
    for value in (b"committed", b"aborted", b"open"):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(FLUSH_S)
        if value != b"open":
            (producer.commit_transaction if value == b"committed" else producer.abort_transaction)(FLUSH_S)
    assert read(apache, subscribe=topic) == [b"committed"]
    end = reader.latestOffset({}, ALL)
    assert ranges(reader, {}, end) == [(0, 0, 4)]
    assert reader.latestOffset(end, ALL) == end
    producer.commit_transaction(FLUSH_S)
    eventually(lambda: reader.latestOffset(end, ALL)[topic] == {"0": 6}, "the last transaction is seen")
    with cluster_at(apache) as cluster:
        assert {tp: position.offset for tp, position in committed_offsets(cluster, group).items()} == {(topic, 0): 4}


def test_topics_that_change_are_noticed(apache: str) -> None:
    topic = make_topic(apache)
    options: dict[str, object] = {"subscribePattern": f"^{topic}", "startingOffsets": "earliest"}
    strict, lenient = reader_of(apache, **options), reader_of(apache, **options, failOnDataLoss="false")
    produce(apache, topic, numbered(0, 5))
    start = strict.latestOffset({}, ALL)
    assert lenient.latestOffset({}, ALL) == start

    joined = make_topic(apache, name=f"{topic}-joined")
    produce(apache, joined, numbered(0, 20))
    with cluster_at(apache) as cluster:
        assert delete_records(cluster, {TopicPartition(joined, 0): 5}) == {(joined, 0): 5}
    end = lenient.latestOffset(through_json(start), ALL)
    assert ranges(lenient, start, end) == [(0, 5, 20)]

    with cluster_at(apache) as cluster:
        delete_topics(cluster, [topic])
        create_topic(cluster, topic, partitions=1)
    produce(apache, topic, numbered(0, 7))
    with pytest.raises(DataLossError, match=f"{topic}-0 .read up to offset 5. was deleted and created again"):
        strict.latestOffset(start, ALL)
    again = lenient.latestOffset(through_json(end), ALL)
    assert ranges(lenient, end, again) == [(0, 0, 7)]
