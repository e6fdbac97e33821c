"""AlterPartition: what a leader may say of its followers."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from moldau.cluster.isr_changes import UNCHECKED_EPOCH, IsrChangeRequest
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.records import PartitionRecord
from tests.unit.cluster.controlled import TOPIC_ID, Controlled


def test_a_follower_that_caught_up_is_in_sync() -> None:
    cluster = Controlled()
    cluster.add(1, 2, 3, isr=(1,))
    outcome = cluster.report_isr(1, 2)
    assert isinstance(outcome, PartitionRecord)
    assert (outcome.isr, outcome.leader_epoch, outcome.partition_epoch) == ((1, 2), 0, 1)
    assert cluster.part().isr == (1, 2)


def test_a_follower_that_fell_behind_is_not() -> None:
    cluster = Controlled()
    cluster.add(1, 2, 3)
    cluster.report_isr(1, 3)
    assert (cluster.part().isr, cluster.part().leader_epoch) == ((1, 3), 0)


def test_what_is_so_already_is_answered_and_changes_nothing() -> None:
    cluster = Controlled()
    cluster.add(1, 2)
    version = cluster.image.version
    outcome = cluster.report_isr(1, 2)
    assert isinstance(outcome, PartitionRecord)
    assert outcome.partition_epoch == 0
    assert cluster.image.version == version


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"topic_id": uuid.UUID(int=99)}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"topic_id": None}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"index": 9}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"leader_epoch": 6}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 6}, ErrorCode.NOT_CONTROLLER),
        ({"leader_epoch": 4}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"partition_epoch": 4}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"sender": 2}, ErrorCode.INVALID_REQUEST),
        ({"is_recovering": True}, ErrorCode.INVALID_REQUEST),
        ({"new_isr": ()}, ErrorCode.INVALID_REQUEST),
        ({"new_isr": ((2, -1),)}, ErrorCode.INVALID_REQUEST),
        ({"new_isr": ((1, -1), (4, -1))}, ErrorCode.INVALID_REQUEST),
        ({"new_isr": ((1, -1), (2, -1), (2, -1))}, ErrorCode.INVALID_REQUEST),
        ({"new_isr": ((1, -1), (2, 12345))}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_a_report_that_does_not_fit_is_refused_with_kafkas_code(values: dict[str, Any], code: ErrorCode) -> None:
    cluster = Controlled(brokers=4)
    cluster.add(1, 2, 3, isr=(1,), leader_epoch=5, partition_epoch=5)
    part = cluster.part()
    asked: dict[str, Any] = {"leader_epoch": 5, "partition_epoch": 5, "topic_id": TOPIC_ID, "index": 0}
    asked |= {"new_isr": ((1, -1), (2, -1))} | values
    sender = asked.pop("sender", 1)
    records, outcomes = cluster.controller.alter_partition(
        cluster.image, sender, cluster.epoch(sender), [IsrChangeRequest(**asked)]
    )
    assert (list(records), outcomes) == ([], [code])
    assert cluster.part() == part


@pytest.mark.parametrize("state", ["fenced", "stopping", "gone"])
def test_a_broker_that_cannot_serve_cannot_be_in_sync(state: str) -> None:
    cluster = Controlled()
    cluster.add(1, 2, 3, isr=(1, 3))
    cluster.add(2, 3)
    if state == "fenced":
        cluster.die(2)
    elif state == "stopping":
        cluster.beat(2, want_shut_down=True)
    else:
        cluster.do(cluster.controller.unregister(cluster.image, 2)[0])
    assert cluster.report_isr(1, 2, 3) is ErrorCode.INELIGIBLE_REPLICA


def test_a_leader_of_version_two_need_not_know_epochs() -> None:
    cluster = Controlled()
    cluster.add(1, 2, isr=(1,))
    assert isinstance(cluster.report_isr(new_isr=((1, UNCHECKED_EPOCH), (2, UNCHECKED_EPOCH))), PartitionRecord)


def test_a_broker_of_another_life_may_say_nothing() -> None:
    cluster = Controlled()
    with pytest.raises(KafkaError) as caught:
        cluster.controller.alter_partition(cluster.image, 1, cluster.epoch(1) - 1, [])
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_a_partition_named_twice_changes_once() -> None:
    cluster = Controlled()
    cluster.add(1, 2, 3)
    changes = [IsrChangeRequest(TOPIC_ID, 0, 0, 0, ((1, -1), (other, -1))) for other in (2, 3)]
    records, outcomes = cluster.controller.alter_partition(cluster.image, 1, cluster.epoch(1), changes)
    assert len(records) == 1
    assert outcomes[1] is ErrorCode.INVALID_REQUEST
