"""Descriptions of leaders that moved and ISRs that changed: what an operator looks for in the log after a fault.

The reasons are derived from two images and the records between them. New partitions, and those of deleted topics, do
not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from moldau.metadata.image import MetadataImage, PartitionImage
from moldau.metadata.records import PartitionRecord, Record
from moldau.wire.constants import NO_LEADER


class LeaderMove(NamedTuple):
    partition: str
    before: int
    after: int
    why: str
    is_unclean: bool


class IsrMove(NamedTuple):
    partition: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    why: str

    @property
    def is_shrink(self) -> bool:
        return not set(self.before) <= set(self.after)


def moves(before: MetadataImage, after: MetadataImage, records: Iterable[Record]) -> Iterator[LeaderMove | IsrMove]:
    """What `records`, which led from one image to the other, did to partitions that both have."""
    touched = dict.fromkeys((each.topic_id, each.index) for each in records if isinstance(each, PartitionRecord))
    for topic_id, index in touched:
        old_topic, new_topic = before.topic_by_id(topic_id), after.topic_by_id(topic_id)
        old = old_topic.partition(index) if old_topic is not None else None
        new = new_topic.partition(index) if new_topic is not None else None
        if old is None or new is None or new_topic is None:
            continue
        name = f"{new_topic.name}-{index}"
        if old.leader != new.leader:
            is_unclean = new.leader != NO_LEADER and new.leader not in (*old.isr, *old.elr)
            why = "unclean election: records may be lost" if is_unclean else _why_leader(old, new, after)
            yield LeaderMove(name, old.leader, new.leader, why, is_unclean)
        if set(old.isr) != set(new.isr):
            yield IsrMove(name, old.isr, new.isr, _why_isr(old, new, after))


def _why_leader(old: PartitionImage, new: PartitionImage, image: MetadataImage) -> str:
    if new.leader == NO_LEADER:
        return "no replica that has all committed records is alive"
    if old.leader == NO_LEADER:
        return f"broker {new.leader} is back"
    gone = _reason_removed(old.leader, new, image)
    if gone is not None:
        return gone
    if new.leader == new.replicas[0]:
        return f"broker {new.leader} is the preferred leader"
    return f"broker {old.leader} cannot write it" if old.leader not in new.isr else "an election was asked for"


def _why_isr(old: PartitionImage, new: PartitionImage, image: MetadataImage) -> str:
    lost = [one for one in old.isr if one not in new.isr]
    joined = [one for one in new.isr if one not in old.isr]
    reasons = [_reason_removed(one, new, image) or f"broker {one} fell behind, or cannot write it" for one in lost]
    reasons += [f"broker {one} caught up" for one in joined]
    return ", ".join(reasons)


def _reason_removed(broker_id: int, partition: PartitionImage, image: MetadataImage) -> str | None:
    """Why that broker has the partition no more; None if it is there as before."""
    broker = image.brokers.get(broker_id)
    if broker_id not in partition.replicas:
        return f"the partition was reassigned from broker {broker_id}"
    if broker is None or broker.fenced:
        return f"broker {broker_id} is not alive"
    return f"broker {broker_id} is shutting down" if broker.in_controlled_shutdown else None
