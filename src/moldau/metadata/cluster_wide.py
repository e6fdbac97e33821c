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
- Whoever changes the value clears all ELRs in the same write (`configs`). A leader learns of the new value no later
  than of any ISR that was made under it, because it applies records in order and takes a smaller ISR from them only
  (`cluster.replica`).

A broker without a cluster has no other to disagree with: there, the file counts until the key is set dynamically.
"""

from __future__ import annotations

from moldau.config.broker import CLUSTER_WIDE, BrokerConfig, value_text
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import ConfigRecord, PartitionRecord, Record


def settling_records(image: MetadataImage, config: BrokerConfig) -> list[Record]:
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
    return [*records, *without_elrs(image)] if records else records


def without_elrs(image: MetadataImage, topic: str | None = None) -> list[PartitionRecord]:
    """Who was eligible to lead under the old minimum may lack what is committed under the new one."""
    topics = image.topics.values() if topic is None else (image.topics[topic],)
    return [
        partition.record(each.topic_id, elr=(), partition_epoch=partition.partition_epoch + 1)
        for each in topics
        for partition in each.partitions
        if partition.elr
    ]


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
