"""Which worker of a group is the active one: the member of the consumer group that gets the config topic's partition.

The topic has one partition, so one member gets it. Assignments are sticky: a worker that joins takes it from nobody. A
worker that dies loses it after the session timeout. That decides who should be active; who may write is decided by the
transactional id (see `state_topics`), so a worker that does not yet know that it was replaced does no harm.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from moldau.pipelines.worker.config import WorkerConfig
from moldau.pipelines.worker.records import Topic

logger = logging.getLogger(__name__)

SESSION_TIMEOUT_MS = 6_000  # the least that brokers accept by default
_HEARTBEAT_MS = 1_000
_POLL_S = 0.2


class Membership:
    """`elected` and `lost` are called from the member's thread, and must return soon."""

    def __init__(self, config: WorkerConfig, elected: Callable[[], None], lost: Callable[[], None]) -> None:
        self._config = config
        self._elected = elected
        self._lost = lost
        self.is_owner = False  # of the partition: this worker should be active
        self._is_leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="moldau-worker-member", daemon=True)

    def join(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        """The others learn of it at once."""
        self._is_leaving.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._is_leaving.is_set():
            try:
                self._be_member()
            except Exception:
                logger.exception("lost the connection to the worker group; trying again")
                self.is_owner = False
                self._lost()
                self._is_leaving.wait(1)

    def _be_member(self) -> None:
        from confluent_kafka import Consumer

        consumer = Consumer(
            self._config.client()
            | {
                "group.id": self._config.group_id,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": str(SESSION_TIMEOUT_MS),
                "heartbeat.interval.ms": str(_HEARTBEAT_MS),
                "enable.auto.commit": "false",
            }
        )

        def assigned(member: Any, partitions: list[Any]) -> None:
            member.incremental_assign(partitions)
            if partitions:
                member.pause(partitions)  # it is the state topics' reader that reads
                self.is_owner = True
                self._elected()

        def gone(member: Any, partitions: list[Any]) -> None:
            if partitions:
                self.is_owner = False
                self._lost()

        topic = self._config.topic(Topic.CONFIG).name
        consumer.subscribe([topic], on_assign=assigned, on_revoke=gone, on_lost=gone)
        try:
            while not self._is_leaving.is_set():
                consumer.poll(_POLL_S)
        finally:
            consumer.close()
