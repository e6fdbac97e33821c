"""AlterPartition: the leader of a partition reports another ISR, and the controller takes it or refuses.

A leader with older metadata than the controller gets an error code for each case; a broker that cannot be in an ISR now
(fenced, about to shut down, or with another epoch than the leader saw) is INELIGIBLE_REPLICA.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moldau.cluster.brokers import registered
from moldau.cluster.partition_changes import TargetState, changed, rules_by_topic
from moldau.config.broker import BrokerConfig
from moldau.errors import ErrorCode
from moldau.metadata.image import MetadataImage, PartitionImage
from moldau.metadata.records import PartitionRecord, Record

UNCHECKED_EPOCH = -1
"""A leader that uses version 2 does not know the epochs of its followers."""


@dataclass(frozen=True, slots=True)
class IsrChangeRequest:
    """What a leader wants; the new ISR is of (broker id, broker epoch or -1)."""

    topic_id: uuid.UUID | None
    index: int
    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[tuple[int, int], ...]
    is_recovering: bool = False


IsrOutcome = PartitionRecord | ErrorCode
"""The partition as it is now, or why it stays as it was (but for NEW_LEADER_ELECTED, with which it did change)."""


def alter_partition(
    image: MetadataImage, config: BrokerConfig, broker_id: int, broker_epoch: int, changes: Sequence[IsrChangeRequest]
) -> tuple[list[Record], list[IsrOutcome]]:
    """Records, and an outcome for each of `changes`; STALE_BROKER_EPOCH for another epoch of the broker."""
    registered(image, broker_id, broker_epoch)
    rules_of = rules_by_topic(image, config)
    records: list[Record] = []
    outcomes: list[IsrOutcome] = []
    seen: set[tuple[uuid.UUID, int]] = set()
    for change in changes:
        topic = image.topic_by_id(change.topic_id) if change.topic_id is not None else None
        if topic is None:
            outcomes.append(ErrorCode.UNKNOWN_TOPIC_ID)
            continue
        partition = topic.partition(change.index)
        refusal = _refusal(image, broker_id, partition, change)
        if refusal is None and (topic.topic_id, change.index) in seen:
            refusal = ErrorCode.INVALID_REQUEST
        if partition is None or refusal is not None:
            outcomes.append(refusal or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        seen.add((topic.topic_id, change.index))
        isr = tuple(id_ for id_, _ in change.new_isr)
        target = TargetState(partition.replicas, isr, partition.adding, partition.removing)
        record = changed(topic.topic_id, partition, rules_of(topic.name), target)
        if record is None:
            outcomes.append(partition.record(topic.topic_id))
            continue
        records.append(record)
        # A completed reassignment may have taken the leadership from who asked: it has to read the metadata first.
        outcomes.append(record if record.leader == broker_id else ErrorCode.NEW_LEADER_ELECTED)
    return records, outcomes


def _refusal(
    image: MetadataImage, broker_id: int, partition: PartitionImage | None, change: IsrChangeRequest
) -> ErrorCode | None:
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if change.leader_epoch > partition.leader_epoch or change.partition_epoch > partition.partition_epoch:
        return ErrorCode.NOT_CONTROLLER  # the leader knows of a later controller
    if change.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if partition.leader != broker_id:
        return ErrorCode.INVALID_REQUEST
    if change.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    isr = [id_ for id_, _ in change.new_isr]
    is_set_of_replicas = len(set(isr)) == len(isr) and set(isr).issubset(partition.replicas)
    # A leader after an unclean election recovers nothing here, so it never says that it does.
    if not is_set_of_replicas or partition.leader not in isr or change.is_recovering:
        return ErrorCode.INVALID_REQUEST
    return None if _all_eligible(image, change.new_isr) else ErrorCode.INELIGIBLE_REPLICA


def _all_eligible(image: MetadataImage, isr: Iterable[tuple[int, int]]) -> bool:
    for broker_id, epoch in isr:
        broker = image.brokers.get(broker_id)
        if broker is None or not broker.is_active:
            return False
        if epoch not in (UNCHECKED_EPOCH, broker.broker_epoch):
            return False
    return True
