"""A broker is alive, but cannot write some of its replicas: their disk is full, or failed.

It reports that itself, and loses leadership and ISR membership of those partitions, as long as another replica is in
sync: where it is the only one, its records stay readable. It needs no request to come back: a broker whose disk works
again follows, catches up, and its leaders propose it. In the words of Kafka's AssignReplicasToDirs, its replicas are in
the directory LOST.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable

from moldau.cluster.brokers import active_brokers, registered
from moldau.cluster.partition_changes import changed, rules_by_topic
from moldau.config.broker import BrokerConfig
from moldau.errors import ErrorCode
from moldau.metadata.image import MetadataImage, PartitionImage
from moldau.metadata.records import Record

Replica = tuple[uuid.UUID | None, int]
"""Topic id and partition of it."""


def lose_replicas(
    image: MetadataImage,
    config: BrokerConfig,
    broker_id: int,
    broker_epoch: int,
    replicas: Iterable[Replica],
) -> tuple[list[Record], dict[Replica, ErrorCode]]:
    """Records, and what became of each of `replicas`; STALE_BROKER_EPOCH for another epoch of the broker."""
    registered(image, broker_id, broker_epoch)
    active = active_brokers(image, config.node_id) - {broker_id}
    rules_of = rules_by_topic(image, config, active)
    records: list[Record] = []
    codes: dict[Replica, ErrorCode] = {}
    for topic_id, index in dict.fromkeys(replicas):
        code = ErrorCode.NONE
        topic = image.topic_by_id(topic_id) if topic_id is not None else None
        partition = topic.partition(index) if topic is not None else None
        if topic is None or partition is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if topic is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif broker_id not in partition.replicas:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif has_other_in_sync(partition, broker_id, active):
            record = changed(topic.topic_id, partition, rules_of(topic.name))
            if record is not None:
                records.append(record)
        codes[topic_id, index] = code
    return records, codes


def has_other_in_sync(partition: PartitionImage, broker_id: int, active: Collection[int]) -> bool:
    """Whether the broker is in sync, and another one that is active is, too."""
    return broker_id in partition.isr and any(one != broker_id and one in active for one in partition.isr)
