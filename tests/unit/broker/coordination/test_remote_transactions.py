"""The guard over the time between a coordinator's answer and the append."""

from __future__ import annotations

import pytest

from moldau.broker.coordination.remote_transactions import is_open
from moldau.coordinators.transactions.transaction import Identity
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.batch import encode_batch
from tests.unit.broker.offline import OfflineBroker

PRODUCER, OTHER = Identity(5, 0), Identity(6, 0)


async def test_a_marker_of_the_producer_breaks_the_guard_of_its_partition_only(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t", 2)
    node = offline_broker.node
    first, second = (node.find_partition("t", None, index) for index in (0, 1))
    guard = node.transactions.remote.guard((first, second), PRODUCER)
    node.transactions.markers.write(first, OTHER, committed=False, version=0, coordinator_epoch=0)
    guard.check(first)
    node.transactions.markers.write(first, PRODUCER, committed=False, version=0, coordinator_epoch=0)
    with pytest.raises(KafkaError) as error:
        guard.check(first)
    assert error.value.code is ErrorCode.INVALID_TXN_STATE
    guard.check(second)


async def test_a_marker_of_the_transaction_before_does_not_break_the_guard_in_version_2(
    offline_broker: OfflineBroker,
) -> None:
    """Every end raises the epoch: the marker with the guard's epoch ended the transaction before."""
    await offline_broker.create("t")
    node = offline_broker.node
    partition = node.find_partition("t", None, 0)
    guard = node.transactions.remote.guard((partition,), Identity(5, 1))
    node.transactions.markers.write(partition, Identity(5, 1), committed=True, version=2, coordinator_epoch=0)
    guard.check(partition)
    node.transactions.markers.write(partition, Identity(5, 2), committed=True, version=2, coordinator_epoch=0)
    with pytest.raises(KafkaError):
        guard.check(partition)


async def test_a_guard_does_not_outlive_the_leader_epoch(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t")
    node = offline_broker.node
    partition = node.find_partition("t", None, 0)
    guard = node.transactions.remote.guard((partition,), PRODUCER)
    guard.check(partition)
    await node.controller.change(
        lambda image: [image.topics["t"].partitions[0].record(image.topics["t"].topic_id, leader_epoch=3)]
    )
    with pytest.raises(KafkaError):
        guard.check(partition)


async def test_a_transaction_is_open_in_a_log_from_its_first_record_to_its_marker(
    offline_broker: OfflineBroker,
) -> None:
    await offline_broker.create("t")
    node = offline_broker.node
    partition = node.find_partition("t", None, 0)
    assert not is_open(partition, PRODUCER)
    batch = encode_batch(
        [(None, b"v", node.clock(), ())], producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    partition.append(memoryview(bytearray(batch)), node.clock())
    assert is_open(partition, PRODUCER)
    assert not is_open(partition, Identity(5, 1))
    node.transactions.markers.write(partition, Identity(5, 1), committed=True, version=2, coordinator_epoch=0)
    assert not is_open(partition, PRODUCER)
