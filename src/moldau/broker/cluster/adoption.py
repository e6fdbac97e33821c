"""Adopts the topics of a data folder that has partitions but no metadata file, such as one of Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from uuid import UUID

from moldau.broker.cluster.incarnation import EPOCH_FILE
from moldau.cluster.controller import PRODUCER_ID_BLOCK
from moldau.coordinators.transactions.records import KINDS
from moldau.disk import Disk
from moldau.errors import ConfigError, StorageError
from moldau.log.manager import LogManager
from moldau.log.meta_properties import META_PROPERTIES
from moldau.log.partition_log import PartitionLog
from moldau.metadata.records import ConfigRecord, PartitionRecord, ProducerIdsRecord, Record, TopicRecord
from moldau.wire.batch import decode_records
from moldau.wire.constants import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from moldau.wire.state_records import StateRecords
from moldau.wire.topic_partition import TopicPartition
from moldau.wire.uuids import ZERO_UUID

_COMPACTED = frozenset({GROUPS_TOPIC, TRANSACTIONS_TOPIC})
_KEEP_ALL = ("retention.ms", "retention.bytes")
"""Apache Kafka keeps topic configurations elsewhere. Records kept forever must not go after a week."""


def refuse_folders_of_a_cluster(disk: Disk, directories: Sequence[Path]) -> None:
    """A standalone broker would adopt the partitions of a cluster as its own, and diverge from their replicas."""
    for directory in directories:
        if disk.exists(directory / EPOCH_FILE):
            raise ConfigError(
                f"{directory} belongs to a broker of a cluster: start it with moldau.metadata.dir or zookeeper.connect "
                "as before (moldau start --brokers N), or use another folder"
            )
        if any(disk.exists(directory / name / META_PROPERTIES) for name in _brokers_in(disk, directory)):
            raise ConfigError(
                f"{directory} holds the brokers of a cluster: start it with --brokers N, or use another folder"
            )


def _brokers_in(disk: Disk, directory: Path) -> list[str]:
    try:
        return [name for name in disk.names(directory) if name.startswith("broker-")]
    except OSError:
        return []  # missing, or not usable as a log directory: `LogManager.lock` says so


def refuse_folders_of_a_single_broker(disk: Disk, directories: Sequence[Path], metadata_file: str) -> None:
    """Its topics are not in the metadata of the cluster: their logs would be renamed as stray."""
    for directory in directories:
        if disk.exists(directory / metadata_file):
            raise ConfigError(
                f"{directory} holds the data of a single broker: a broker of a cluster needs another folder"
            )


def check(logs: LogManager, metadata_file: str) -> None:
    """Refuses to adopt where the metadata or some of the logs exist in another place."""
    for directory in logs.directories[1:]:
        if logs.disk.exists(directory / metadata_file):
            raise ConfigError(
                f"log.dirs: the metadata of this broker is in {directory}, which is not the first folder of the list; "
                f"put it first"
            )
    if logs.offline_dirs:
        raise StorageError(
            f"cannot adopt topics while log directory {logs.offline_dirs[0]} is offline; "
            "repair it, or take it out of log.dirs"
        )


def records_of(logs: Mapping[TopicPartition, PartitionLog], node_id: int, new_uuid: Callable[[], UUID]) -> list[Record]:
    """What the metadata would hold, had these logs been created here."""
    records: list[Record] = []
    newest_producer_id = -1
    by_topic: dict[str, list[PartitionLog]] = {}
    for (name, _), log in sorted(logs.items()):
        by_topic.setdefault(name, []).append(log)
        newest_producer_id = max(newest_producer_id, *log.producers.producers, -1)
        if name == TRANSACTIONS_TOPIC:
            newest_producer_id = max(newest_producer_id, _newest_transactional_producer(log))
    for name, partitions in by_topic.items():
        topic_id = next((log.topic_id for log in partitions if log.topic_id != ZERO_UUID), None) or new_uuid()
        records += _topic_records(name, topic_id, partitions, node_id)
    if records:
        # An id given twice would make a new producer's first batch look like a stray of an old one's.
        records.append(ProducerIdsRecord((newest_producer_id // PRODUCER_ID_BLOCK + 1) * PRODUCER_ID_BLOCK))
    return records


def _topic_records(name: str, topic_id: UUID, partitions: list[PartitionLog], node_id: int) -> list[Record]:
    found = [log.partition for log in partitions]
    if found != list(range(len(partitions))):
        raise StorageError(
            f"cannot adopt topic {name}: of its partitions only {found} are in log.dirs. "
            "A broker of a larger cluster holds a part of the data; only the folders of a single broker can move in."
        )
    # A leader epoch that the log has not seen: what we append is told from what the former leader wrote.
    return [
        TopicRecord(name, topic_id),
        *(
            PartitionRecord(
                topic_id, log.partition, (node_id,), (node_id,), node_id, leader_epoch=log.epochs.latest + 1
            )
            for log in partitions
        ),
        *(ConfigRecord("topic", name, key, "-1") for key in _KEEP_ALL),
        *([ConfigRecord("topic", name, "cleanup.policy", "compact")] if name in _COMPACTED else []),
    ]


def _newest_transactional_producer(log: PartitionLog) -> int:
    """A transactional id may have a producer id whose records are long gone from every partition."""
    newest = -1
    kinds = StateRecords(KINDS)
    for segment in log.segments:
        for _, header, batch in segment.batches_from(segment.base_offset):
            for record in () if header.is_control else decode_records(batch, 0, header):
                pair = kinds.decode(record.key or b"", record.value)
                if pair is not None and pair[1] is not None:
                    newest = max(newest, pair[1].producer_id, pair[1].next_producer_id)
    return newest
