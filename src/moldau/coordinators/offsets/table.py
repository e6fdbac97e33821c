"""The offsets that the groups of one shard have committed, and those that wait for a transaction to end.

Everything goes through `apply`, one record at a time in the order of the log, be it just made or read back while
loading: so memory is always what replaying the partition gives.

    a plain commit            takes its place at once
    a transactional commit    is pending, by producer id, until that producer's marker comes
    a commit marker           makes the producer's pending offsets current, but never over a commit that was written
                              after them: compaction keeps the newest record of a key, so memory must, too
    an abort marker           drops them
    a tombstone               removes the offset, and whatever is pending for it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from moldau.coordinators.offsets.records import OffsetCommitKey, OffsetCommitValue
from moldau.wire.batch import NO_PRODUCER_ID
from moldau.wire.topic_partition import TopicPartition


class _Entry(NamedTuple):
    order: int
    """Of two records, the one written later has the higher number."""
    value: OffsetCommitValue


_Offsets = dict[TopicPartition, _Entry]


class OffsetTable:
    def __init__(self) -> None:
        self._order = 0
        self._committed: dict[str, _Offsets] = {}
        self._pending: dict[int, dict[OffsetCommitKey, _Entry]] = {}
        self._open: dict[str, dict[TopicPartition, set[int]]] = {}
        """By group and partition, the producers with a pending offset: the same as `_pending`, seen from the group."""
        self._topics: Counter[str] = Counter()
        """How many offsets, current and pending, each topic has: to see at a glance which deleted topic matters."""

    # -- changing

    def apply(self, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int = NO_PRODUCER_ID) -> None:
        self._order += 1
        if value is None:
            self._remove(key)
        elif producer_id == NO_PRODUCER_ID:
            self._set(key, _Entry(self._order, value))
        else:
            self._set_pending(producer_id, key, _Entry(self._order, value))

    def complete(self, producer_id: int, committed: bool) -> None:
        """The producer's transaction has ended."""
        for key, entry in self._pending.pop(producer_id, {}).items():
            self._close(key, producer_id)
            if not committed:
                continue
            current = self._committed.get(key.group, {}).get(TopicPartition(key.topic, key.partition))
            if current is None or current.order < entry.order:
                self._set(key, entry)

    def _set(self, key: OffsetCommitKey, entry: _Entry) -> None:
        offsets = self._committed.setdefault(key.group, {})
        partition = TopicPartition(key.topic, key.partition)
        if partition not in offsets:
            self._topics[key.topic] += 1
        offsets[partition] = entry

    def _set_pending(self, producer_id: int, key: OffsetCommitKey, entry: _Entry) -> None:
        pending = self._pending.setdefault(producer_id, {})
        if key not in pending:
            self._topics[key.topic] += 1
            partition = TopicPartition(key.topic, key.partition)
            self._open.setdefault(key.group, {}).setdefault(partition, set()).add(producer_id)
        pending[key] = entry

    def _remove(self, key: OffsetCommitKey) -> None:
        partition = TopicPartition(key.topic, key.partition)
        offsets = self._committed.get(key.group, {})
        if offsets.pop(partition, None) is not None:
            self._forget_topic(key.topic)
            if not offsets:
                del self._committed[key.group]
        for producer_id in tuple(self._open.get(key.group, {}).get(partition, ())):
            del self._pending[producer_id][key]
            self._close(key, producer_id)

    def _close(self, key: OffsetCommitKey, producer_id: int) -> None:
        """The producer has nothing pending for this key any more."""
        self._forget_topic(key.topic)
        of_group = self._open[key.group]
        partition = TopicPartition(key.topic, key.partition)
        producers = of_group[partition]
        producers.remove(producer_id)
        if not producers:
            del of_group[partition]
            if not of_group:
                del self._open[key.group]

    def _forget_topic(self, topic: str) -> None:
        self._topics[topic] -= 1
        if not self._topics[topic]:
            del self._topics[topic]

    # -- reading

    def get(self, group_id: str, topic: str, partition: int) -> OffsetCommitValue | None:
        entry = self._committed.get(group_id, {}).get(TopicPartition(topic, partition))
        return entry.value if entry is not None else None

    def of_group(self, group_id: str) -> Iterator[tuple[TopicPartition, OffsetCommitValue]]:
        for partition, entry in self._committed.get(group_id, {}).items():
            yield partition, entry.value

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        return (topic, partition) in self._open.get(group_id, {})

    def holds(self, key: OffsetCommitKey) -> bool:
        """Whether there is such an offset, current or pending."""
        partition = TopicPartition(key.topic, key.partition)
        return partition in self._committed.get(key.group, {}) or partition in self._open.get(key.group, {})

    def has_any(self, group_id: str) -> bool:
        """Current or pending."""
        return group_id in self._committed or group_id in self._open

    def groups(self) -> set[str]:
        """Every group that has an offset, be it pending."""
        return self._committed.keys() | self._open.keys()

    def keys(self, group_id: str) -> list[OffsetCommitKey]:
        """The keys of all offsets of the group, pending ones included, for tombstones."""
        partitions = self._committed.get(group_id, {}).keys() | self._open.get(group_id, {}).keys()
        return [OffsetCommitKey(group_id, topic, partition) for topic, partition in sorted(partitions)]

    def keys_of_topics(self, is_gone: Callable[[str], bool]) -> list[OffsetCommitKey]:
        """The keys of all offsets of deleted topics."""
        gone = {topic for topic in self._topics if is_gone(topic)}
        if not gone:
            return []
        return [key for group_id in self.groups() for key in self.keys(group_id) if key.topic in gone]
