"""Fetch requests for as little as brokers send: to look at a record, or to wait until there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moldau.client.cluster import by_topic
from moldau.wire.constants import IsolationLevel
from moldau.wire.messages import Schema, ms
from moldau.wire.topic_partition import TopicPartition

LAST_VERSION_WITH_NAMES = 12  # later ones name topics by id, which would have to be looked up


def small_fetch(
    schema: Schema, *, offsets: Mapping[TopicPartition, int], isolation: IsolationLevel, wait_ms: int = 0
) -> Any:
    """One batch at or after these offsets; brokers hold the answer back for up to `wait_ms` until there is one."""
    return schema.FetchRequest(
        replica_id=-1,
        max_wait=ms(wait_ms),
        min_bytes=1 if wait_ms else 0,
        max_bytes=1,  # brokers send at least one batch
        isolation_level=int(isolation),
        session_id=0,
        session_epoch=-1,
        topics=tuple(
            schema.FetchTopic(
                topic=topic,
                partitions=tuple(
                    schema.FetchPartition(
                        partition=index,
                        current_leader_epoch=-1,
                        fetch_offset=offset,
                        last_fetched_epoch=-1,
                        log_start_offset=-1,
                        partition_max_bytes=1,
                    )
                    for index, offset in partitions
                ),
            )
            for topic, partitions in by_topic(offsets)
        ),
        forgotten_topics_data=(),
        rack_id="",
    )
