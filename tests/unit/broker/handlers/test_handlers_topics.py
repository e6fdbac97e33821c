"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords, as a client of any version sees them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from moldau.config.entries import ConfigSource
from moldau.errors import ErrorCode, KafkaError, StorageError
from moldau.metadata.image import ImageDraft, MetadataImage
from moldau.metadata.records import Record
from moldau.wire.apis import ApiKey
from moldau.wire.messages import Schema, ms
from tests.unit.broker.offline import OfflineBroker, StartOffline, new_topic


async def create(
    broker: OfflineBroker, *topics: dict[str, Any], version: int = 7, validate_only: bool = False
) -> list[Any]:
    answer = await broker.ask(
        ApiKey.CREATE_TOPICS,
        version,
        lambda schema: schema.CreateTopicsRequest(
            topics=tuple(new_topic(schema, **topic) for topic in topics), validate_only=validate_only
        ),
    )
    return list(answer.topics)


async def delete(broker: OfflineBroker, *targets: str | uuid.UUID | tuple[Any, Any], version: int = 6) -> list[Any]:
    def build(schema: Schema) -> Any:
        if version < 6:
            return schema.DeleteTopicsRequest(topic_names=targets, timeout=ms(1000))
        states = []
        for target in targets:
            name, topic_id = target if isinstance(target, tuple) else (target, None)
            if isinstance(target, uuid.UUID):
                name, topic_id = None, target
            states.append(schema.DeleteTopicState(name=name, topic_id=topic_id))
        return schema.DeleteTopicsRequest(topics=tuple(states), timeout=ms(1000))

    return list((await broker.ask(ApiKey.DELETE_TOPICS, version, build)).responses)


async def grow(
    broker: OfflineBroker, *topics: tuple[str, int, Any], version: int = 3, validate_only: bool = False
) -> list[Any]:
    def build(schema: Schema) -> Any:
        return schema.CreatePartitionsRequest(
            topics=tuple(
                schema.CreatePartitionsTopic(
                    name=name,
                    count=count,
                    assignments=replicas
                    and tuple(schema.CreatePartitionsAssignment(broker_ids=ids) for ids in replicas),
                )
                for name, count, replicas in topics
            ),
            timeout=ms(1000),
            validate_only=validate_only,
        )

    return list((await broker.ask(ApiKey.CREATE_PARTITIONS, version, build)).results)


async def delete_records(
    broker: OfflineBroker, topic: str, offset: int, partition: int = 0, version: int = 2
) -> tuple[int, int]:
    """Error code and low watermark."""
    answer = await broker.ask(
        ApiKey.DELETE_RECORDS,
        version,
        lambda schema: schema.DeleteRecordsRequest(
            topics=(
                schema.DeleteRecordsTopic(
                    name=topic,
                    partitions=(schema.DeleteRecordsPartition(partition_index=partition, offset=offset),),
                ),
            ),
            timeout=ms(1000),
        ),
    )
    (result,) = answer.topics[0].partitions
    return result.error_code, result.low_watermark


def codes(results: list[Any]) -> list[ErrorCode]:
    return [ErrorCode(result.error_code) for result in results]


# -- CreateTopics


@pytest.mark.parametrize("version", range(2, 8))
async def test_a_topic_is_created_in_every_version(offline_broker: OfflineBroker, version: int) -> None:
    (result,) = await create(offline_broker, {"name": "t", "partitions": 3, "replication_factor": 1}, version=version)
    assert (result.name, result.error_code, result.error_message) == ("t", 0, None)
    topic = offline_broker.node.metadata.image.topics["t"]
    assert len(topic.partitions) == 3
    offline_broker.write("t", 1, partition=2)
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
    if version >= 7:
        assert result.topic_id == topic.topic_id


async def test_minus_one_takes_the_brokers_defaults(start_offline: StartOffline) -> None:
    broker = start_offline({"num.partitions": "4"})
    (result,) = await create(broker, {"name": "t"})
    assert (result.num_partitions, result.replication_factor) == (4, 1)


