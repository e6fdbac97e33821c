"""Planning of topics: what records a change of topics or partitions needs, or why it is refused.

Pure functions over an image, with Kafka's error codes and messages in Kafka's words; nothing is stored here.
Dynamic configuration is planned in `configs`, where replicas go in `placement`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Mapping, Sequence

from moldau.config.broker import BrokerConfig
from moldau.config.topic import validate_topic_overrides
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.image import MetadataImage, TopicImage, unified_name
from moldau.metadata.placement import UsableBroker, next_of_topic, place, usable_brokers
from moldau.metadata.records import (
    ConfigRecord,
    PartitionRecord,
    Record,
    RemoveTopicRecord,
    TopicRecord,
)
from moldau.wire.constants import INTERNAL_TOPICS

# Kafka's limit: one request must not flood the metadata log and every broker's disk with directories.
MAX_PARTITIONS_PER_REQUEST = 10_000

_MAX_NAME_LENGTH = 249  # leaves room for "-<partition>" and ".<unique>-delete" in a 255 byte file name
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")

# A partition's index and its replicas, the first being the preferred leader.
Assignment = tuple[int, Sequence[int]]


def is_internal(name: str) -> bool:
    return name in INTERNAL_TOPICS


def validate_topic_name(name: str) -> None:
    if not name:
        problem = "the empty string is not allowed"
    elif name in (".", ".."):
        problem = f"'{name}' is not allowed"
    elif len(name) > _MAX_NAME_LENGTH:
        problem = f"the length of '{name}' is longer than the max allowed length {_MAX_NAME_LENGTH}"
    elif not _LEGAL_NAME.fullmatch(name):
        problem = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def plan_create_topic(
    image: MetadataImage,
    name: str,
    *,
    topic_id: uuid.UUID,
    broker_config: BrokerConfig,
    num_partitions: int = -1,
    replication_factor: int = -1,
    assignments: Sequence[Assignment] = (),
    configs: Mapping[str, str | None] | None = None,
) -> list[Record]:
    """Records of a new topic; -1 takes the broker's default.

    A state topic is made with fewer replicas where the brokers are too few, and grows when more join
    (`cluster.state_topics`): no group could work before.
    """
    if name in image.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    validate_topic_name(name)
    _check_collision(image, name)
    overrides = dict(configs or {})
    validate_topic_overrides(overrides, broker_config)
    brokers = usable_brokers(image, broker_config.node_id)
    target_factor = 0
    if assignments:
        if replication_factor != -1:
            raise _invalid_request(
                "A manual partition assignment was specified, but replication factor was not set to -1."
            )
        if num_partitions != -1:
            raise _invalid_request("A manual partition assignment was specified, but numPartitions was not set to -1.")
        placed = _check_assignments(assignments, brokers)
    else:
        count, factor = _size(num_partitions, replication_factor, broker_config)
        if is_internal(name) and factor > len(brokers):
            target_factor, factor = factor, len(brokers)
        # Each topic begins where the ones before it ended, so that leaders spread evenly without a random number.
        placed = place(brokers, image.partition_count, count, factor)
    check_partition_count(len(placed))
    records: list[Record] = [TopicRecord(name, topic_id)]
    records.extend(ConfigRecord("topic", name, key, value) for key, value in overrides.items())
    records.extend(_partition_records(topic_id, 0, placed, brokers, target_factor))
    return records


def plan_create_partitions(
    image: MetadataImage,
    name: str,
    count: int,
    *,
    broker_config: BrokerConfig,
    assignments: Sequence[Sequence[int]] | None = None,
) -> list[Record]:
    """Records that bring the topic up to `count` partitions; `assignments` place the new ones."""
    topic = _existing(image, name)
    current = len(topic.partitions)
    if count == current:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
    if count < current:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {name} currently has {current} partition(s); {count} would not be an increase.",
        )
    additional = count - current
    check_partition_count(additional)
    replication_factor = len(topic.partitions[0].replicas)
    brokers = usable_brokers(image, broker_config.node_id)
    if assignments is not None:
        if len(assignments) != additional:
            raise _invalid_assignment(
                f"Attempted to add {additional} additional partition(s), but only {len(assignments)} "
                "assignment(s) were specified."
            )
        for replicas in assignments:
            check_replicas(replicas, [broker.broker_id for broker in brokers], replication_factor)
        placed = [tuple(replicas) for replicas in assignments]
    else:
        first = next_of_topic(brokers, topic.partitions[0].replicas[0], current)
        placed = place(brokers, first, additional, replication_factor)
    return list(_partition_records(topic.topic_id, current, placed, brokers))


def plan_delete_topic(image: MetadataImage, topic: str | uuid.UUID | bytes) -> list[Record]:
    """Records that remove a topic, named or given by id."""
    if isinstance(topic, str):
        return [RemoveTopicRecord(_existing(image, topic).topic_id)]
    found = image.topic_by_id(topic)
    if found is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    return [RemoveTopicRecord(found.topic_id)]


def check_partition_count(total: int) -> None:
    """Refuse a request, or a topic, that asks for more partitions than one request may."""
    if total > MAX_PARTITIONS_PER_REQUEST:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"Excessively large number of partitions per request: {total} > {MAX_PARTITIONS_PER_REQUEST}.",
        )


def _existing(image: MetadataImage, name: str) -> TopicImage:
    topic = image.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    return topic


def _check_collision(image: MetadataImage, name: str) -> None:
    unified = unified_name(name)
    if unified is not None and unified in image.alike:
        other = image.alike[unified][0]
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")


def _size(num_partitions: int, replication_factor: int, broker_config: BrokerConfig) -> tuple[int, int]:
    """How many partitions of how many replicas are asked for."""
    if replication_factor < -1 or replication_factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if num_partitions < -1 or num_partitions == 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    count = broker_config.num_partitions if num_partitions == -1 else num_partitions
    check_partition_count(count)
    return count, broker_config.default_replication_factor if replication_factor == -1 else replication_factor


def _check_assignments(assignments: Sequence[Assignment], brokers: Sequence[UsableBroker]) -> list[tuple[int, ...]]:
    broker_ids = [broker.broker_id for broker in brokers]
    by_index: dict[int, tuple[int, ...]] = {}
    replication_factor = None
    for index, replicas in assignments:
        if index in by_index:
            raise _invalid_assignment(f"Found multiple manual partition assignments for partition {index}")
        check_replicas(replicas, broker_ids, replication_factor)
        replication_factor = len(replicas)
        by_index[index] = tuple(replicas)
    if set(by_index) != set(range(len(by_index))):
        raise _invalid_assignment("partitions should be a consecutive 0-based integer sequence")
    return [by_index[index] for index in range(len(by_index))]


def check_replicas(replicas: Sequence[int], brokers: Collection[int], replication_factor: int | None = None) -> None:
    problem = None
    if not replicas:
        problem = "an empty replica list."
    for broker_id in sorted(replicas):
        if broker_id not in brokers:
            problem = f"broker {broker_id}, but no such broker is registered."
        elif replicas.count(broker_id) > 1:
            problem = f"the broker {broker_id} more than once."
        if problem:
            break
    if problem is None and replication_factor is not None and len(replicas) != replication_factor:
        problem = (
            f"a partition with {len(replicas)} replica(s), but this is not consistent with previous "
            f"partitions, which have {replication_factor} replica(s)."
        )
    if problem is not None:
        raise _invalid_assignment(f"The manual partition assignment includes {problem}")


def _partition_records(
    topic_id: uuid.UUID,
    first: int,
    placed: Sequence[tuple[int, ...]],
    brokers: Sequence[UsableBroker],
    target_factor: int = 0,
) -> list[PartitionRecord]:
    active = {broker.broker_id for broker in brokers if broker.is_active}
    records = []
    for index, replicas in enumerate(placed, first):
        isr = tuple(broker_id for broker_id in replicas if broker_id in active)
        if not isr:
            raise _invalid_assignment(
                f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
                "controlled shutdown."
            )
        records.append(PartitionRecord(topic_id, index, replicas, isr, leader=isr[0], target_factor=target_factor))
    return records


def _invalid_request(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _invalid_assignment(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
