"""A partition moves to other brokers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from moldau.config.broker import BrokerConfig
from moldau.errors import ErrorCode
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import PartitionRecord, RemoveTopicRecord, TopicRecord
from moldau.wire.topic_partition import TopicPartition
from tests.unit.cluster.controlled import TOPIC, TOPIC_ID, Controlled


def reassign(cluster: Controlled, replicas: Sequence[int] | None, index: int = 0, *, same_factor: bool = False) -> str:
    records, outcomes = cluster.controller.reassign(
        cluster.image, {TopicPartition(TOPIC, index): replicas}, allow_replication_factor_change=not same_factor
    )
    cluster.do(records)
    (outcome,) = outcomes.values()
    return "" if outcome is None else f"{outcome.code.name}: {outcome.message}"


def roles(cluster: Controlled) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    part = cluster.part()
    return part.replicas, part.adding, part.removing


def test_new_replicas_join_and_old_ones_leave_when_all_are_in_sync() -> None:
    cluster = Controlled(brokers=5)
    cluster.add(1, 2)
    assert not reassign(cluster, [4, 5])
    assert roles(cluster) == ((4, 5, 1, 2), (4, 5), (1, 2))
    assert (cluster.part().leader, cluster.part().leader_epoch) == (1, 0)
    cluster.report_isr(1, 2, 4)
    assert roles(cluster) == ((4, 5, 1, 2), (4, 5), (1, 2))
    assert cluster.report_isr(1, 2, 4, 5) is ErrorCode.NEW_LEADER_ELECTED
    part = cluster.part()
    assert roles(cluster) == ((4, 5), (), ())
    assert (part.leader, part.isr, part.leader_epoch) == (4, (4, 5), 1)


def test_the_leader_stays_when_it_is_among_the_new_ones_but_its_epoch_fences_the_dropped() -> None:
    cluster = Controlled(brokers=3)
    cluster.add(1, 2)
    reassign(cluster, [1, 3])
    outcome = cluster.report_isr(1, 2, 3)
    assert isinstance(outcome, PartitionRecord)
    assert (outcome.leader, outcome.replicas, outcome.isr, outcome.leader_epoch) == (1, (1, 3), (1, 3), 1)


def test_fewer_replicas_need_no_wait() -> None:
    cluster = Controlled()
    cluster.add(1, 2, 3)
    assert not reassign(cluster, [2, 3])
    assert roles(cluster) == ((2, 3), (), ())
    assert (cluster.part().leader, cluster.part().isr) == (2, (2, 3))


def test_another_order_is_another_preferred_leader() -> None:
    cluster = Controlled()
    cluster.add(1, 2)
    assert not reassign(cluster, [2, 1])
    assert (roles(cluster), cluster.part().leader) == (((2, 1), (), ()), 1)


def test_what_is_so_already_changes_nothing() -> None:
    cluster = Controlled()
    cluster.add(1, 2)
    version = cluster.image.version
    assert not reassign(cluster, [1, 2])
    assert cluster.image.version == version


class TestOnTheWay:
    def test_a_later_target_takes_the_place_of_an_earlier_one(self) -> None:
        cluster = Controlled(brokers=6)
        cluster.add(1, 2, 3)
        reassign(cluster, [4, 5, 6])
        cluster.report_isr(1, 2, 3, 4)
        assert not reassign(cluster, [1, 2, 4])
        assert roles(cluster) == ((1, 2, 4), (), ()), "all of them are in sync: done"
        assert cluster.part().isr == (1, 2, 4)

    def test_what_only_the_earlier_target_wanted_is_dropped_at_once(self) -> None:
        cluster = Controlled(brokers=6)
        cluster.add(1, 2)
        reassign(cluster, [3, 4])
        cluster.report_isr(1, 2, 4)
        assert not reassign(cluster, [3, 5])
        assert roles(cluster) == ((3, 5, 1, 2), (3, 5), (1, 2))
        assert (cluster.part().isr, cluster.part().leader_epoch) == ((1, 2), 1)

    def test_unless_nobody_else_has_the_records(self) -> None:
        cluster = Controlled(brokers=4)
        cluster.add(1)
        reassign(cluster, [3, 4])
        cluster.report_isr(1, 3)
        cluster.die(1)
        assert (cluster.part().leader, cluster.part().isr) == (3, (3,))
        assert not reassign(cluster, [2])
        assert (roles(cluster), cluster.part().isr) == (((2, 3, 1), (2,), (3, 1)), (3,))
        cluster.report_isr(3, 2)
        assert (roles(cluster), cluster.part().leader) == (((2,), (), ()), 2)

    def test_cancelled_it_is_as_before(self) -> None:
        cluster = Controlled(brokers=4)
        cluster.add(1, 2)
        reassign(cluster, [3, 4])
        cluster.report_isr(1, 2, 3)
        assert not reassign(cluster, None)
        assert (roles(cluster), cluster.part().isr) == (((1, 2), (), ()), (1, 2))

    def test_a_new_leader_is_elected_when_a_cancelled_one_led(self) -> None:
        cluster = Controlled(brokers=4)
        cluster.add(1, 2)
        reassign(cluster, [3, 4])
        cluster.report_isr(1, 2, 3)
        cluster.die(1)
        assert cluster.part().leader == 3, "the first of the replicas in sync"
        assert not reassign(cluster, None)
        assert (cluster.part().leader, cluster.part().isr, cluster.part().replicas) == (2, (2,), (1, 2))

    def test_to_cancel_may_not_lose_records(self) -> None:
        cluster = Controlled(brokers=3)
        cluster.add(1)
        reassign(cluster, [2, 3])
        cluster.report_isr(1, 2)
        cluster.die(1)
        assert "would require an unclean leader election" in reassign(cluster, None)
        assert cluster.part().leader == 2

    def test_unless_the_topic_allows_it(self) -> None:
        cluster = Controlled(brokers=3, unclean_leader_election_enable="true")
        cluster.add(1)
        reassign(cluster, [2, 3])
        cluster.report_isr(1, 2)
        cluster.die(1)
        assert not reassign(cluster, None)
        assert (cluster.part().leader, cluster.part().isr, cluster.part().replicas) == (-1, (1,), (1,))

    def test_it_waits_for_a_dead_target_and_ends_after_its_return(self) -> None:
        cluster = Controlled(brokers=3)
        cluster.add(1, 2)
        reassign(cluster, [3, 2])
        cluster.die(3)
        assert cluster.part().adding == (3,)
        cluster.revive(3)
        cluster.report_isr(1, 2, 3)
        assert (roles(cluster), cluster.part().isr) == (((3, 2), (), ()), (2, 3))

    def test_a_deleted_topic_takes_it_along(self) -> None:
        cluster = Controlled()
        cluster.add(1)
        reassign(cluster, [2])
        cluster.do([RemoveTopicRecord(TOPIC_ID)])
        assert cluster.controller.list_reassignments(cluster.image) == []
        assert cluster.pass_ms(1) == []


class TestRefusals:
    @pytest.mark.parametrize(
        ("replicas", "problem"),
        [
            ([], "INVALID_REPLICA_ASSIGNMENT: The manual partition assignment includes an empty replica list."),
            ([1, 1], "more than once"),
            ([1, 9], "includes broker 9, but no such broker is registered"),
            (None, "NO_REASSIGNMENT_IN_PROGRESS"),
        ],
    )
    def test_what_cannot_be(self, replicas: list[int] | None, problem: str) -> None:
        cluster = Controlled()
        cluster.add(1, 2)
        assert problem in reassign(cluster, replicas)

    def test_what_is_not_there(self) -> None:
        assert "UNKNOWN_TOPIC_OR_PARTITION" in reassign(Controlled(), [1], index=3)

    def test_another_number_of_replicas_where_that_is_not_wanted(self) -> None:
        cluster = Controlled(brokers=4)
        cluster.add(1, 2)
        assert "from 2 to 3" in reassign(cluster, [1, 2, 3], same_factor=True)
        assert not reassign(cluster, [3, 4], same_factor=True)
        assert "from 2 to 1" in reassign(cluster, [3], same_factor=True), "those that will be dropped do not count"


class TestList:
    def test_all_or_those_asked_for(self) -> None:
        cluster = Controlled()
        cluster.add(1)
        cluster.add(1)
        reassign(cluster, [2], index=1)
        listed = [(TOPIC, [cluster.part(1)])]
        assert cluster.controller.list_reassignments(cluster.image) == listed
        assert cluster.controller.list_reassignments(cluster.image, {TOPIC: [0, 1, 7], "other": [0]}) == listed
        assert cluster.controller.list_reassignments(cluster.image, {TOPIC: [0]}) == []


def test_a_broker_on_its_own_has_nowhere_to_go() -> None:
    cluster = Controlled(brokers=0, config=BrokerConfig(node_id=7))
    cluster.image = MetadataImage().apply([TopicRecord(TOPIC, TOPIC_ID), PartitionRecord(TOPIC_ID, 0, (7,), (7,), 7)])
    assert "no such broker is registered" in reassign(cluster, [8])
    assert not reassign(cluster, [7])
    assert "NO_REASSIGNMENT" in reassign(cluster, None)
