"""State topics (`__consumer_offsets` and its like) that were created on fewer brokers than their replication factor.

The first client that needs one decides when it is created, which may be before the other brokers have joined. Its
partitions remember how many replicas they are to have (`target_factor`) and get them as brokers join. A reassignment by
a user ends that, whatever number of replicas it asks for.
"""

from __future__ import annotations

from moldau.cluster.partition_changes import TargetState, changed, rules_by_topic
from moldau.config.broker import BrokerConfig
from moldau.metadata.image import MetadataImage, TopicImage
from moldau.metadata.placement import UsableBroker, extend, usable_brokers
from moldau.metadata.records import PartitionRecord
from moldau.wire.constants import INTERNAL_TOPICS


def grow(image: MetadataImage, config: BrokerConfig) -> list[PartitionRecord]:
    """Adds replicas on the brokers that are active now, as far as there are enough."""
    topics = [image.topics[name] for name in sorted(INTERNAL_TOPICS) if name in image.topics]
    brokers = usable_brokers(image, config.node_id)
    return [record for topic in topics for record in _grow(image, config, topic, brokers)]


def _grow(
    image: MetadataImage, config: BrokerConfig, topic: TopicImage, brokers: list[UsableBroker]
) -> list[PartitionRecord]:
    rules = rules_by_topic(image, config)(topic.name)
    placed = {one.index: one.replicas for one in topic.partitions}
    records = []
    for partition in topic.partitions:
        if not partition.target_factor or partition.adding or partition.removing:
            continue
        others = [replicas for index, replicas in placed.items() if index != partition.index]
        replicas = extend(brokers, partition.replicas, partition.target_factor, others)
        adding = tuple(one for one in replicas if one not in partition.replicas)
        if not adding:
            continue
        placed[partition.index] = replicas
        still_short = partition.target_factor if len(replicas) < partition.target_factor else 0
        target = TargetState(replicas, partition.isr, adding)
        record = changed(topic.topic_id, partition, rules, target, target_factor=still_short)
        if record is not None:
            records.append(record)
    return records
