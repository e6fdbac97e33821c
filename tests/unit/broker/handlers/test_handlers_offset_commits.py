"""Requests for committed offsets: where each version puts an error, and what is refused before it reaches a group."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from moldau.broker.coordination import coordinator_shell as coordinator
from moldau.broker.handlers.groups import offset_commits
from moldau.coordinators.effects import Effects
from moldau.coordinators.offsets.records import OffsetCommitKey
from moldau.errors import ErrorCode, KafkaError
from moldau.log.producer_state import ProducerEntry
from moldau.wire.apis import ApiKey
from moldau.wire.batch import iter_headers
from moldau.wire.compression import Codec
from moldau.wire.messages import Schema
from tests.unit.broker.offline import OfflineBroker, StartOffline


def fetch(schema: Schema, version: int) -> Any:
    if version >= 8:
        topic = schema.OffsetFetchRequestTopics(name="orders", partition_indexes=(0, 1))
        group = schema.OffsetFetchRequestGroup(group_id="g", topics=(topic,))
        return schema.OffsetFetchRequest(groups=(group,))
    topic = schema.OffsetFetchRequestTopic(name="orders", partition_indexes=(0, 1))
    return schema.OffsetFetchRequest(group_id="g", topics=(topic,))


def commit(schema: Schema, group_id: str, **fields: Any) -> Any:
    partition = schema.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=None)
    topic = schema.OffsetCommitRequestTopic(name="orders", partitions=(partition,))
    asked = {"generation_id_or_member_epoch": -1, "member_id": "", **fields}
    return schema.OffsetCommitRequest(group_id=group_id, topics=(topic,), **asked)


def commit_in_transaction(schema: Schema, group_id: str, producer_id: int, epoch: int) -> Any:
    partition = schema.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=None)
    topic = schema.TxnOffsetCommitRequestTopic(name="orders", partitions=(partition,))
    return schema.TxnOffsetCommitRequest(
        transactional_id="t", group_id=group_id, producer_id=producer_id, producer_epoch=epoch, topics=(topic,)
    )


async def find_coordinator(broker: OfflineBroker) -> None:
    await broker.ask(ApiKey.FIND_COORDINATOR, 3, lambda schema: schema.FindCoordinatorRequest(key="g", key_type=0))


@pytest.mark.parametrize("version", [1, 2, 7, 8, 9])
async def test_an_error_of_the_group_stands_where_the_version_has_it(
    offline_broker: OfflineBroker, version: int
) -> None:
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    answer = await offline_broker.ask(ApiKey.OFFSET_FETCH, version, lambda schema: fetch(schema, version))
    if version >= 8:
        assert (answer.groups[0].error_code, answer.groups[0].topics) == (code, ())
    elif version >= 2:
        assert (answer.error_code, answer.topics) == (code, ())
    else:
        partitions = answer.topics[0].partitions
        assert [(one.error_code, one.committed_offset) for one in partitions] == [(code, -1)] * 2


@pytest.mark.parametrize(
    ("version", "fields", "code"),
    [
        (9, {"generation_id_or_member_epoch": 3, "member_id": "m"}, ErrorCode.GROUP_ID_NOT_FOUND),
        (8, {"generation_id_or_member_epoch": 3, "member_id": "m"}, ErrorCode.ILLEGAL_GENERATION),
        (9, {}, ErrorCode.NONE),
    ],
)
async def test_a_member_of_no_group_is_told_so_in_its_versions_words(
    offline_broker: OfflineBroker, version: int, fields: dict[str, Any], code: ErrorCode
) -> None:
    await offline_broker.create("orders")
    await find_coordinator(offline_broker)
    answer = await offline_broker.ask(ApiKey.OFFSET_COMMIT, version, lambda schema: commit(schema, "g", **fields))
    assert answer.topics[0].partitions[0].error_code == code


async def test_a_group_without_a_name_may_only_commit_plainly(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("orders")
    await find_coordinator(offline_broker)
    plain = await offline_broker.ask(ApiKey.OFFSET_COMMIT, 9, lambda schema: commit(schema, ""))
    assert plain.topics[0].partitions[0].error_code == ErrorCode.NONE
    transactional = await offline_broker.ask(
        ApiKey.TXN_OFFSET_COMMIT, 3, lambda schema: commit_in_transaction(schema, "", 7, 0)
    )
    assert transactional.topics[0].partitions[0].error_code == ErrorCode.INVALID_GROUP_ID
    deleted = await offline_broker.ask(
        ApiKey.OFFSET_DELETE, 0, lambda schema: schema.OffsetDeleteRequest(group_id="", topics=())
    )
    assert deleted.error_code == ErrorCode.INVALID_GROUP_ID


async def test_a_fenced_producer_is_refused_and_the_group_does_not_notice(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("orders")
    await find_coordinator(offline_broker)
    groups = offline_broker.node.groups
    shard = groups.shard("g")
    log = offline_broker.node.find_partition(groups.topic, None, groups.partition_for("g")).log
    log.producers.producers[7] = entry = ProducerEntry(7)
    entry.epoch = 5
    answer = await offline_broker.ask(
        ApiKey.TXN_OFFSET_COMMIT, 3, lambda schema: commit_in_transaction(schema, "g", 7, 4)
    )
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert groups.shard("g") is shard


async def test_by_id_a_topic_that_is_not_there_cannot_be_told(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("orders")
    await find_coordinator(offline_broker)
    offsets = offline_broker.node.groups.shard("g").offsets
    await offline_broker.ask(ApiKey.OFFSET_COMMIT, 9, lambda schema: commit(schema, "g"))
    kept = offsets.get("g", "orders", 0)
    assert kept is not None
    offsets.apply(OffsetCommitKey("g", "gone", 0), kept)

    async def told(version: int) -> list[Any]:
        answer = await offline_broker.ask(
            ApiKey.OFFSET_FETCH,
            version,
            lambda schema: schema.OffsetFetchRequest(
                groups=(schema.OffsetFetchRequestGroup(group_id="g", topics=None),), require_stable=False
            ),
        )
        return list(answer.groups[0].topics)

    assert [topic.name for topic in await told(9)] == ["gone", "orders"]
    assert [topic.topic_id for topic in await told(10)] == [
        offline_broker.node.metadata.image.topics["orders"].topic_id
    ]


@pytest.mark.parametrize("version", [1, 7, 9])
async def test_many_offsets_are_told_as_few_are(
    offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    await offline_broker.create("orders")
    await find_coordinator(offline_broker)
    await offline_broker.ask(ApiKey.OFFSET_COMMIT, 9, lambda schema: commit(schema, "g"))
    few = await offline_broker.ask(ApiKey.OFFSET_FETCH, version, lambda schema: fetch(schema, version))
    monkeypatch.setattr(offset_commits, "INLINE_MAX", 1)
    many = await offline_broker.ask(ApiKey.OFFSET_FETCH, version, lambda schema: fetch(schema, version))
    assert many == few
    topic = few.groups[0].topics[0] if version >= 8 else few.topics[0]
    assert [one.committed_offset for one in topic.partitions] == [1, -1]


async def test_a_commit_of_more_offsets_than_fit_into_a_batch_is_refused_as_kafka_does(
    offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await offline_broker.create("orders")
    await find_coordinator(offline_broker)
    monkeypatch.setattr(offset_commits, "COMMITTED_MAX", 0)
    answer = await offline_broker.ask(ApiKey.OFFSET_COMMIT, 9, lambda schema: commit(schema, "g"))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_COMMIT_OFFSET_SIZE


async def test_a_commit_of_many_offsets_is_one_batch_that_a_thread_encoded(
    offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await offline_broker.create("orders", 500)
    await find_coordinator(offline_broker)
    node = offline_broker.node
    where = node.find_partition(node.groups.topic, None, node.groups.partition_for("g"))
    encoded_in: list[str] = []
    encode = node.groups.encode

    def watched(records: Any, producer: Any) -> bytes:
        encoded_in.append(threading.current_thread().name)
        return encode(records, producer)

    monkeypatch.setattr(node.groups, "encode", watched)

    def commit_all(schema: Schema) -> Any:
        partitions = tuple(
            schema.OffsetCommitRequestPartition(
                partition_index=index, committed_offset=index, committed_leader_epoch=-1, committed_metadata="m"
            )
            for index in range(500)
        )
        return schema.OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=(schema.OffsetCommitRequestTopic(name="orders", partitions=partitions),),
        )

    answer = await offline_broker.ask(ApiKey.OFFSET_COMMIT, 9, commit_all)
    assert {one.error_code for one in answer.topics[0].partitions} == {ErrorCode.NONE}
    assert encoded_in != [threading.current_thread().name]
    ((_, header),) = iter_headers(where.log.read(0, 1 << 20, upto_offset=where.log.log_end_offset, min_one=True))
    assert header.count == 500
    offsets = node.groups.shard("g").offsets
    kept = [offsets.get("g", "orders", index) for index in range(500)]
    assert [value and value.offset for value in kept] == list(range(500))


async def test_what_does_not_exist_is_refused_in_its_place(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("orders", 2)
    await find_coordinator(offline_broker)

    def some(schema: Schema) -> Any:
        partitions = tuple(
            schema.OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata=None)
            for index in (7, 0, 8, 1, 9)
        )
        topic = schema.OffsetCommitRequestTopic(name="orders", partitions=partitions)
        return schema.OffsetCommitRequest(group_id="g", topics=(topic,), generation_id_or_member_epoch=-1, member_id="")

    answer = await offline_broker.ask(ApiKey.OFFSET_COMMIT, 9, some)
    unknown, none = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE
    assert [(one.partition_index, one.error_code) for one in answer.topics[0].partitions] == [
        (7, unknown),
        (0, none),
        (8, unknown),
        (1, none),
        (9, unknown),
    ]


async def test_offsets_are_compressed_as_configured_and_read_back(
    start_offline: StartOffline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "RELOAD_DELAY_S", 0.01)
    broker = start_offline({"offsets.topic.compression.codec": "4", "offsets.load.buffer.size": "1"})
    await broker.create("orders")
    await find_coordinator(broker)
    for _ in range(3):
        await broker.ask(ApiKey.OFFSET_COMMIT, 9, lambda schema: commit(schema, "g"))
    groups = broker.node.groups
    log = broker.node.find_partition(groups.topic, None, groups.partition_for("g")).log
    data = bytes(log.read(0, 10_000, upto_offset=log.high_watermark, min_one=True))
    assert [header.codec for _, header in iter_headers(data)] == [Codec.ZSTD] * 3
    before = groups.shard("g")

    def slip(*_: Any) -> Effects:
        raise AssertionError("after which memory is not trusted")

    with pytest.raises(KafkaError):
        groups.ask("g", slip)
    async with asyncio.timeout(10):
        while groups.is_loading:
            await asyncio.sleep(0.01)
    assert groups.shard("g") is not before
    assert dict(groups.shard("g").offsets.of_group("g")) == dict(before.offsets.of_group("g"))
