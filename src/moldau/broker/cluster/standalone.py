"""Membership of a broker without a cluster: it is its own controller, and its metadata is a file beside its logs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from moldau.broker.cluster import adoption
from moldau.broker.cluster.controller_shell import ControllerShell
from moldau.broker.cluster.leader_lease import NoLease
from moldau.broker.cluster.local_broker import LocalBroker
from moldau.broker.cluster.metadata_cache import MetadataCache
from moldau.log.manager import LogManager
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import BrokerRecord, Record, RemoveBrokerRecord
from moldau.metadata.stores.local_store import LocalStore

logger = logging.getLogger(__name__)

METADATA_FILE = "moldau-metadata.jsonl"
"""In the first of `log.dirs`, beside the partitions it describes; in a cluster, in the folder its brokers share."""


class Standalone:
    def __init__(
        self,
        me: LocalBroker,
        metadata: MetadataCache,
        controller: ControllerShell,
        logs: LogManager,
        new_uuid: Callable[[], UUID],
    ) -> None:
        self.lease = NoLease()
        self._me = me
        self._metadata = metadata
        self._controller = controller
        self._logs = logs
        self._new_uuid = new_uuid

    def open(self) -> None:
        """Locks the log directories and applies the first image. Blocks."""
        logs = self._logs
        adoption.refuse_folders_of_a_cluster(logs.disk, logs.directories)
        logs.lock()
        logs.check_in()
        self._metadata.begin_with(
            self._controller.open_alone(LocalStore(logs.directories[0] / METADATA_FILE, disk=logs.disk))
        )

    def adopt(self) -> None:
        """Takes over the topics of a data folder that has no metadata, as Apache Kafka leaves one. Blocks."""
        logs = self._logs
        if self._metadata.image.version > 0 or not logs.logs:
            return
        adoption.check(logs, METADATA_FILE)
        logger.warning(
            "adopting the topics found in the data folder; their configurations are not there, so retention is off "
            "for each until you set it",
            extra={"partitions": len(logs.logs)},
        )
        records = adoption.records_of(logs.logs, self._me.node_id, self._new_uuid)
        self._metadata.begin_with(self._controller.adopt(records))

    async def register(self) -> None:
        """Registers this broker in its own metadata, so that readers of the image need no special case."""
        me = self._me

        def plan(image: MetadataImage) -> list[Record]:
            record = BrokerRecord(me.node_id, image.version + 1, me.endpoints, me.config.broker_rack)
            known = image.brokers.get(me.node_id)
            others = [RemoveBrokerRecord(broker_id) for broker_id in image.brokers if broker_id != me.node_id]
            if known is not None and not others and replace(known, broker_epoch=record.broker_epoch) == record:
                return []
            return [record, *others]

        await self._controller.change(plan)
        me.broker_epoch = self._metadata.image.brokers[me.node_id].broker_epoch

    def grants_vote(self, epoch: int) -> bool:
        return False

    def on_broker_disconnected(self, broker_id: int) -> None:
        """There is no other broker."""

    def give_up(self) -> None:
        """Its start does not wait for other brokers."""

    async def leave(self) -> None:
        """There is no other broker to hand over to."""

    def close(self) -> None:
        self._controller.close()
