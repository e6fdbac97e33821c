"""A partition as the broker serves it: its log, who leads it, and the fetches that wait for its next record."""

from __future__ import annotations

from typing import Protocol

from moldau.errors import ErrorCode, KafkaError
from moldau.log.partition_log import AppendInfo, PartitionLog
from moldau.log.producer_state import AppendOrigin
from moldau.metadata.image import PartitionImage
from moldau.metadata.topics import is_internal


class WaitingFetch(Protocol):
    committed: bool

    def more(self, byte_count: int) -> None: ...


ENOUGH_BYTES = 2**31
"""More than any fetch can wait for."""


class Partition:
    __slots__ = ("index", "is_internal", "leader_epoch", "log", "topic", "topic_id", "waiting")

    def __init__(self, topic: str, topic_id: bytes, image: PartitionImage, log: PartitionLog) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.is_internal = is_internal(topic)
        self.index = image.index
        self.leader_epoch = image.leader_epoch
        self.log = log
        self.waiting: set[WaitingFetch] = set()

    def append(self, records: memoryview, now_ms: int, origin: AppendOrigin = AppendOrigin.CLIENT) -> AppendInfo:
        log = self.log
        stable_before = log.last_stable_offset
        info = log.append(records, leader_epoch=self.leader_epoch, now_ms=now_ms, origin=origin)
        if self.waiting:
            self.wake(len(records), self._newly_stable(stable_before, info, len(records)))
        return info

    def _newly_stable(self, stable_before: int, info: AppendInfo, byte_count: int) -> int:
        """How many bytes an append of `byte_count` gave to readers of committed records."""
        stable = self.log.last_stable_offset
        if stable == stable_before:
            return 0  # part of an open transaction, or behind one
        # A transaction that ends sets everything free that came since its beginning.
        return byte_count if stable_before == info.base_offset else ENOUGH_BYTES

    def wake(self, byte_count: int, stable_byte_count: int) -> None:
        """Tells the fetches that wait here of new bytes, and how many of them readers of committed records may see."""
        for fetch in tuple(self.waiting):
            fetch.more(stable_byte_count if fetch.committed else byte_count)

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """A client that knows another leader epoch than ours has to refresh its metadata first."""
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
