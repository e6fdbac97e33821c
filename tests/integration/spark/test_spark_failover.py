"""Leaders and coordinators move while a query runs: it goes on, and every row arrives once."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from pyspark.sql import SparkSession

from moldau import Cluster
from moldau.client.admin import create_topic
from moldau.errors import DataLossError
from moldau.spark.connections import close_idle
from tests.integration.clients import present
from tests.integration.conftest import cluster_at, make_topic
from tests.integration.spark.test_spark_stream import ALL, ranges, reader_of, through_json
from tests.integration.spark.topics import numbered
from tests.integration.spark.topics import produce as produce_values
from tests.integration.waiting import eventually

ROWS = 6_000
TURNS = 3


def produce(cluster: Cluster, topic: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for value in values:
        producer.produce(topic, value=str(value), partition=value % 2)
    assert producer.flush(60) == 0


def read_committed(cluster: Cluster, topic: str) -> list[int]:
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "check", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(2)])
    found: list[int] = []
    at_end: set[int] = set()
    while len(at_end) < 2:
        for message in consumer.consume(1000, 0.2):
            error = message.error()
            if error is None:
                found.append(int(message.value() or b""))
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(present(message.partition()))
    consumer.close()
    return found


def test_a_query_writes_each_row_once_while_leaders_die(
    spark: SparkSession, kafka_cluster: Cluster, tmp_path: Path
) -> None:
    source = make_topic(kafka_cluster.bootstrap_servers, 2)
    target = make_topic(kafka_cluster.bootstrap_servers, 2)
    kafka = {"kafka.bootstrap.servers": kafka_cluster.bootstrap_servers}
    turn = ROWS // TURNS
    produce(kafka_cluster, source, range(turn))
    rows = spark.readStream.format("moldau").options(**kafka, subscribe=source, startingOffsets="earliest").load()
    sink = rows.select("value", "partition").writeStream.format("moldau")
    sink = sink.options(**kafka, topic=target, checkpointLocation=str(tmp_path))
    query = sink.start()
    try:
        for number in range(1, TURNS):
            gone = kafka_cluster.leader_of(source if number % 2 else target, 0)
            gone.kill()
            produce(kafka_cluster, source, range(number * turn, (number + 1) * turn))
            gone.start()
            kafka_cluster.wait_until_ready()
        query.processAllAvailable()
    finally:
        query.stop()
    eventually(lambda: len(read_committed(kafka_cluster, target)) >= ROWS, "all rows are committed")
    assert sorted(read_committed(kafka_cluster, target)) == list(range(ROWS))


def test_a_log_that_an_unclean_election_cut_while_the_query_was_down_is_read_from_the_cut(tmp_path: Path) -> None:
    """It is longer by now than what was read: offsets alone do not tell."""
    quick = {"broker.session.timeout.ms": 1_500, "broker.heartbeat.interval.ms": 300, "replica.lag.time.max.ms": 1_500}
    with Cluster(2, quick, data_dir=tmp_path) as cluster:
        bootstrap, topic = cluster.bootstrap_servers, "cut"
        with cluster_at(bootstrap) as admin:
            configs = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
            create_topic(admin, topic, partitions=1, replication_factor=2, configs=configs)
        produce_values(bootstrap, topic, numbered(0, 50))
        leader = cluster.leader_of(topic, 0)
        (behind,) = (broker for broker in cluster.brokers if broker is not leader)
        behind.kill()
        produce_values(bootstrap, topic, numbered(50, 90))  # acknowledged when the leader is alone in sync
        options = {"subscribe": topic, "startingOffsets": "earliest"}
        end = through_json(reader_of(bootstrap, **options).latestOffset({}, ALL))
        assert end[topic] == {"0": 90}

        leader.kill()
        behind.start()
        eventually(lambda: cluster.leader_of(topic, 0) is behind, "the one that missed records leads", within_s=30)
        produce_values(bootstrap, topic, numbered(100, 160))
        strict = reader_of(bootstrap, **options)
        with pytest.raises(DataLossError, match=r"cut-0 .read up to offset 90. was cut short at offset 50"):
            strict.latestOffset(end, ALL)
        with pytest.raises(DataLossError, match="was cut short at offset 50"):
            strict.partitions({}, end)
        lenient = reader_of(bootstrap, **options, failOnDataLoss="false")
        assert ranges(lenient, {}, end) == [(0, 0, 50)]  # a batch that was not finished
        following = through_json(lenient.latestOffset(end, ALL))
        assert ranges(lenient, end, following) == [(0, 50, 110)]
        assert lenient.latestOffset(following, ALL) == following
        close_idle()
