"""Replication on this broker: which partitions it follows and where, and what it asks the controller about its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from moldau.broker.partition import Partition
from moldau.cluster.replica import UNKNOWN_EPOCH, IsrChange

if TYPE_CHECKING:
    from moldau.broker.node import BrokerNode


class ReplicaManager:
    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self.loop: asyncio.AbstractEventLoop = node.loop
        self.clock: Callable[[], int] = node.clock

    @property
    def broker_id(self) -> int:
        return self._node.node_id

    @property
    def lag_time_max_ms(self) -> int:
        return self._node.config.replica_lag_time_max_ms

    def is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether that life of the broker may join an ISR: alive, staying, and the one that is registered."""
        broker = self._node.image.brokers.get(broker_id)
        if broker is None or broker.fenced or broker.in_controlled_shutdown:
            return False
        return broker_epoch in (UNKNOWN_EPOCH, broker.broker_epoch)

    def follow(self, changed: Sequence[Partition]) -> None:
        """After each change of the image: the partitions that are led or followed in another way now."""

    def propose(self, partition: Partition, change: IsrChange) -> None:
        """Asks the controller for another ISR."""

    def stop(self) -> None:
        """Follows nothing any more, and asks for nothing."""
