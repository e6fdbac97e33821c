"""A partition's name: Kafka's text, and a tuple as a key."""

from __future__ import annotations

from moldau.wire.topic_partition import TopicPartition


def test_a_partition_is_named_as_kafka_names_it_and_is_found_by_topic_and_number() -> None:
    assert f"{TopicPartition('orders', 3)}" == "orders-3"
    by_partition: dict[tuple[str, int], int] = {TopicPartition("orders", 3): 7}
    assert by_partition["orders", 3] == 7
