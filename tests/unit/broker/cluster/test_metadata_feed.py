"""Brokers follow the controller's records: what they lack, no more, or the whole when they lack too much."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moldau.broker.cluster import metadata_feed
from moldau.broker.cluster.metadata_feed import METADATA_TOPIC_ID, apply_result
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import BrokerRecord, ConfigRecord
from moldau.wire.apis import APIS, ApiKey
from moldau.wire.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchTopic,
    encode_fetch_request,
    parse_fetch_response,
)
from moldau.wire.messages import request_head
from tests.unit.broker.offline import OfflineBroker

VERSION = APIS[ApiKey.FETCH].max_version


async def fetch(
    broker: OfflineBroker,
    version: int,
    *,
    epoch: int | None = None,
    wait_ms: int = 0,
    replica_epoch: int = -1,
) -> Any:
    asked = FetchPartition(
        0, fetch_offset=version, current_leader_epoch=broker.node.controller.epoch if epoch is None else epoch
    )
    request = FetchRequest(
        replica_id=2,
        replica_epoch=replica_epoch,
        max_wait_ms=wait_ms,
        min_bytes=1,
        topics=[FetchTopic(None, METADATA_TOPIC_ID, [asked])],
    )
    ((_, _, (result,)),) = (await answer_to(broker, request)).topics
    return result


async def answer_to(broker: OfflineBroker, request: FetchRequest, client_id: str = "broker-2") -> Any:
    body = encode_fetch_request(VERSION, request)
    frame = request_head(ApiKey.FETCH, VERSION, 1, client_id, len(body)) + body
    return parse_fetch_response(VERSION, memoryview(await broker.send(frame[4:]))[4:])


def same(image: MetadataImage, other: MetadataImage) -> bool:
    return (image.version, list(image.to_records())) == (other.version, list(other.to_records()))


async def test_a_new_broker_gets_the_whole_image_and_then_each_change(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t", 3)
    image = apply_result(MetadataImage(), await fetch(offline_broker, 0))
    assert same(image, offline_broker.node.metadata.image)
    await offline_broker.create("u", 2)
    result = await fetch(offline_broker, image.version)
    assert result.snapshot_id is None
    assert same(apply_result(image, result), offline_broker.node.metadata.image)


async def test_a_fetch_waits_for_the_next_change(offline_broker: OfflineBroker) -> None:
    version = offline_broker.node.metadata.image.version
    waiting = asyncio.ensure_future(fetch(offline_broker, version, wait_ms=60_000))
    await asyncio.sleep(0)
    assert not waiting.done()
    await offline_broker.create("t")
    image = apply_result(offline_broker.node.metadata.image, FetchPartitionResult(0))
    assert image is offline_broker.node.metadata.image
    assert (await waiting).high_watermark == offline_broker.node.metadata.image.version


async def test_what_a_broker_asks_for_tells_what_it_has(offline_broker: OfflineBroker) -> None:
    controller = offline_broker.node.controller
    registration = BrokerRecord(2, controller.image.version + 1, (("PLAINTEXT", "localhost", 1, "PLAINTEXT"),))
    await controller.run(lambda _: ([registration], None))
    version = controller.image.version
    await fetch(offline_broker, version, replica_epoch=version)
    assert controller.applied_versions[2] == version


async def test_what_is_not_of_a_brokers_present_life_tells_nothing(offline_broker: OfflineBroker) -> None:
    await fetch(offline_broker, offline_broker.node.metadata.image.version, replica_epoch=77)
    assert 2 not in offline_broker.node.controller.applied_versions


@pytest.mark.parametrize(("client_id", "partitions"), [("tester", [FetchPartition(0)]), ("broker-2", [])])
async def test_only_brokers_that_ask_for_something_are_answered(
    offline_broker: OfflineBroker, client_id: str, partitions: list[FetchPartition]
) -> None:
    request = FetchRequest(replica_id=2, topics=[FetchTopic(None, METADATA_TOPIC_ID, partitions)])
    answer = await answer_to(offline_broker, request, client_id)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_one_too_far_behind_gets_a_snapshot(
    offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_feed, "KEPT_BYTES", 1)
    version = offline_broker.node.metadata.image.version
    await offline_broker.create("t", 3)
    result = await fetch(offline_broker, version)
    assert result.snapshot_id == (offline_broker.node.metadata.image.version, offline_broker.node.controller.epoch)
    assert same(apply_result(MetadataImage(), result), offline_broker.node.metadata.image)


@pytest.mark.parametrize(("shift", "code"), [(-1, ErrorCode.FENCED_LEADER_EPOCH), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)])
async def test_a_broker_that_knows_another_controller_is_told(
    offline_broker: OfflineBroker, shift: int, code: ErrorCode
) -> None:
    epoch = offline_broker.node.controller.epoch + shift
    assert (await fetch(offline_broker, 0, epoch=epoch)).error_code == code


async def test_a_deposed_controller_feeds_nobody_and_changes_nothing(offline_broker: OfflineBroker) -> None:
    version = offline_broker.node.metadata.image.version
    waiting = asyncio.ensure_future(fetch(offline_broker, version, wait_ms=60_000))
    await asyncio.sleep(0)
    offline_broker.node.controller.deposed()
    assert (await waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(KafkaError, match="not the controller"):
        await offline_broker.node.controller.change(lambda _: [ConfigRecord("broker", "", "num.partitions", "9")])
    assert offline_broker.node.metadata.image.version == version
