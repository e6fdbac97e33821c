"""Log directories that are full or have failed: other brokers take over their partitions.

A replica that cannot be written is neither led nor followed here as long as another one is in sync. The controller is
asked to move it, repeatedly until it has, since a leader that does not know yet may take this broker back in between.
An only replica stays where it is and can be read. Failed directories stay offline until the next start; full ones are
retried every second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from moldau.broker.cluster.controller_channel import ControllerChannel
from moldau.broker.cluster.incarnation import forget_epoch
from moldau.broker.cluster.local_broker import LocalBroker
from moldau.broker.cluster.metadata_cache import MetadataCache
from moldau.broker.replicas.hosted_partitions import HostedPartitions
from moldau.broker.replicas.replica_manager import ReplicaManager
from moldau.broker.threads import Lane
from moldau.cluster.brokers import active_brokers
from moldau.cluster.lost_replicas import has_other_in_sync
from moldau.errors import ErrorCode, KafkaError
from moldau.log.files import LogDir
from moldau.log.manager import LogManager
from moldau.wire.apis import ApiKey
from moldau.wire.messages import Schema
from moldau.wire.uuids import LOST_DIRECTORY

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 1.0
"""The longest time that a full or failed disk is not noticed, and freed space not used."""


HANDED_OVER_MAX = 2000
"""Partitions in one request: the controller finds new leaders for all of them in one go."""
STUCK_S = 10.0
"""A write to the disk that takes longer is worth a line in the log."""


class FailingDisks:
    def __init__(
        self,
        me: LocalBroker,
        metadata: MetadataCache,
        logs: LogManager,
        *,
        partitions: HostedPartitions,
        replication: ReplicaManager,
        controller: ControllerChannel,
        disk_thread: Callable[[Path], Lane],
    ) -> None:
        self._me = me
        self._metadata = metadata
        self._logs = logs
        self._partitions = partitions
        self._replication = replication
        self._controller = controller
        self._disk_thread = disk_thread
        self._known: set[LogDir] = set()
        self._stuck: set[LogDir] = set()
        self._under_way: dict[LogDir, asyncio.Future[None]] = {}

    async def check(self) -> None:
        """Tries full disks again, and follows and leads by what can be written."""
        for log_dir in self._logs.log_dirs:
            if log_dir.offline:
                self._check_dir(log_dir, partial(forget_epoch, log_dir))
            elif log_dir in self._known:
                self._check_dir(log_dir, log_dir.probe)
            self._warn_if_stuck(log_dir)
        failing = {log_dir for log_dir in self._logs.log_dirs if not log_dir.is_writable}
        if failing != self._known:
            for log_dir in failing - self._known:
                why = "it failed" if log_dir.offline else "it is full"
                others = ": other brokers take over its partitions" if self._me.config.is_clustered else ""
                logger.error(
                    f"log directory is not writable{others}",
                    extra={"folder": str(log_dir.path), "why": why},
                )
            for log_dir in self._known - failing:
                logger.warning("log directory is writable again", extra={"folder": str(log_dir.path)})
            changed = failing ^ self._known
            self._known = failing
            self._replication.follow([one for one in self._partitions if one.log.log_dir in changed])
        if failing:
            await self._hand_over()

    def _check_dir(self, log_dir: LogDir, work: Callable[[], None]) -> None:
        """Each in its own thread: a disk that hangs does not hold up the others."""
        under_way = self._under_way.get(log_dir)
        if under_way is None or under_way.done():
            self._under_way[log_dir] = self._disk_thread(log_dir.path)(work)

    def _warn_if_stuck(self, log_dir: LogDir) -> None:
        busy_s = self._disk_thread(log_dir.path).busy_s
        if busy_s < STUCK_S:
            if log_dir in self._stuck:
                logger.warning("log directory responds again", extra={"folder": str(log_dir.path)})
            self._stuck.discard(log_dir)
        elif log_dir not in self._stuck:
            self._stuck.add(log_dir)
            logger.error(
                "log directory does not respond: check its disk (records with flush.messages=1 wait for it)",
                extra={"folder": str(log_dir.path), "waiting_s": round(busy_s)},
            )

    async def _hand_over(self) -> None:
        lost = self._lost()
        try:
            for start in range(0, len(lost), HANDED_OVER_MAX):
                await self._report(lost[start : start + HANDED_OVER_MAX])
        except KafkaError as error:
            logger.warning("cannot hand partitions over to other brokers, will retry", extra={"why": error.message})

    async def _report(self, lost: Sequence[tuple[Any, int]]) -> None:
        def build(schema: Schema) -> Any:
            topics = tuple(
                schema.TopicData(
                    topic_id=topic_id,
                    partitions=tuple(schema.PartitionData(partition_index=index) for _, index in partitions),
                )
                for topic_id, partitions in groupby(lost, itemgetter(0))
            )
            return schema.AssignReplicasToDirsRequest(
                broker_id=self._me.node_id,
                broker_epoch=self._me.broker_epoch,
                directories=(schema.DirectoryData(id_=LOST_DIRECTORY, topics=topics),),
            )

        answer = await self._controller.ask(ApiKey.ASSIGN_REPLICAS_TO_DIRS, build)
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), "the controller refused to move them")

    def _lost(self) -> list[tuple[Any, int]]:
        """The partitions that cannot be written here, though this broker is in sync, beside others; topic by topic."""
        node_id, image = self._me.node_id, self._metadata.image
        active = active_brokers(image, node_id)
        return [
            (topic.topic_id, partition.index)
            for topic in image.topics.values()
            for partition in topic.partitions
            if has_other_in_sync(partition, node_id, active) and not self._can_write(topic.name, partition.index)
        ]

    def _can_write(self, topic: str, index: int) -> bool:
        partition_log = self._logs.get(topic, index)
        return partition_log is not None and partition_log.log_dir.is_writable
