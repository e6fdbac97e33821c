"""What happened to the logs that a stream has read from: are its positions still positions in the same records?

An offset alone does not tell. A topic that was deleted and created again has the same name and, once it is as long,
the same offsets; so has a log that an unclean leader election cut short and that has grown since. So a checkpoint
keeps, with the positions, each topic's id and the leader epoch that each end was told in (`offsets`). Another id is
another topic. Another epoch is a question to the new leader, as Kafka's consumers ask it (KIP-320): where does what was
written up to the old epoch end? If before the position, records that were read are not in the log any more, and others
took their offsets.

Checkpoints of Spark's own source have neither, and old brokers know neither: there, a log that ends before the position
is all that can be noticed.
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
