"""One replica of a partition: what it commits, whom it tells, and what happens when another one leads."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.network.client_connection import Pipelined
from moldau.broker.replicas.delayed_produce import DelayedProduce, Uncommitted
from moldau.broker.replicas.partition import UNCOMMITTED_MAX, Partition
from moldau.cluster.replica import IsrChange
from moldau.config.topic import TopicConfig
from moldau.errors import ErrorCode, KafkaError, StorageError
from moldau.log.context import LogContext
from moldau.log.files import FilePool, LogDir
from moldau.log.partition_log import PartitionLog
from moldau.log.recovery import create_log
from moldau.metadata.image import PartitionImage
from moldau.wire.batch import encode_batch
from moldau.wire.produce import ProducePartitionResult

NOW_MS = 1_700_000_000_000


class Manager:
    """Broker 1, in a cluster where everybody is alive."""

    broker_id = 1
    is_registered = True
    lag_time_max_ms = 1000

    def __init__(self) -> None:
        self.proposals: list[IsrChange] = []
        self.flushes: list[Partition] = []
        self.loop = asyncio.get_running_loop()
        self.monotonic_ms: Callable[[], int] = lambda: NOW_MS

    def is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        return True

    def propose(self, partition: Partition, change: IsrChange) -> None:
        self.proposals.append(change)

    def forget(self, partition: Partition) -> None:
        pass

    def flush(self, partition: Partition) -> None:
        self.flushes.append(partition)


class Waiting:
    """A consumer's fetch."""

    def __init__(self, partition: Partition, *, committed: bool = False) -> None:
        self.committed = committed
        self.byte_count = 0
        partition.waiting[self] = None

    def more(self, byte_count: int) -> None:
        self.byte_count += byte_count


def image(
    leader: int = 1, *, epoch: int = 0, isr: tuple[int, ...] = (1, 2), partition_epoch: int = 0
) -> PartitionImage:
    return PartitionImage(0, leader, epoch, (1, 2), isr, partition_epoch)


def new_partition(folder: Path, first: PartitionImage, **changes: Any) -> Partition:
    context = LogContext(LogDir(folder), FilePool(10), lambda: NOW_MS, 86_400_000, single_replica=False)
    topic_config = TopicConfig(**changes)
    log: PartitionLog = create_log(folder / "t-0", "t", 0, uuid.UUID(int=1), topic_config, context=context)
    return Partition("t", uuid.UUID(int=1).bytes, first, log, Manager())


def batch(count: int = 1) -> memoryview:
    return memoryview(bytearray(encode_batch([(None, b"value", NOW_MS, ())] * count)))


def fetched(partition: Partition, offset: int) -> None:
    assert partition.leadership is not None
    follower = partition.leadership.followers[2]
    partition.fetched(follower, offset, log_start_offset=0, broker_epoch=1, now_ms=NOW_MS)


async def test_a_record_is_committed_and_readable_when_the_follower_has_it(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, image())
    fetched(partition, 0)
    waiting = Waiting(partition)
    records = batch()
    partition.append(records, NOW_MS, required_acks=-1)
    committed = partition.committed(1)
    assert committed is not None
    assert waiting.byte_count == 0
    fetched(partition, 1)
    assert committed.done()
    assert waiting.byte_count == len(records)
    assert partition.committed(1) is None


async def test_a_leader_that_is_alone_in_sync_commits_at_once(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, image(isr=(1,)))
    partition.append(batch(3), NOW_MS, required_acks=-1)
    assert partition.committed(3) is None


async def test_with_too_few_in_sync_replicas_acks_all_appends_nothing(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, image(isr=(1,)), min_insync_replicas=2)
    with pytest.raises(KafkaError) as refused:
        partition.append(batch(), NOW_MS, required_acks=-1)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert partition.log.log_end_offset == 0
    partition.append(batch(), NOW_MS, required_acks=1)
    assert partition.log.high_watermark == 0, "nobody sees what too few replicas have"


async def test_a_replica_that_is_being_added_does_not_raise_the_minimum(tmp_path: Path) -> None:
    growing = replace(image(isr=(1,)), adding=(2,))
    partition = new_partition(tmp_path, growing, min_insync_replicas=2)
    partition.append(batch(), NOW_MS, required_acks=-1)
    assert partition.log.high_watermark == 1
    fetched(partition, 1)
    leadership = partition.leadership
    assert leadership is not None
    change = leadership.grow(1) or leadership.pending
    assert change is not None
    partition.isr_accepted(change, (1, 2), 0, partition_epoch=1)
    assert partition.min_isr == 2, "the controller completed it, and its records are on their way"
    partition.follow_image(image(partition_epoch=1))
    assert partition.min_isr == 2