async def test_the_answer_tells_the_new_topics_configuration(offline_broker: OfflineBroker) -> None:
    (result,) = await create(offline_broker, {"name": "t", "configs": {"retention.ms": "1000"}})
    told = {config.name: config for config in result.configs}
    assert (told["retention.ms"].value, told["retention.ms"].config_source) == (
        "1000",
        ConfigSource.DYNAMIC_TOPIC_CONFIG,
    )
    assert told["segment.bytes"].config_source == ConfigSource.DEFAULT_CONFIG
    assert list(told) == sorted(told)


async def test_one_refused_topic_does_not_keep_the_others_from_being_created(
    offline_broker: OfflineBroker,
) -> None:
    await offline_broker.create("old")
    results = await create(
        offline_broker,
        {"name": "good"},
        {"name": "old"},
        {"name": "bad name"},
        {"name": "wide", "replication_factor": 3},
        {"name": "none", "partitions": 0},
        {"name": "odd", "configs": {"retention.ms": "soon"}},
        {"name": "null", "configs": {"retention.ms": None}},
        {"name": "away", "assignments": {0: (99,)}},
        {"name": "both", "partitions": 1, "assignments": {0: (1,)}},
        {"name": "__cluster_metadata"},
        {"name": "placed", "assignments": {0: (offline_broker.node.node_id,), 1: (offline_broker.node.node_id,)}},
    )
    assert codes(results) == [
        ErrorCode.NONE,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ]
    assert set(offline_broker.node.metadata.image.topics) == {"old", "good", "placed"}
    assert results[1].error_message == "Topic 'old' already exists."
    assert (results[1].num_partitions, results[1].topic_id) == (-1, None)


async def test_a_name_given_twice_is_created_not_once(offline_broker: OfflineBroker) -> None:
    results = await create(offline_broker, {"name": "a"}, {"name": "twice"}, {"name": "twice"})
    assert [(result.name, result.error_code) for result in results] == [
        ("a", 0),
        ("twice", ErrorCode.INVALID_REQUEST),
    ]
    assert set(offline_broker.node.metadata.image.topics) == {"a"}


async def test_two_topics_of_one_request_do_not_collide(offline_broker: OfflineBroker) -> None:
    results = await create(offline_broker, {"name": "a.b"}, {"name": "a_b"})
    assert codes(results) == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]


async def test_validate_only_tells_and_changes_nothing(offline_broker: OfflineBroker) -> None:
    before = offline_broker.node.metadata.image
    good, bad = await create(offline_broker, {"name": "t"}, {"name": "?"}, validate_only=True)
    assert (good.error_code, good.num_partitions) == (0, 1)
    assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert offline_broker.node.metadata.image is before


async def test_too_many_partitions_in_one_request_create_nothing(offline_broker: OfflineBroker) -> None:
    results = await create(offline_broker, {"name": "a", "partitions": 9_999}, {"name": "b", "partitions": 2})
    assert codes(results) == [ErrorCode.POLICY_VIOLATION] * 2
    assert not offline_broker.node.metadata.image.topics


async def test_many_topics_are_one_durable_write(offline_broker: OfflineBroker) -> None:
    image = offline_broker.node.metadata.image
    await create(offline_broker, *({"name": f"t{number}"} for number in range(20)))
    assert len(offline_broker.node.metadata.image.topics) == 20
    log_lines = (offline_broker.node.logs.directories[0] / "moldau-metadata.jsonl").read_bytes().splitlines()
    assert len(log_lines) == 3, "the empty snapshot, the broker itself, all topics"
    assert offline_broker.node.metadata.image.version == image.version + 40


# -- DeleteTopics


