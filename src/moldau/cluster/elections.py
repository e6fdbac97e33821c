"""Elections that somebody asked for, or that are due: preferred leaders, and leaders at the price of records.

Those that a broker's coming or going brings about are planned with it, in `controller`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from moldau.cluster.brokers import active_brokers
from moldau.cluster.partition_changes import ElectionRules, changed, each_changed, rules_by_topic
from moldau.config.broker import BrokerConfig
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.image import MetadataImage, PartitionImage
from moldau.metadata.records import PartitionRecord, Record
from moldau.wire.constants import NO_LEADER, ElectionType
from moldau.wire.topic_partition import TopicPartition

MAX_ELECTIONS_PER_REBALANCE = 1_000
"""Kafka's own bound: leaders move back in portions, between which others get their turn."""

Outcomes = dict[TopicPartition, KafkaError | None]
"""What became of each partition of a request: None where it was done."""


def elect_leaders(
    image: MetadataImage, config: BrokerConfig, election: ElectionType, partitions: Sequence[TopicPartition] | None
) -> tuple[list[Record], Outcomes]:
    """None asks for all partitions, and then those that need no election have no outcome."""
    records: list[Record] = []
    outcomes: Outcomes = {}
    rules_of = rules_by_topic(image, config)
    for name, index in _all(image) if partitions is None else dict.fromkeys(partitions):
        outcome = _elect(image, rules_of, election, TopicPartition(name, index))
        if isinstance(outcome, PartitionRecord):
            records.append(outcome)
            outcomes[TopicPartition(name, index)] = None
        elif partitions is not None or outcome.code is not ErrorCode.ELECTION_NOT_NEEDED:
            outcomes[TopicPartition(name, index)] = outcome
    return records, outcomes


def _all(image: MetadataImage) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, index) for topic in image.topics.values() for index in range(len(topic.partitions))
    ]


def _elect(
    image: MetadataImage, rules_of: Callable[[str], ElectionRules], election: ElectionType, which: TopicPartition
) -> PartitionRecord | KafkaError:
    name, index = which
    topic = image.topics.get(name)
    partition = topic.partition(index) if topic is not None else None
    if topic is None or partition is None:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    is_preferred = election is ElectionType.PREFERRED
    if partition.leader == partition.replicas[0] if is_preferred else partition.leader != NO_LEADER:
        return KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    rules = rules_of(name) if is_preferred else replace(rules_of(name), unclean=True)
    record = changed(topic.topic_id, partition, rules, preferred=is_preferred)
    if record is not None and record.leader != partition.leader:
        return record
    if is_preferred:
        return KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
    return KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available.")


def due_elections(image: MetadataImage, config: BrokerConfig) -> list[Record]:
    """Partitions that have no leader but may have one now (a topic was set to unclean elections), and ELRs that hold
    nothing back any more (`min.insync.replicas` is lower now)."""
    rules_of = rules_by_topic(image, config)
    return list(each_changed(image, rules_of, lambda one: one.leader == NO_LEADER or bool(one.elr)))


def rebalance(image: MetadataImage, config: BrokerConfig) -> list[Record]:
    """Leadership back to the preferred replicas of those brokers that lead too few of their own partitions."""
    due = _imbalanced(image, active_brokers(image, config.node_id), config.leader_imbalance_per_broker_percentage)
    records: list[Record] = []
    if not due:
        return records
    rules_of = rules_by_topic(image, config)
    for topic in image.topics.values():
        for partition in topic.partitions:
            if _is_not_preferred(partition) and partition.replicas[0] in due and partition.replicas[0] in partition.isr:
                record = changed(topic.topic_id, partition, rules_of(topic.name), preferred=True)
                if record is not None:
                    records.append(record)
                    if len(records) == MAX_ELECTIONS_PER_REBALANCE:
                        return records
    return records


def _imbalanced(image: MetadataImage, active: frozenset[int], percentage: int) -> set[int]:
    preferred: Counter[int] = Counter()
    moved: Counter[int] = Counter()
    for topic in image.topics.values():
        for partition in topic.partitions:
            preferred[partition.replicas[0]] += 1
            moved[partition.replicas[0]] += _is_not_preferred(partition)
    return {broker for broker in active if moved[broker] * 100 > preferred[broker] * percentage}


def _is_not_preferred(partition: PartitionImage) -> bool:
    return partition.leader not in (partition.replicas[0], NO_LEADER)
