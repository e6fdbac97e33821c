"""A partition as the broker serves it: its log, who leads it, and the fetches that wait for its next record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.errors import ErrorCode, KafkaError
from moldau.log.partition_log import AppendInfo, PartitionLog
from moldau.log.producer_state import AppendOrigin
from moldau.metadata.image import PartitionImage

if TYPE_CHECKING:
    from moldau.broker.delayed_fetch import DelayedFetch


class Partition:
    __slots__ = ("index", "leader_epoch", "log", "topic", "topic_id", "waiting")

    def __init__(self, topic: str, topic_id: bytes, image: PartitionImage, log: PartitionLog) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = image.index
        self.leader_epoch = image.leader_epoch
        self.log = log
        self.waiting: set[DelayedFetch] = set()

    def append(self, records: memoryview, now_ms: int, origin: AppendOrigin = AppendOrigin.CLIENT) -> AppendInfo:
        info = self.log.append(records, leader_epoch=self.leader_epoch, now_ms=now_ms, origin=origin)
        if self.waiting:
            self.wake(len(records))
        return info

    def wake(self, byte_count: int) -> None:
        """Tells the fetches that wait here of `byte_count` new readable bytes."""
        for fetch in tuple(self.waiting):
            fetch.more(byte_count)

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """A client that knows another leader epoch than ours has to refresh its metadata first."""
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