async def test_who_waits_is_told_in_the_order_of_offsets_though_it_came_later(tmp_path: Path) -> None:
    """A repeated batch waits for an older offset than those that are waited for already."""
    partition = new_partition(tmp_path, image())
    fetched(partition, 0)
    for _ in range(3):
        partition.append(batch(), NOW_MS)
    late, early = partition.committed(3), partition.committed(1)
    assert late is not None
    assert early is not None
    fetched(partition, 2)
    assert early.done()
    assert not late.done()


async def test_a_leader_that_loses_its_place_fails_who_waits_and_takes_no_more(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, image())
    partition.append(batch(), NOW_MS)
    committed = partition.committed(1)
    waiting = Waiting(partition)
    assert committed is not None
    partition.follow_image(image(leader=2, epoch=1, partition_epoch=1))
    with pytest.raises(KafkaError) as failed:
        await committed
    assert failed.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert waiting.byte_count > 0, "consumers have to hear of the new leader"
    with pytest.raises(KafkaError) as refused:
        partition.append(batch(), NOW_MS)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_new_leader_exposes_no_more_than_it_knows_to_be_committed(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, image(leader=2))
    records = bytearray(batch(5))
    partition.append_as_follower(memoryview(records), 3, 0, NOW_MS)
    assert (partition.log.log_end_offset, partition.log.high_watermark) == (5, 3)
    partition.follow_image(image(epoch=1, partition_epoch=1))
    assert partition.log.high_watermark == 3
    assert partition.log.offset_for_leader_epoch(1) == (1, 5), "its epoch begins at its log end"
    fetched(partition, 5)
    assert partition.log.high_watermark == 5


async def test_a_followers_high_watermark_is_the_leaders_as_far_as_it_has_the_records(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, image(leader=2))
    waiting = Waiting(partition)
    records = batch(2)
    partition.append_as_follower(records, 100, 0, NOW_MS)
    assert partition.log.high_watermark == 2
    assert waiting.byte_count == len(records)


async def test_what_is_cut_off_is_not_waited_for(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, image(leader=2))
    partition.append_as_follower(batch(), 1, 0, NOW_MS)
    second = bytearray(batch())
    second[:8] = (1).to_bytes(8, "big")
    partition.append_as_follower(memoryview(second), 1, 0, NOW_MS)
    waiting = Waiting(partition)
    partition.truncate_to(1, "a test")
    assert partition.log.log_end_offset == 1
    partition.append_as_follower(memoryview(second), 2, 0, NOW_MS)
    assert waiting.byte_count == len(second)


async def test_a_follower_that_comes_back_is_proposed_for_the_in_sync_set(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, image(isr=(1,)))
    partition.append(batch(), NOW_MS)
    fetched(partition, 1)
    manager = partition._replicas
    assert isinstance(manager, Manager)
    (change,) = manager.proposals
    assert change.broker_ids == (1, 2)
    partition.isr_accepted(change, (1, 2), 0, 1)
    assert partition.isr == {1, 2}


async def test_one_replica_alone_needs_no_leadership(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, PartitionImage(0, 1, 0, (1,), (1,)))
    partition.append(batch(2), NOW_MS, required_acks=-1)
    assert partition.leadership is None
    assert partition.log.high_watermark == 2


def delayed(partition: Partition, timeout_ms: int) -> tuple[Pipelined, list[ProducePartitionResult]]:
    """A produce of one record with acks=all."""
    info = partition.append(batch(), NOW_MS, required_acks=-1)
    results = [ProducePartitionResult(0, 0, info.base_offset)]
    produce = DelayedProduce(asyncio.get_running_loop(), timeout_ms)
    produce.add(Uncommitted(partition, info.last_offset + 1, results, 0))
    return produce.answer_with(lambda: b"answer"), results


async def test_a_produce_is_answered_when_the_followers_have_it(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, image())
    produce, results = delayed(partition, 60_000)
    assert not produce.future.done()
    fetched(partition, 1)
    assert await produce.future == b"answer"
    assert results[0].error_code == 0


