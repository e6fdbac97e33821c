"""State topics that were created on too few brokers get their other replicas when brokers join."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import pytest

from moldau.config.broker import BrokerConfig
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.image import PartitionImage
from moldau.metadata.topics import plan_create_topic
from moldau.wire.constants import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from moldau.wire.topic_partition import TopicPartition
from tests.unit.cluster.controlled import Controlled

COUNT = 6


def create(cluster: Controlled, name: str = GROUPS_TOPIC, **configs: str) -> None:
    cluster.do(
        plan_create_topic(
            cluster.image,
            name,
            topic_id=uuid.uuid4(),
            broker_config=cluster.config,
            num_partitions=COUNT,
            replication_factor=3,
            configs={key.replace("_", "."): value for key, value in configs.items()},
        )
    )


def partitions(cluster: Controlled, name: str = GROUPS_TOPIC) -> tuple[PartitionImage, ...]:
    return cluster.image.topics[name].partitions


def join(cluster: Controlled, broker_id: int, **values: Any) -> None:
    cluster.register(broker_id, **values)
    cluster.beat(broker_id)
    cluster.pass_ms(100)


def catch_up(cluster: Controlled, name: str = GROUPS_TOPIC) -> None:
    """All replicas are in sync, as their leaders report."""
    for one in partitions(cluster, name):
        cluster.report_isr(*one.replicas, index=one.index, topic=name)
    cluster.pass_ms(100)


def test_they_are_made_with_the_brokers_there_are_and_other_topics_are_not() -> None:
    cluster = Controlled(brokers=1)
    create(cluster)
    assert [(one.replicas, one.leader) for one in partitions(cluster)] == [((1,), 1)] * COUNT
    with pytest.raises(KafkaError) as refusal:
        create(cluster, "orders")
    assert refusal.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_replicas_and_leaders_spread_over_brokers_as_they_join() -> None:
    cluster = Controlled(brokers=1)
    create(cluster)
    join(cluster, 2)
    assert {(set(one.replicas) == {1, 2}, one.adding) for one in partitions(cluster)} == {(True, (2,))}
    join(cluster, 3)
    assert {one.adding for one in partitions(cluster)} == {(2,)}, "one step after the other"
    catch_up(cluster)
    catch_up(cluster)
    assert {frozenset(one.replicas) for one in partitions(cluster)} == {frozenset((1, 2, 3))}
    assert {(one.adding, one.removing, one.target_factor) for one in partitions(cluster)} == {((), (), 0)}
    assert Counter(one.replicas[0] for one in partitions(cluster)) == {1: 2, 2: 2, 3: 2}
    join(cluster, 4)
    assert {len(one.replicas) for one in partitions(cluster)} == {3}, "no more than were asked for"


def test_with_more_brokers_than_needed_racks_then_load_decide() -> None:
    cluster = Controlled(brokers=1)
    create(cluster)
    for broker_id, rack in ((2, None), (3, "b"), (4, "b"), (5, "c")):
        cluster.register(broker_id, rack=rack)
        cluster.beat(broker_id)
    cluster.pass_ms(100)
    assert all(5 in one.replicas and 2 not in one.replicas for one in partitions(cluster)), "2 is in the rack of 1"
    assert Counter(one for part in partitions(cluster) for one in part.adding) == {5: 6, 3: 3, 4: 3}


def test_a_fenced_broker_gets_no_replica_before_it_is_back() -> None:
    cluster = Controlled(brokers=1)
    create(cluster)
    cluster.register(2)
    cluster.pass_ms(100, beating=[1])
    assert {one.replicas for one in partitions(cluster)} == {(1,)}
    cluster.beat(2)
    cluster.pass_ms(100)
    assert {one.adding for one in partitions(cluster)} == {(2,)}


def test_a_reassignment_by_hand_is_left_as_it_is() -> None:
    cluster = Controlled(brokers=1)
    create(cluster)
    records, _ = cluster.controller.reassign(cluster.image, {TopicPartition(GROUPS_TOPIC, 0): [1]})
    cluster.do(records)
    join(cluster, 2)
    assert partitions(cluster)[0].replicas == (1,)
    assert set(partitions(cluster)[1].replicas) == {1, 2}
    records, _ = cluster.controller.reassign(cluster.image, {TopicPartition(GROUPS_TOPIC, 1): None})  # cancelled
    cluster.do(records)
    join(cluster, 3)
    assert partitions(cluster)[1].replicas == (1,)


def test_a_change_of_the_isr_does_not_end_the_growth() -> None:
    cluster = Controlled(brokers=2)
    create(cluster)
    cluster.die(2)
    cluster.revive(2)
    catch_up(cluster)
    assert {one.target_factor for one in partitions(cluster)} == {3}
    join(cluster, 3)
    assert {one.adding for one in partitions(cluster)} == {(3,)}


def test_replicas_that_are_only_being_added_do_not_raise_the_minimum() -> None:
    cluster = Controlled(brokers=1, config=BrokerConfig(broker_session_timeout_ms=60_000))
    create(cluster, TRANSACTIONS_TOPIC, min_insync_replicas="2")
    join(cluster, 2)
    join(cluster, 3)
    catch_up(cluster, TRANSACTIONS_TOPIC)
    assert {one.adding for one in partitions(cluster, TRANSACTIONS_TOPIC)} == {(3,)}
    # From two whole replicas on, the second that leaves may be elected again: its leader commits nothing meanwhile.
    cluster.die(2)
    assert {(one.isr, one.elr) for one in partitions(cluster, TRANSACTIONS_TOPIC)} == {((1,), (2,))}


def test_a_replica_that_was_being_added_is_not_eligible_after_it_left() -> None:
    cluster = Controlled(brokers=1)
    create(cluster, TRANSACTIONS_TOPIC, min_insync_replicas="2")
    for broker_id in (2, 3):
        cluster.register(broker_id)
        cluster.beat(broker_id)
    cluster.pass_ms(100)
    assert len(partitions(cluster, TRANSACTIONS_TOPIC)[0].adding) == 2
    cluster.report_isr(1, 2, topic=TRANSACTIONS_TOPIC)
    cluster.die(2)
    # Its leader needs itself alone until the growth is complete, and may have committed more since.
    after = partitions(cluster, TRANSACTIONS_TOPIC)[0]
    assert (after.isr, after.elr) == ((1,), ())
