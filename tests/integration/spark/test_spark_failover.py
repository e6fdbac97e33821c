"""Leaders and coordinators move while a query runs: it goes on, and every row arrives once."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from pyspark.sql import SparkSession

from moldau import Cluster
from tests.integration.conftest import make_topic
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
            if message.error() is None:
                found.append(int(message.value() or b""))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
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
