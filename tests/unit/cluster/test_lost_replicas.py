"""A broker that cannot write to a disk leaves leadership and ISR of what lies there, but never as the last one."""

from __future__ import annotations

import uuid

import pytest

from moldau.cluster.lost_replicas import Replica
from moldau.errors import ErrorCode, KafkaError
from tests.unit.cluster.controlled import TOPIC_ID, Controlled


def lose(world: Controlled, broker_id: int, *replicas: Replica) -> dict[Replica, ErrorCode]:
    records, codes = world.controller.lose_replicas(world.image, broker_id, world.epoch(broker_id), replicas)
    world.do(records)
    return codes


def test_a_leader_hands_over_to_an_in_sync_replica() -> None:
    world = Controlled()
    world.add(1, 2, 3)
    before = world.part()
    assert lose(world, 1, (TOPIC_ID, 0)) == {(TOPIC_ID, 0): ErrorCode.NONE}
    after = world.part()
    assert (after.leader, after.isr, after.replicas) == (2, (2, 3), (1, 2, 3))
    assert after.leader_epoch == before.leader_epoch + 1


def test_a_follower_leaves_the_isr_and_the_leader_stays() -> None:
    world = Controlled()
    world.add(1, 2, 3)
    lose(world, 3, (TOPIC_ID, 0))
    assert (world.part().leader, world.part().isr, world.part().leader_epoch) == (1, (1, 2), 0)


def test_the_only_replica_in_sync_stays_whatever_its_disk_does() -> None:
    world = Controlled()
    alone, last = world.add(1), world.add(1, 2, 3, isr=(1,))
    version = world.image.version
    assert set(lose(world, 1, (TOPIC_ID, alone), (TOPIC_ID, last)).values()) == {ErrorCode.NONE}
    assert world.image.version == version


def test_one_that_is_fenced_is_no_successor() -> None:
    world = Controlled()
    world.add(1, 2)
    world.die(2)
    lose(world, 1, (TOPIC_ID, 0))
    assert (world.part().leader, world.part().isr) == (1, (1,))


def test_only_what_was_named_is_lost_and_said_again_it_changes_nothing() -> None:
    world = Controlled()
    named, other = world.add(1, 2, 3), world.add(1, 2, 3)
    lose(world, 1, (TOPIC_ID, named), (TOPIC_ID, named))
    version = world.image.version
    lose(world, 1, (TOPIC_ID, named))
    assert world.image.version == version
    assert (world.part(named).leader, world.part(other).leader) == (2, 1)


def test_below_min_insync_replicas_it_stays_eligible() -> None:
    world = Controlled(min_insync_replicas="2")
    world.add(1, 2)
    lose(world, 1, (TOPIC_ID, 0))
    assert (world.part().leader, world.part().isr, world.part().elr) == (2, (2,), (1,))


def test_when_its_disk_works_again_its_leader_takes_it_back() -> None:
    world = Controlled()
    world.add(1, 2, 3)
    lose(world, 1, (TOPIC_ID, 0))
    world.report_isr(1, 2, 3)
    assert (world.part().leader, set(world.part().isr)) == (2, {1, 2, 3})


def test_what_is_not_there_is_told_one_by_one() -> None:
    world = Controlled()
    world.add(1, 2)
    unknown = uuid.UUID(int=99)
    assert lose(world, 3, (TOPIC_ID, 0), (TOPIC_ID, 5), (unknown, 0)) == {
        (TOPIC_ID, 0): ErrorCode.NOT_LEADER_OR_FOLLOWER,
        (TOPIC_ID, 5): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (unknown, 0): ErrorCode.UNKNOWN_TOPIC_ID,
    }


def test_an_earlier_life_of_a_broker_loses_nothing() -> None:
    world = Controlled()
    world.add(1, 2)
    earlier = world.epoch(1)
    world.revive(1)
    with pytest.raises(KafkaError) as refusal:
        world.controller.lose_replicas(world.image, 1, earlier, [(TOPIC_ID, 0)])
    assert refusal.value.code is ErrorCode.STALE_BROKER_EPOCH
