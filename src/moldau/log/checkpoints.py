"""Kafka's small text files: offsets per partition, leader epochs, a topic's id. Replaced whole, never edited.

A checkpoint is a version line, a count, then one entry a line. What the numbers mean, the callers decide.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from moldau.disk import Disk, read_file, replace_file, write_file
from moldau.errors import CorruptFileError
from moldau.wire.topic_partition import TopicPartition
from moldau.wire.uuids import ZERO_UUID, uuid_from_text, uuid_to_text

RECOVERY_POINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET = "log-start-offset-checkpoint"
REPLICATION_OFFSET = "replication-offset-checkpoint"  # the high watermarks
CLEANER_OFFSET = "cleaner-offset-checkpoint"  # the first dirty offsets of compacted logs
LEADER_EPOCH = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

_VERSION = "0"


def format_checkpoint(lines: Iterable[str]) -> bytes:
    entries = list(lines)
    return "\n".join([_VERSION, str(len(entries)), *entries, ""]).encode()


def read_checkpoint(disk: Disk, path: Path, fields: int) -> list[list[str]]:
    """The entries, split into `fields` words each; empty when the file is missing or empty."""
    try:
        lines = read_file(disk, path).decode().splitlines()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"{path} is not text: {error}") from error
    if len(lines) < 2:
        return []
    if lines[0] != _VERSION:
        raise CorruptFileError(f"{path} has version {lines[0]!r}, expected {_VERSION}")
    entries = [line.split() for line in lines[2:]]
    for number, entry in enumerate(entries, start=3):
        if len(entry) != fields:
            raise CorruptFileError(f"{path}, line {number}: expected {fields} words, found {' '.join(entry)!r}")
    if lines[1] != str(len(entries)):
        raise CorruptFileError(f"{path} has {len(entries)} entries, its second line says {lines[1]}")
    return entries


def write_offsets(disk: Disk, path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    lines = (f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())
    replace_file(disk, path, format_checkpoint(lines))


def read_offsets(disk: Disk, path: Path) -> dict[TopicPartition, int]:
    entries = read_checkpoint(disk, path, fields=3)
    try:
        return {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in entries}
    except ValueError as error:
        raise CorruptFileError(f"{path}: {error}") from error


def write_partition_metadata(disk: Disk, directory: Path, topic_id: uuid.UUID) -> None:
    text = f"version: 0\ntopic_id: {uuid_to_text(topic_id)}"
    replace_file(disk, directory / PARTITION_METADATA, text.encode(), sync=False)


def read_partition_metadata(disk: Disk, directory: Path) -> uuid.UUID:
    """The topic's id; the zero id for a partition without the file, as Kafka before 2.8 left it."""
    path = directory / PARTITION_METADATA
    try:
        text = read_file(disk, path).decode(errors="replace")
    except FileNotFoundError:
        return ZERO_UUID
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    try:
        return uuid_from_text(fields["topic_id"].strip())
    except (KeyError, ValueError) as error:
        raise CorruptFileError(f"{path} has no topic id: {error}") from error


def write_clean_shutdown(disk: Disk, directory: Path, broker_epoch: int) -> None:
    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    write_file(disk, directory / CLEAN_SHUTDOWN, content.encode(), sync=True)


def take_clean_shutdown(disk: Disk, directory: Path) -> bool:
    """Whether the last shutdown was clean. Removes the file: a crash from now on must not look clean."""
    path = directory / CLEAN_SHUTDOWN
    clean = disk.exists(path)
    disk.remove(path)
    if clean:
        disk.sync(directory)  # or the file would be back after a power loss
    return clean
