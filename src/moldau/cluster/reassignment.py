"""Reassignment: a partition moves to other brokers while it is served.

The new replicas join the old ones (`adding`); once all that are to remain are in the ISR, the others (`removing`) are
dropped, by `partition_changes`. A target may be replaced while it is on its way, and cancelled, which brings back the
replicas before it. A broker has one role at most: what an earlier target added and a later one does not want is dropped
immediately, unless no other replica has the records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moldau.cluster.elections import Outcomes
from moldau.cluster.partition_changes import ElectionRules, TargetState, changed, rules_by_topic
from moldau.config.broker import BrokerConfig
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.image import MetadataImage, PartitionImage
from moldau.metadata.records import Record
from moldau.metadata.topics import check_replicas
from moldau.wire.topic_partition import TopicPartition


def reassign(
    image: MetadataImage,
    config: BrokerConfig,
    targets: Mapping[TopicPartition, Sequence[int] | None],
    *,
    allow_replication_factor_change: bool = True,
) -> tuple[list[Record], Outcomes]:
    """Starts, replaces or (None) cancels the reassignment of each partition."""
    records: list[Record] = []
    outcomes: Outcomes = {}
    rules_of = rules_by_topic(image, config)
    brokers = image.brokers or (config.node_id,)
    for (name, index), replicas in targets.items():
        topic = image.topics.get(name)
        partition = topic.partition(index) if topic is not None else None
        outcomes[TopicPartition(name, index)] = None
        try:
            if topic is None or partition is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
            rules = rules_of(name)
            if replicas is None:
                target = _cancelled(partition, rules)
            else:
                check_replicas(replicas, brokers)
                target = _towards(partition, tuple(replicas), allow_replication_factor_change)
        except KafkaError as refusal:
            outcomes[TopicPartition(name, index)] = refusal
            continue
        # Whoever says where the replicas go has also said how many there are.
        record = changed(topic.topic_id, partition, rules, target, target_factor=0)
        if record is not None:
            records.append(record)
    return records, outcomes


def list_reassignments(
    image: MetadataImage, wanted: Mapping[str, Sequence[int]] | None = None
) -> list[tuple[str, list[PartitionImage]]]:
    """Partitions on their way, by topic; of all topics, or the `wanted` partitions of each."""
    found = []
    for topic in image.topics.values() if wanted is None else filter(None, map(image.topics.get, wanted)):
        indexes = range(len(topic.partitions)) if wanted is None else dict.fromkeys(wanted[topic.name])
        partitions = [one for one in map(topic.partition, indexes) if one is not None and (one.adding or one.removing)]
        if partitions:
            found.append((topic.name, partitions))
    return found


def _towards(partition: PartitionImage, wanted: tuple[int, ...], allow_replication_factor_change: bool) -> TargetState:
    factor = len(partition.replicas) - len(partition.removing)
    if not allow_replication_factor_change and len(wanted) != factor:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor cannot change from {factor} to {len(wanted)}",
        )
    unwanted = [one for one in partition.adding if one not in wanted]
    isr = tuple(one for one in partition.isr if one not in unwanted)
    if not isr:
        isr, unwanted = partition.isr, [one for one in unwanted if one not in partition.isr]
    still_adding = [one for one in partition.adding if one in wanted]
    original = [one for one in partition.replicas if one not in unwanted and one not in still_adding]
    removing = tuple(one for one in original if one not in wanted)
    adding = tuple(one for one in wanted if one not in original)
    return TargetState(wanted + removing, isr, adding, removing)


def _cancelled(partition: PartitionImage, rules: ElectionRules) -> TargetState:
    if not partition.adding and not partition.removing:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    replicas = tuple(one for one in partition.replicas if one not in partition.adding)
    isr = tuple(one for one in partition.isr if one not in partition.adding)
    if isr:
        return TargetState(replicas, isr)
    # Only what the reassignment added has every record: to drop it is an unclean election.
    if not rules.unclean or not replicas:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Unable to revert partition assignment because it would require an unclean leader election.",
        )
    return TargetState(replicas, replicas[:1])
