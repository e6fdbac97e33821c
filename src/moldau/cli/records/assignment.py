"""How a reader comes by its partitions: from a group's coordinator (`Subscription`), or by hand (`Assignment`).

By hand no coordinator is asked and no offset committed: a look into a topic leaves no trace in the cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from moldau.cli.common import topic_pattern, warn
from moldau.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from moldau.cli.records.confluent import Interruption

_MISSING_RETRY_S = 0.1  # how often to look for a topic that is not there yet
_COORDINATOR_WAIT_S = 3.0  # longer than a coordinator takes that is there
_METADATA_WAIT_S = 1.0
_OFFSETS_WAIT_S = 10.0


class Subscription:
    """A group's member. librdkafka looks for a coordinator for ever and says nothing, so this does, once.

    librdkafka commits only where it got records from. Where the group has no offset yet, the one to start at is
    committed at once, or the next reader would start elsewhere: at the end of what came meanwhile.
    """

    def __init__(
        self,
        consumer: Any,
        topics: str,
        *,
        first_offset: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`first_offset`: where a group without an offset starts, if that is to be committed."""
        self._consumer = consumer
        self._clock = clock
        self._patience_ends: float | None = clock() + _COORDINATOR_WAIT_S
        if first_offset is None:
            consumer.subscribe([topics])
        else:
            self._first_offset = _start_offset(first_offset)
            consumer.subscribe([topics], on_assign=self._commit_first_offsets)

    def _commit_first_offsets(self, consumer: Any, partitions: list[Any]) -> None:
        """librdkafka asks for the committed offsets of its new partitions after this, and finds these."""
        from confluent_kafka import KafkaException, TopicPartition

        try:
            committed = consumer.committed(partitions, timeout=_OFFSETS_WAIT_S) if partitions else []
            new = [TopicPartition(p.topic, p.partition, self._first_offset) for p in committed if p.offset < 0]
            # ListOffsets has the same numbers for the first and the last offset as librdkafka has.
            found = consumer.offsets_for_times(new, timeout=_OFFSETS_WAIT_S) if new else []
            known = [TopicPartition(p.topic, p.partition, p.offset) for p in found if p.error is None and p.offset >= 0]
            if known:
                consumer.commit(offsets=known, asynchronous=False)
        except KafkaException as error:
            warn(f"WARN cannot commit the start offsets of the group: {error.args[0].str()}")

    def refresh(self, interruption: Interruption) -> None:
        """Call before every poll."""
        if self._patience_ends is None or self._clock() < self._patience_ends:
            return
        self._patience_ends = None
        # A member's id comes from its coordinator. Where no broker answers at all, that has been said already.
        if not self._consumer.memberid() and self._is_connected():
            warn(
                "WARN no group coordinator was found, still trying; without --group the topic can be read immediately."
            )

    def _is_connected(self) -> bool:
        from confluent_kafka import KafkaException

        try:
            return bool(self._consumer.list_topics(timeout=_METADATA_WAIT_S).brokers)
        except KafkaException:
            return False


class Assignment:
    """Partitions that appear later are added, at the latest `max_age_ms` after they came into being."""

    def __init__(
        self,
        consumer: Any,
        *,
        topic: str | None,
        include: str | None,
        start: str,
        api_timeout_ms: int,
        max_age_ms: int,
        partition: int | None = None,
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._pattern = None if include is None else topic_pattern(include)
        self._partition = partition
        self._start = _start_offset(start)
        self._api_timeout_ms = api_timeout_ms
        self._max_age_s = max_age_ms / 1000
        self._assigned: set[tuple[str, int]] = set()
        self._next_look = 0.0
        self._said_missing = False

    def refresh(self, interruption: Interruption) -> None:
        """Call before every poll; it asks for metadata only when it is time to."""
        now = time.monotonic()
        if now < self._next_look:
            return
        new = self._wanted(interruption) - self._assigned
        if new:
            from confluent_kafka import TopicPartition

            # Whatever appears while we are watching is read from its first record.
            start = self._start if not self._assigned else _start_offset("earliest")
            self._consumer.incremental_assign([TopicPartition(topic, p, start) for topic, p in sorted(new)])
            self._assigned |= new
        elif not self._assigned and not self._said_missing:
            self._said_missing = True
            warn(f"WARN no topic matches {self._topic or (self._pattern and self._pattern.pattern)} yet")
        self._next_look = now + (self._max_age_s if self._assigned else _MISSING_RETRY_S)

    def _wanted(self, interruption: Interruption) -> set[tuple[str, int]]:
        from moldau.cli.records.confluent import cluster_metadata

        metadata = cluster_metadata(self._consumer, self._topic, self._api_timeout_ms, interruption)
        wanted = {
            (name, partition)
            for name, topic in metadata.topics.items()
            if self._pattern is None or self._pattern.fullmatch(name)
            for partition in topic.partitions
        }
        if self._partition is None or not wanted:
            return wanted
        one = (str(self._topic), self._partition)
        if one not in wanted:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {self._topic} has no partition {self._partition}",
            )
        return {one}


def _start_offset(text: str) -> int:
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

    if text.isdigit():
        return int(text)
    return int(OFFSET_BEGINNING if text.lower() in ("earliest", "smallest", "beginning") else OFFSET_END)