@pytest.mark.parametrize("version", range(1, 7))
async def test_topics_are_deleted_by_name_in_every_version(offline_broker: OfflineBroker, version: int) -> None:
    await offline_broker.create("t")
    results = await delete(offline_broker, "t", "missing", version=version)
    assert [(result.name, ErrorCode(result.error_code)) for result in results] == [
        ("t", ErrorCode.NONE),
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert "t" not in offline_broker.node.metadata.image.topics
    assert not list(offline_broker.node.logs.directories[0].glob("t-0"))


async def test_topics_are_deleted_by_id(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t")
    topic_id, unknown = offline_broker.node.metadata.image.topics["t"].topic_id, uuid.uuid4()
    deleted, missing = await delete(offline_broker, topic_id, unknown)
    assert (deleted.name, deleted.topic_id, deleted.error_code) == ("t", topic_id, 0)
    assert (missing.name, missing.topic_id, missing.error_code) == (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID)
    assert not offline_broker.node.metadata.image.topics


async def test_what_is_named_twice_or_wrongly_is_not_deleted(offline_broker: OfflineBroker) -> None:
    for name in ("by-name", "by-id", "by-both", "fine"):
        await offline_broker.create(name)
    topics = offline_broker.node.metadata.image.topics
    by_id, by_both = topics["by-id"].topic_id, topics["by-both"].topic_id
    results = await delete(
        offline_broker, "by-name", "by-name", by_id, by_id, "by-both", by_both, (None, None), ("fine", by_id), "fine"
    )
    assert [(result.name, result.error_code) for result in results] == [
        ("by-name", ErrorCode.INVALID_REQUEST),
        (None, ErrorCode.INVALID_REQUEST),
        ("by-both", ErrorCode.INVALID_REQUEST),
        (None, ErrorCode.INVALID_REQUEST),
        ("fine", ErrorCode.INVALID_REQUEST),
        ("fine", ErrorCode.NONE),
    ]
    assert set(offline_broker.node.metadata.image.topics) == {"by-name", "by-id", "by-both"}


@pytest.mark.parametrize(
    ("version", "code"), [(1, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED), (6, 73)]
)
async def test_deletion_can_be_turned_off(start_offline: StartOffline, version: int, code: int) -> None:
    broker = start_offline({"delete.topic.enable": "false"})
    await broker.create("t")
    assert codes(await delete(broker, "t", version=version)) == [code]
    assert "t" in broker.node.metadata.image.topics


async def test_a_topic_comes_back_empty_and_with_a_new_id(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t")
    offline_broker.write("t", 3)
    first = offline_broker.node.metadata.image.topics["t"].topic_id
    await delete(offline_broker, "t")
    await offline_broker.create("t")
    assert offline_broker.node.metadata.image.topics["t"].topic_id != first
    assert offline_broker.node.find_partition("t", None, 0).log.log_end_offset == 0


# -- CreatePartitions


@pytest.mark.parametrize("version", range(4))
async def test_a_topic_grows_and_never_shrinks(offline_broker: OfflineBroker, version: int) -> None:
    await offline_broker.create("t", 2)
    (grown,) = await grow(offline_broker, ("t", 4, None), version=version)
    assert (grown.error_code, grown.error_message) == (0, None)
    offline_broker.write("t", 1, partition=3)
    same, fewer, missing = (
        await grow(offline_broker, ("t", 4, None), version=version)
        + await grow(offline_broker, ("t", 1, None), version=version)
        + await grow(offline_broker, ("missing", 4, None), version=version)
    )
    assert (same.error_code, same.error_message) == (
        ErrorCode.INVALID_PARTITIONS,
        "Topic already has 4 partition(s).",
    )
    assert fewer.error_code == ErrorCode.INVALID_PARTITIONS
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(offline_broker.node.metadata.image.topics["t"].partitions) == 4


async def test_growing_stands_alone_for_each_topic(offline_broker: OfflineBroker) -> None:
    node_id = offline_broker.node.node_id
    for name in ("a", "b", "c", "d"):
        await offline_broker.create(name)
    results = await grow(
        offline_broker,
        ("a", 2, ((node_id,),)),
        ("b", 3, ((node_id,),)),
        ("c", 2, None),
        ("c", 3, None),
        ("d", 2, ((99,),)),
    )
    assert [(result.name, ErrorCode(result.error_code)) for result in results] == [
        ("a", ErrorCode.NONE),
        ("b", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("c", ErrorCode.INVALID_REQUEST),
        ("d", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ]
    assert {name: len(topic.partitions) for name, topic in offline_broker.node.metadata.image.topics.items()} == {
        "a": 2,
        "b": 1,
        "c": 1,
        "d": 1,
    }


async def test_validate_only_grows_nothing(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t")
    assert codes(await grow(offline_broker, ("t", 2, None), validate_only=True)) == [ErrorCode.NONE]
    assert len(offline_broker.node.metadata.image.topics["t"].partitions) == 1


# -- DeleteRecords


@pytest.mark.parametrize("version", range(3))
async def test_records_before_an_offset_are_forgotten(offline_broker: OfflineBroker, version: int) -> None:
    await offline_broker.create("t")
    offline_broker.write("t", 10)
    assert await delete_records(offline_broker, "t", 4, version=version) == (0, 4)
    assert offline_broker.node.find_partition("t", None, 0).log.log_start_offset == 4
    assert await delete_records(offline_broker, "t", 2, version=version) == (0, 4), "never backwards"
    assert await delete_records(offline_broker, "t", -1, version=version) == (0, 10), "-1: all of them"


async def test_records_that_cannot_be_deleted_stay(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t")
    await offline_broker.create("compacted", cleanup_policy="compact")
    await offline_broker.create("__consumer_offsets")
    offline_broker.write("t", 3)
    assert await delete_records(offline_broker, "t", 4) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert await delete_records(offline_broker, "t", -2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert await delete_records(offline_broker, "t", 1, partition=1) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        -1,
    )
    assert await delete_records(offline_broker, "compacted", 0) == (ErrorCode.POLICY_VIOLATION, -1)
    assert await delete_records(offline_broker, "__consumer_offsets", 0) == (
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        -1,
    )
    assert offline_broker.node.find_partition("t", None, 0).log.log_start_offset == 0


async def test_a_full_disk_refuses_deleted_records_and_keeps_the_connection(
    offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(directory: Path) -> None:
        raise StorageError("no space left on device")

    await offline_broker.create("t")
    offline_broker.write("t", 3)
    with monkeypatch.context() as patch:
        patch.setattr(offline_broker.node.logs, "checkpoint", full)
        assert await delete_records(offline_broker, "t", 2) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        assert await delete_records(offline_broker, "t", 9) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert "deleted records may come back" in caplog.text
    assert await delete_records(offline_broker, "t", 2) == (ErrorCode.NONE, 2), "the client's next try"


async def test_a_request_copies_the_metadata_once_however_many_topics_it_has(
    offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bases = []
    make = ImageDraft.__init__

    def counting(draft: ImageDraft, base: MetadataImage) -> None:
        bases.append(base)
        make(draft, base)

    monkeypatch.setattr(ImageDraft, "__init__", counting)
    topics = [{"name": f"t-{number}"} for number in range(50)]
    assert codes(await create(offline_broker, *topics, {"name": "a.b"}, {"name": "a_b"}, validate_only=True)) == [
        *[ErrorCode.NONE] * 51,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert bases == [offline_broker.node.metadata.image]


async def test_a_full_disk_refuses_the_topics_and_nothing_else(
    offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StorageError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(offline_broker.node.controller._store, "append", full)
        good, bad = await create(offline_broker, {"name": "t"}, {"name": "?"})
    assert (good.error_code, good.error_message) == (ErrorCode.KAFKA_STORAGE_ERROR, "no space left on device")
    assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    await offline_broker.create("t")


async def test_a_client_that_goes_away_leaves_no_half_topic(
    offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = offline_broker.node.controller._store
    assert store is not None
    append, appending = store.append, asyncio.Event()

    def announced(epoch: int, records: Sequence[Record], image: MetadataImage) -> None:
        offline_broker.node.loop.call_soon_threadsafe(appending.set)
        append(epoch, records, image)

    monkeypatch.setattr(store, "append", announced)
    asked = asyncio.create_task(offline_broker.create("t", 3))
    await appending.wait()
    asked.cancel()
    await asyncio.wait([asked])
    assert asked.cancelled()
    await offline_broker.create("next")  # changes are made one after the other
    assert len(offline_broker.node.metadata.image.topics["t"].partitions) == 3
    offline_broker.write("t", 1, partition=2)


async def test_a_folder_that_cannot_be_made_costs_one_partition(
    offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_log = offline_broker.node.logs.create

    def failing(topic: str, partition: int, *rest: Any, **options: Any) -> Any:
        if partition == 1:
            raise StorageError("cannot create t-1")
        return create_log(topic, partition, *rest, **options)

    monkeypatch.setattr(offline_broker.node.logs, "create", failing)
    await offline_broker.create("t", 3)
    offline_broker.write("t", 1, partition=2)
    with pytest.raises(KafkaError):
        offline_broker.write("t", 1, partition=1)
