"""Detects that a log is no longer the one that a stream has read from.

An offset alone cannot show that. A topic that was deleted and recreated has the same name and, once it is as long, the
same offsets; so does a log that an unclean leader election truncated and that has grown since. A checkpoint therefore
stores, with the positions, the id of each topic and the leader epoch of each end (`offsets`). A different id means a
different topic. If the epoch is different, the new leader is asked, as by Kafka's consumers (KIP-320), where the old
epoch ends. If that is before the position, records that were read are no longer in the log, and others have their
offsets.

Checkpoints of Spark's own source contain neither, and old brokers know neither. There, only a log that ends before the
position can be detected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from moldau.spark.source.offsets import Offsets, StreamOffset
from moldau.wire.topic_partition import TopicPartition
from moldau.wire.uuids import uuid_to_text


class Loss(NamedTuple):
    what: str  # happened, for the user to read
    resume: int | None  # where the records are that were not read yet; None: from the first one, if there is a log


class Logs(NamedTuple):
    """What the cluster says now."""

    ends: Offsets
    topic_ids: Mapping[str, UUID]
    cuts: Offsets  # where logs were cut below the position


def find_losses(read: StreamOffset, known_ids: Mapping[str, UUID], now: Logs) -> dict[TopicPartition, Loss]:
    """`known_ids` are those of topics that were seen since the query started; what the checkpoint says counts more."""
    ids = {**known_ids, **read.topic_ids}
    losses: dict[TopicPartition, Loss] = {}
    for tp, position in read.positions.items():
        topic, index = tp
        partition = f"{topic}-{index} (read up to offset {position})"
        topic_id, new_id = ids.get(topic), now.topic_ids.get(topic)
        if tp not in now.ends:
            losses[tp] = Loss(f"{partition} was deleted or is no longer subscribed to", None)
        elif topic_id is not None and new_id is not None and topic_id != new_id:
            change = f"its id was {uuid_to_text(topic_id)} and is {uuid_to_text(new_id)}"
            losses[tp] = Loss(f"the topic of {partition} was deleted and created again: {change}", None)
        elif tp in now.cuts:
            losses[tp] = Loss(
                f"{partition} was cut short at offset {now.cuts[tp]} by an unclean election", now.cuts[tp]
            )
        elif now.ends[tp] < position:
            end = now.ends[tp]
            # Of a topic whose id is not known it may be another log, where nothing was read yet.
            losses[tp] = Loss(
                f"{partition} was cut short or created again: it ends at {end}", end if topic_id else None
            )
    return losses
