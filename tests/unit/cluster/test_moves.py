"""What the log says of leaders that moved and in-sync sets that changed, and why."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from moldau.cluster.moves import IsrMove, LeaderMove, moves
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import BrokerRecord, PartitionRecord, Record, TopicRecord

TOPIC_ID = uuid.uuid4()
PARTITION = PartitionRecord(TOPIC_ID, 0, replicas=(1, 2, 3), isr=(1, 2, 3), leader=1)
BROKERS = [BrokerRecord(broker_id, broker_id, ()) for broker_id in (1, 2, 3)]


def told(before: PartitionRecord, after: PartitionRecord, *brokers: Record) -> list[LeaderMove | IsrMove]:
    image = MetadataImage().apply([*BROKERS, TopicRecord("orders", TOPIC_ID), before])
    records = [*brokers, after]
    return list(moves(image, image.apply(records), records))


DEAD = replace(BROKERS[0], fenced=True)
LEAVING = replace(BROKERS[0], in_controlled_shutdown=True)
WITHOUT_1 = replace(PARTITION, leader=2, isr=(2, 3))


@pytest.mark.parametrize(
    ("before", "after", "brokers", "why"),
    [
        (PARTITION, WITHOUT_1, [DEAD], "broker 1 is not alive"),
        (PARTITION, WITHOUT_1, [LEAVING], "broker 1 is shutting down"),
        (PARTITION, WITHOUT_1, [], "broker 1 cannot write it"),
        (PARTITION, replace(PARTITION, leader=-1), [DEAD], "no replica that has all committed records is alive"),
        (replace(PARTITION, leader=-1), PARTITION, [], "broker 1 is back"),
        (replace(PARTITION, leader=2), PARTITION, [], "broker 1 is the preferred leader"),
        (
            PARTITION,
            replace(PARTITION, replicas=(2, 3), isr=(2, 3), leader=2),
            [],
            "the partition was reassigned from broker 1",
        ),
        (PARTITION, replace(PARTITION, leader=3), [], "an election was asked for"),
    ],
)
def test_why_a_leader_moved(before: PartitionRecord, after: PartitionRecord, brokers: list[Record], why: str) -> None:
    move = told(before, after, *brokers)[0]
    assert move == LeaderMove("orders-0", before.leader, after.leader, why, is_unclean=False)


def test_a_leader_that_was_not_in_sync_is_an_unclean_election() -> None:
    lost = replace(PARTITION, leader=-1, isr=(1,))
    move = told(lost, replace(lost, leader=3, isr=(3,)), DEAD)[0]
    assert isinstance(move, LeaderMove)
    assert move.is_unclean
    eligible = replace(lost, elr=(3,))
    move = told(eligible, replace(eligible, leader=3, isr=(3,), elr=()), DEAD)[0]
    assert isinstance(move, LeaderMove)
    assert not move.is_unclean


def test_why_an_in_sync_set_changed() -> None:
    fewer = replace(PARTITION, isr=(1, 2))
    (shrink,) = told(PARTITION, fewer)
    assert shrink == IsrMove("orders-0", (1, 2, 3), (1, 2), "broker 3 fell behind, or cannot write it")
    assert shrink.is_shrink
    (growth,) = told(fewer, PARTITION)
    assert growth == IsrMove("orders-0", (1, 2), (1, 2, 3), "broker 3 caught up")
    assert not growth.is_shrink


def test_new_partitions_deleted_ones_and_other_changes_are_no_moves() -> None:
    image = MetadataImage().apply([*BROKERS])
    records: list[Record] = [TopicRecord("orders", TOPIC_ID), PARTITION]
    assert list(moves(image, image.apply(records), records)) == []
    assert told(PARTITION, replace(PARTITION, partition_epoch=5)) == []
    assert told(PARTITION, replace(PARTITION, isr=(3, 2, 1))) == [], "their order means nothing"
