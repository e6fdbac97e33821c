"""Fetch and ListOffsets: long polls, byte limits, sessions, topic ids, leader epochs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moldau import Broker
from moldau.errors import ErrorCode
from moldau.wire.apis import ApiKey
from moldau.wire.messages import request_schema
from tests.integration.conftest import NewTopic, make_topic
from tests.integration.raw import RawClient, batch_of, fetch_request, list_offsets_request, records_in

Connect = Callable[..., RawClient]

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


def offsets(partition: Any) -> list[int]:
    return [record.offset for record in records_in(bytes(partition.records or b""))]


def partitions_of(answer: Any) -> dict[int, list[int]]:
    return {part.partition_index: offsets(part) for one in answer.responses for part in one.partitions}


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_works_in_every_version(connect: Connect, new_topic: NewTopic, version: int) -> None:
    client = connect()
    topic = new_topic()
    named = client.topic_id(topic) if version >= 13 else topic
    client.produce(topic, batch_of(b"a", b"b"))
    partition = client.fetch(named, 0, version=version)
    assert (partition.error_code, partition.high_watermark, offsets(partition)) == (ErrorCode.NONE, 2, [0, 1])
    partition = client.fetch(named, 2, version=version)
    assert (partition.error_code, partition.high_watermark, offsets(partition)) == (ErrorCode.NONE, 2, [])


# -- long polls


def test_a_waiting_fetch_is_answered_by_the_append_that_completes_it(connect: Connect, new_topic: NewTopic) -> None:
    reader, writer = connect(), connect()
    topic = new_topic()
    batch = batch_of(bytes(1000))
    request = fetch_request([(topic, 0, 0)], max_wait_ms=60_000, min_bytes=3 * len(batch))
    reader.send(request)
    for _ in range(2):
        writer.produce(topic, batch)
        assert not reader.has_answer(within_s=0.05), "two batches are not enough bytes yet"
    started = time.monotonic()
    writer.produce(topic, batch)
    _, answer = reader.receive(request)
    assert time.monotonic() - started < 30, "answered by the append, not by the timeout"
    assert offsets(answer.responses[0].partitions[0]) == [0, 1, 2]


def test_a_waiting_fetch_is_answered_by_any_of_its_partitions(connect: Connect, new_topic: NewTopic) -> None:
    reader, writer = connect(), connect()
    topic = new_topic(partitions=50)
    read_upto = dict.fromkeys(range(50), 0)
    for partition in (49, 0, 17):
        wanted = [(topic, index, offset) for index, offset in read_upto.items()]
        request = fetch_request(wanted, max_wait_ms=60_000)
        reader.send(request)
        assert not reader.has_answer(within_s=0.02)
        writer.produce(topic, batch_of(b"v"), partition)
        _, answer = reader.receive(request)
        assert {index for index, found in partitions_of(answer).items() if found} == {partition}
        read_upto[partition] = 1


def test_a_fetch_with_nothing_to_read_is_answered_after_its_wait(connect: Connect, new_topic: NewTopic) -> None:
    client = connect()
    topic = new_topic()
    started = time.monotonic()
    partition = client.fetch(topic, 0, max_wait_ms=200)
    assert time.monotonic() - started > 0.15
    assert (partition.error_code, offsets(partition)) == (ErrorCode.NONE, [])


def test_min_bytes_0_and_an_error_are_answered_at_once(connect: Connect, new_topic: NewTopic) -> None:
    client = connect()
    topic = new_topic()
    started = time.monotonic()
    client.fetch(topic, 0, max_wait_ms=60_000, min_bytes=0)
    assert client.fetch(topic, 5, max_wait_ms=60_000).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert time.monotonic() - started < 30


def test_a_waiting_fetch_learns_that_its_topic_was_deleted(connect: Connect, new_topic: NewTopic) -> None:
    reader, admin = connect(), connect()
    topic = new_topic()
    request = fetch_request([(topic, 0, 0)], max_wait_ms=60_000)
    reader.send(request)
    assert not reader.has_answer(within_s=0.05)
    schema = request_schema(ApiKey.DELETE_TOPICS, 3)
    admin.ask(schema.DeleteTopicsRequest(topic_names=(topic,), timeout=request.max_wait))
    _, answer = reader.receive(request)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -- byte limits


def test_a_first_batch_larger_than_the_limits_still_comes(connect: Connect, new_topic: NewTopic) -> None:
    client = connect()
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        client.produce(topic, batch_of(bytes(50_000)), partition)
        client.produce(topic, batch_of(bytes(50_000)), partition)
    request = fetch_request([(topic, 0, 0), (topic, 1, 0)], max_bytes=100, partition_max_bytes=100)
    first, second = client.ask(request).responses[0].partitions
    assert offsets(first) == [0], "one batch, or the reader would be stuck"
    assert offsets(second) == [], "but only one"
    assert (second.error_code, second.high_watermark) == (ErrorCode.NONE, 2)


def test_the_limits_cut_at_batches(connect: Connect, new_topic: NewTopic) -> None:
    client = connect()
    topic = new_topic(partitions=3)
    batch = batch_of(bytes(1000))
    for _ in range(20):
        for partition in range(3):
            client.produce(topic, batch, partition)
    limit = int(4.5 * len(batch))
    assert offsets(client.fetch(topic, 3, partition_max_bytes=limit)) == [3, 4, 5, 6]
    request = fetch_request(
        [(topic, partition, 0) for partition in range(3)],
        max_bytes=int(6.5 * len(batch)),
        partition_max_bytes=limit,
    )
    found = partitions_of(client.ask(request))
    assert [len(found[partition]) for partition in range(3)] == [4, 2, 0]


def test_an_offset_inside_a_batch_returns_the_whole_batch(connect: Connect, new_topic: NewTopic) -> None:
    client = connect()
    topic = new_topic()
    client.produce(topic, batch_of(*[b"v"] * 10))
    client.produce(topic, batch_of(*[b"w"] * 10))
    assert offsets(client.fetch(topic, 7)) == list(range(20))
    assert offsets(client.fetch(topic, 15)) == list(range(10, 20))


def test_reading_goes_on_over_segment_borders(connect: Connect, new_topic: NewTopic) -> None:
    client = connect()
    topic = new_topic(configs={"segment.bytes": 1 << 20})
    for _ in range(30):
        client.produce(topic, batch_of(bytes(100_000)))
    found: list[int] = []
    while len(found) < 30:
        more = offsets(client.fetch(topic, len(found), partition_max_bytes=250_000))
        assert more, "a fetch below the high watermark always makes progress"
        found += more
    assert found == list(range(30))


# -- where a log begins and ends


@pytest.mark.parametrize("offset", [-1, 4, 2**62])
def test_an_offset_outside_the_log_is_out_of_range(connect: Connect, new_topic: NewTopic, offset: int) -> None:
    client = connect()
    topic = new_topic()
    client.produce(topic, batch_of(b"a", b"b", b"c"))
    partition = client.fetch(topic, offset)
    assert partition.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert not partition.records


@pytest.mark.parametrize("version", range(1, 12))
def test_offsets_are_listed_by_time_in_every_version(connect: Connect, new_topic: NewTopic, version: int) -> None:
    client = connect()
    topic = new_topic()
    for number in range(5):
        client.produce(topic, batch_of(b"a", b"b", timestamp_ms=1_000_000 + 100 * number))

    def listed(timestamp_ms: int) -> tuple[int, int]:
        answer = client.ask(list_offsets_request(topic, timestamp_ms, version=version))
        partition = answer.topics[0].partitions[0]
        assert partition.error_code == ErrorCode.NONE
        return partition.offset, partition.timestamp

    assert listed(EARLIEST) == (0, -1)
    assert listed(LATEST) == (10, -1)
    assert listed(1_000_150) == (4, 1_000_200)
    assert listed(1_000_200) == (4, 1_000_200)
    assert listed(1_000_401) == (-1, -1)
    assert listed(0) == (0, 1_000_000)
    if version >= 7:
        assert listed(MAX_TIMESTAMP) == (8, 1_000_400)


def test_a_leader_epoch_that_is_not_ours_is_unknown(connect: Connect, new_topic: NewTopic) -> None:
    client = connect()
    topic = new_topic()
    client.produce(topic, batch_of(b"v"))
    assert client.fetch(topic, 0, leader_epoch=0).error_code == ErrorCode.NONE
    assert client.fetch(topic, 0, leader_epoch=1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    answer = client.ask(list_offsets_request(topic, LATEST, leader_epoch=7))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_leader_epoch_older_than_ours_is_fenced(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        topic = make_topic(broker.bootstrap_servers)
        # One broker alone never elects a leader again, so the epoch is moved by hand.
        broker._running().node.find_partition(topic, None, 0).leader_epoch = 2
        assert client.fetch(topic, 0, leader_epoch=1).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert client.fetch(topic, 0, leader_epoch=2).error_code == ErrorCode.NONE
        assert client.fetch(topic, 0, leader_epoch=3).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        answer = client.ask(list_offsets_request(topic, LATEST, leader_epoch=1))
        assert answer.topics[0].partitions[0].error_code == ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_end_of_a_leader_epoch_is_told(connect: Connect, new_topic: NewTopic, version: int) -> None:
    client = connect()
    topic = new_topic()
    client.produce(topic, batch_of(b"a", b"b"))
    schema = request_schema(ApiKey.OFFSET_FOR_LEADER_EPOCH, version)

    def end_of(epoch: int) -> tuple[int, int]:
        asked = schema.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=epoch)
        wanted = schema.OffsetForLeaderTopic(topic=topic, partitions=(asked,))
        answer = client.ask(schema.OffsetForLeaderEpochRequest(replica_id=-1, topics=(wanted,)))
        found = answer.topics[0].partitions[0]
        assert found.error_code == ErrorCode.NONE
        return found.leader_epoch, found.end_offset

    assert end_of(0) == (0, 2)
    assert end_of(5) == (-1, -1)


# -- topics by id


def test_a_topic_is_fetched_by_its_id_and_an_unknown_id_is_told(connect: Connect, new_topic: NewTopic) -> None:
    client = connect()
    topic = new_topic()
    client.produce(topic, batch_of(b"v"))
    assert offsets(client.fetch(client.topic_id(topic), 0, version=13)) == [0]
    unknown = client.fetch(uuid.uuid4(), 0, version=13)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert client.fetch(client.topic_id(topic), 0, partition=9, version=13).error_code == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    answer = client.produce(None, batch_of(b"v"), version=13, topic_id=uuid.uuid4())  # type: ignore[arg-type]
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID


# -- sessions


@pytest.mark.parametrize("version", [7, 12, 13, 18])
def test_a_session_answers_only_what_is_new(connect: Connect, new_topic: NewTopic, version: int) -> None:
    client = connect()
    topic = new_topic(partitions=3)
    named = client.topic_id(topic) if version >= 13 else topic
    wanted = [(named, partition, 0) for partition in range(3)]
    first = client.ask(fetch_request(wanted, version=version, session_epoch=0))
    session = first.session_id
    assert first.error_code == ErrorCode.NONE
    assert session != 0
    assert partitions_of(first) == {0: [], 1: [], 2: []}

    def go_on(epoch: int, changes: Any = (), **options: Any) -> dict[int, list[int]]:
        answer = client.ask(fetch_request(changes, version=version, session_id=session, session_epoch=epoch, **options))
        assert (answer.error_code, answer.session_id) == (ErrorCode.NONE, session)
        return partitions_of(answer)

    assert go_on(1) == {}, "nothing new"
    client.produce(topic, batch_of(b"v"), 1)
    assert go_on(2) == {1: [0]}
    assert go_on(3) == {1: [0]}, "until the reader says that it has read it"
    assert go_on(4, [(named, 1, 1)]) == {}
    client.produce(topic, batch_of(b"v"), 1)
    client.produce(topic, batch_of(b"v"), 2)
    assert go_on(5, forgotten=[(named, 1)]) == {2: [0]}, "a forgotten partition is not read any more"
    assert go_on(6, [(named, 1, 0), (named, 2, 1)]) == {1: [0, 1]}, "but can be added again"
    closing = client.ask(fetch_request([], version=version, session_id=session, session_epoch=-1))
    assert (closing.error_code, closing.session_id) == (ErrorCode.NONE, 0)
    gone = client.ask(fetch_request([], version=version, session_id=session, session_epoch=7))
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_with_a_wrong_epoch_or_id_is_refused(connect: Connect, new_topic: NewTopic) -> None:
    client = connect()
    topic = new_topic()
    session = client.ask(fetch_request([(topic, 0, 0)], session_epoch=0)).session_id
    for epoch in (2, 5, 2**31 - 1):
        answer = client.ask(fetch_request([], session_id=session, session_epoch=epoch))
        assert answer.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert client.ask(fetch_request([], session_id=session, session_epoch=1)).error_code == ErrorCode.NONE
    unknown = client.ask(fetch_request([], session_id=session ^ 1, session_epoch=1))
    assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_sessions_long_poll_ends_with_the_first_news(connect: Connect, new_topic: NewTopic) -> None:
    reader, writer = connect(), connect()
    topic = new_topic(partitions=2)
    first = reader.ask(fetch_request([(topic, 0, 0), (topic, 1, 0)], session_epoch=0))
    request = fetch_request([], session_id=first.session_id, session_epoch=1, max_wait_ms=60_000)
    reader.send(request)
    assert not reader.has_answer(within_s=0.05)
    writer.produce(topic, batch_of(b"v"), 1)
    assert partitions_of(reader.receive(request)[1]) == {1: [0]}
