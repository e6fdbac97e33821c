"""Broker keys of which a cluster has one value, kept in its metadata: `min.insync.replicas`.

Two brokers decide by this key. The leader commits a record once so many replicas have it; the controller lets a replica
that left the ISR stay eligible for leadership (ELR, KIP-966) while the ISR is smaller than that, because leaders commit
nothing then. With a leader that goes by 1 and a controller that goes by 2, the leader commits alone and the controller
elects a replica without those records: acknowledged records are lost in a clean election. So both take the value from
the metadata image, as in Kafka with eligible leader replicas:

- The first controller of a cluster writes the value of its own file as the default of all brokers. From then on that
  record counts, and the files do not; each broker whose file says something else warns when it starts.
- The value of a single broker cannot be altered, and the cluster's cannot be removed. A leftover of the former is
  removed by the next controller, and ignored until then (`BrokerConfig`).
- Topics may override it: a topic has one configuration on all brokers anyway.
- Whoever changes the value also rewrites the ELRs of the topics concerned (`elrs_with_min_isr`). A leader learns of the
  new value no later than of any ISR that was made under it, because it applies records in order and takes a smaller ISR
  from them only (`cluster.replica`).

A broker without a cluster has no other to disagree with: there, the file counts until the key is set dynamically.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moldau.config.broker import CLUSTER_WIDE, BrokerConfig, value_text
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import ConfigRecord, PartitionRecord, Record


def initial_records(image: MetadataImage, config: BrokerConfig) -> list[Record]:
    """What a new controller writes, once: its own value where the cluster has none, and no value of single brokers."""
    records: list[Record] = []
    for key in CLUSTER_WIDE:
        if key not in image.broker_config(None):
            records.append(ConfigRecord("broker", "", key, value_text(config.get(key))))
        records += [
            ConfigRecord(resource_type, name, key, None)
            for (resource_type, name), values in image.configs.items()
            if resource_type == "broker" and name and key in values
        ]
    return [*records, *_without_elrs(image)] if records else records


def _without_elrs(image: MetadataImage) -> Iterator[PartitionRecord]:
    """Until the cluster had one value, leaders may have committed by other values than the ELRs were made by."""
    for topic in image.topics.values():
        for partition in topic.partitions:
            if partition.elr:
                yield partition.record(topic.topic_id, elr=(), partition_epoch=partition.partition_epoch + 1)


def elrs_with_min_isr(before: MetadataImage, after: MetadataImage, config: BrokerConfig) -> Iterator[PartitionRecord]:
    """The partitions with an ELR in topics whose minimum differs between the images, under the new minimum.

    A replica is eligible because leaders committed nothing since it left the ISR: that was below the minimum.

    - The ISR is below the new minimum, too: always after the minimum was raised, often after it was lowered. Leaders
      still commit nothing, so the ELR stays. To clear it would lose records: if the last member of the ISR comes back
      with part of its log, it would lead although an eligible replica has everything.
    - The ISR has as many members as the new minimum asks for, because it was lowered. The leader commits from now on
      what eligible replicas do not have, so the ELR is cleared. If the leader's machine is already dead and the
      controller has not noticed, the replicas that have everything are no longer known; nobody can tell the two cases
      apart at this moment.

    An ELR that stays is written with a new partition epoch. Otherwise a leader that does not know of a higher minimum
    yet could add a replica to its ISR, find as many members as the lower one asks for, and commit what those who are
    still eligible under the higher one do not have. With the new epoch the controller refuses its change until the
    leader has applied this record, and with it the new minimum.

    Kafka clears every ELR of the topic instead, or of the whole cluster when the broker default changes.
    """
    for name, topic in after.topics.items():
        minimum = min_insync_replicas(after, config, name)
        if minimum == min_insync_replicas(before, config, name):
            continue
        for partition in topic.partitions:
            if partition.elr:
                commits = len(partition.isr) >= effective_min_isr(minimum, partition.replicas, partition.adding)
                elr = () if commits else partition.elr
                yield partition.record(topic.topic_id, elr=elr, partition_epoch=partition.partition_epoch + 1)


def min_insync_replicas(image: MetadataImage, config: BrokerConfig, topic: str) -> int:
    """The topic's own value or the cluster's; that of `config` where neither is set."""
    key = "min.insync.replicas"
    value = image.topic_config(topic).get(key, image.broker_config(None).get(key))
    return config.min_insync_replicas if value is None else int(value)


def effective_min_isr(min_insync_replicas: int, replicas: Sequence[int], adding: Sequence[int]) -> int:
    """How many replicas have to be in sync for acks=all: the leader and the controller must agree on it.

    Never more than there are, as in Kafka. Those that a reassignment is adding do not count, unlike in Kafka: a
    partition that grows from one replica to three stays writable while the new ones catch up.
    """
    return min(min_insync_replicas, max(1, len(replicas) - len(adding)))


def ignored_values(image: MetadataImage, config: BrokerConfig) -> list[str]:
    """A warning for each key to which this broker's own file gives another value than the cluster has."""
    cluster = image.broker_config(None)
    return [
        f"{key}={config.originals[key]} in this broker's configuration is ignored: the cluster uses {cluster[key]}. "
        f"Make them equal, or change the cluster's with: kafka-configs --alter --entity-type brokers --entity-default "
        f"--add-config {key}={config.originals[key]}"
        for key in CLUSTER_WIDE
        if key in cluster and config.originals.get(key, cluster[key]).strip() != cluster[key].strip()
    ]