async def test_a_produce_that_no_follower_takes_times_out_and_is_forgotten(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, image())
    produce, results = delayed(partition, 1)
    await produce.future
    assert results[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    fetched(partition, 1)
    assert results[0].error_code == ErrorCode.REQUEST_TIMED_OUT, "it was told; what comes later changes nothing"


async def test_a_produce_whose_leader_is_replaced_hears_of_the_new_one(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, image())
    produce, results = delayed(partition, 60_000)
    partition.follow_image(image(leader=2, epoch=1, partition_epoch=1))
    await produce.future
    assert results[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert results[0].current_leader == (2, 1)


async def test_a_produce_in_turns_hears_of_a_leader_that_is_replaced_before_its_last_append(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, image())
    info = partition.append(batch(), NOW_MS, required_acks=-1)
    results = [ProducePartitionResult(0, 0, info.base_offset)]
    produce = DelayedProduce(asyncio.get_running_loop(), 60_000)
    produce.add(Uncommitted(partition, info.last_offset + 1, results, 0))
    partition.follow_image(image(leader=2, epoch=1, partition_epoch=1))
    assert await produce.answer_with(lambda: b"answer").future == b"answer"
    assert results[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_who_asks_for_a_commit_after_the_leader_changed_does_not_wait_for_ever(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, image())
    partition.append(batch(), NOW_MS)
    partition.follow_image(image(leader=2, epoch=1, partition_epoch=1))
    committed = partition.committed(1)
    assert committed is not None
    with pytest.raises(KafkaError) as failed:
        await asyncio.wait_for(committed, 1)
    assert failed.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_leader_that_commits_nothing_remembers_no_more_for_each_batch(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, image(isr=(1,)), min_insync_replicas=2)
    records = batch()
    for _ in range(UNCOMMITTED_MAX + 100):
        partition.append(batch(), NOW_MS)
    assert len(partition._uncommitted) == UNCOMMITTED_MAX
    waiting = Waiting(partition)
    partition.follow_image(image(partition_epoch=1))
    fetched(partition, UNCOMMITTED_MAX + 100)
    assert waiting.byte_count == (UNCOMMITTED_MAX + 100) * len(records)


# -- `flush.messages`: nothing runs ahead of the disk


ALONE = PartitionImage(0, 1, 0, (1,), (1,))


def flush(partition: Partition) -> None:
    """As the `ReplicaManager` does, in a thread."""
    manager = partition._replicas
    assert isinstance(manager, Manager)
    assert manager.flushes, "nobody asked for it"
    manager.flushes.clear()
    partition.log.flush()
    partition.flush_ended(None)


async def test_what_is_not_on_the_disk_is_neither_read_nor_committed(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, ALONE, flush_messages=1)
    waiting = Waiting(partition)
    records = batch(2)
    for acks in (-1, 0, 1):
        partition.append(batch(2), NOW_MS, required_acks=acks)
    committed = partition.committed(6)
    assert committed is not None
    assert (partition.log.high_watermark, partition.log.last_stable_offset, waiting.byte_count) == (0, 0, 0)
    flush(partition)
    assert committed.done()
    assert (partition.log.high_watermark, partition.log.last_stable_offset) == (6, 6)
    assert waiting.byte_count == 3 * len(records)


async def test_a_leader_commits_no_more_than_is_on_its_own_disk(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, image(), flush_messages=1)
    partition.append(batch(3), NOW_MS, required_acks=-1)
    fetched(partition, 3)
    assert partition.log.high_watermark == 0, "the follower has it on its disk, this broker does not"
    flush(partition)
    assert partition.log.high_watermark == 3


async def test_a_leader_that_is_alone_in_sync_waits_for_its_disk(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, image(isr=(1,)), flush_messages=1)
    partition.append(batch(3), NOW_MS, required_acks=-1)
    assert partition.log.high_watermark == 0
    flush(partition)
    assert partition.log.high_watermark == 3


async def test_a_new_leader_forces_to_disk_what_it_followed_before_it_counts(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, image(leader=2), flush_messages=1)
    partition.append_as_follower(batch(5), 3, 0, NOW_MS)
    partition.follow_image(image(epoch=1, partition_epoch=1))
    fetched(partition, 5)
    assert partition.log.high_watermark == 3, "the leader before committed so much"
    flush(partition)
    assert partition.log.high_watermark == 5


async def test_a_lower_flush_messages_takes_nothing_back_and_holds_for_what_comes(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, ALONE)
    partition.append(batch(2), NOW_MS)
    partition.log.update_config(TopicConfig(flush_messages=1))
    partition.follow_image(ALONE)
    assert partition.log.high_watermark == 2
    partition.append(batch(2), NOW_MS)
    assert partition.log.high_watermark == 2
    flush(partition)
    assert partition.log.high_watermark == 4


async def test_with_a_larger_flush_messages_fewer_than_that_run_ahead(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, ALONE, flush_messages=3)
    for expected in (1, 2, 2, 2):
        partition.append(batch(), NOW_MS)
        assert partition.log.high_watermark == expected
    partition.log.flush()  # by somebody who does not tell
    committed = partition.committed(4)
    partition.append(batch(), NOW_MS)
    assert partition.log.high_watermark == 5
    assert committed is not None
    assert committed.done()


async def test_a_disk_that_fails_fails_who_waits_and_shows_nothing(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, ALONE, flush_messages=1)
    produce, results = delayed(partition, 60_000)
    partition.flush_ended(StorageError("the disk said no"))
    await produce.future
    assert results[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert partition.log.high_watermark == 0
    partition.log.flush()  # a later one works
    partition.flush_ended(None)
    assert partition.log.high_watermark == 1
