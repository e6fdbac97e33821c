"""Produce, batch by batch: what is refused and how, what is changed on the way in, what a retry gets."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from moldau.errors import ErrorCode
from moldau.wire.batch import encode_batch, iter_headers, read_header
from moldau.wire.compression import Codec
from moldau.wire.messages import encode_request
from tests.integration.conftest import NewTopic
from tests.integration.raw import RawClient, api_versions_request, batch_of, produce_request, records_in
from tests.integration.raw_txn import RawProducer

Connect = Callable[..., RawClient]
CRC_POS = 17


def stored(client: RawClient, topic: str) -> bytes:
    return bytes(client.fetch(topic, 0, partition_max_bytes=20 << 20).records or b"")


def values(client: RawClient, topic: str) -> list[bytes | None]:
    return [record.value for record in records_in(stored(client, topic))]


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_works_in_every_version(connect: Connect, new_topic: NewTopic, version: int) -> None:
    client = connect()
    topic = new_topic()
    topic_id = client.topic_id(topic)
    for offset in range(3):
        answer = client.produce(topic, batch_of(b"v%d" % offset), version=version, topic_id=topic_id)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, offset)
    assert values(client, topic) == [b"v0", b"v1", b"v2"]


def test_offset_and_leader_epoch_are_stamped_and_the_rest_is_untouched(connect: Connect, new_topic: NewTopic) -> None:
    client = connect()
    topic = new_topic()
    first, second = batch_of(b"a", b"b"), batch_of(b"c", headers=[("h", b"x")])
    client.produce(topic, first)
    client.produce(topic, second)
    data = stored(client, topic)
    assert [head.base_offset for _, head in iter_headers(data)] == [0, 2]
    assert [head.leader_epoch for _, head in iter_headers(data)] == [0, 0]
    assert data[16 : len(first)] == first[16:]
    assert data[len(first) + 16 :] == second[16:]


def test_a_retried_idempotent_batch_is_answered_with_its_first_offset_and_written_once(
    connect: Connect, new_topic: NewTopic
) -> None:
    client = connect()
    topic = new_topic()
    producer_id, epoch = client.init_producer_id()
    client.produce(topic, batch_of(b"someone else's"))
    batches = [batch_of(b"%d" % n, b"%d'" % n, producer=(producer_id, epoch, 2 * n)) for n in range(6)]
    for number, batch in enumerate(batches):
        assert client.produce(topic, batch).base_offset == 1 + 2 * number
    for number in range(1, 6):  # Kafka remembers a producer's last five batches
        answer = client.produce(topic, batches[number])
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 1 + 2 * number)
    assert len(values(client, topic)) == 13


def test_a_gap_in_an_idempotent_producers_sequence_is_refused(connect: Connect, new_topic: NewTopic) -> None:
    client = connect()
    topic = new_topic()
    producer_id, epoch = client.init_producer_id()
    assert client.produce(topic, batch_of(b"0", producer=(producer_id, epoch, 0))).error_code == ErrorCode.NONE
    for sequence in (2, 5, 2**31 - 1):
        answer = client.produce(topic, batch_of(b"gap", producer=(producer_id, epoch, sequence)))
        assert answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    # A new epoch starts over at zero, and ends the old one.
    assert client.produce(topic, batch_of(b"x", producer=(producer_id, epoch + 1, 1))).error_code == (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )
    assert client.produce(topic, batch_of(b"1", producer=(producer_id, epoch + 1, 0))).error_code == ErrorCode.NONE
    answer = client.produce(topic, batch_of(b"fenced", producer=(producer_id, epoch, 1)))
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert values(client, topic) == [b"0", b"1"]


def test_sequences_wrap_around_after_the_largest_int(connect: Connect, new_topic: NewTopic) -> None:
    client = connect()
    topic = new_topic()
    producer_id, epoch = client.init_producer_id()
    # A producer unknown to the partition may begin anywhere, as one whose state has expired.
    assert client.produce(topic, batch_of(b"a", b"b", producer=(producer_id, epoch, 2**31 - 2))).error_code == 0
    assert client.produce(topic, batch_of(b"c", producer=(producer_id, epoch, 0))).error_code == 0
    assert client.produce(topic, batch_of(b"c", producer=(producer_id, epoch, 0))).base_offset == 2
    assert values(client, topic) == [b"a", b"b", b"c"]


def damaged(change: Callable[[bytearray], None]) -> bytes:
    batch = bytearray(batch_of(b"value" * 10))
    change(batch)
    return bytes(batch)


def flip_last(batch: bytearray) -> None:
    batch[-1] ^= 1


def flip_crc(batch: bytearray) -> None:
    batch[CRC_POS] ^= 0xFF


def set_magic(magic: int) -> Callable[[bytearray], None]:
    def change(batch: bytearray) -> None:
        batch[16] = magic

    return change


def claim_more(batch: bytearray) -> None:
    struct.pack_into(">i", batch, 8, len(batch))


def claim_giant(batch: bytearray) -> None:
    struct.pack_into(">i", batch, 8, 2**31 - 1)


MESSAGE_MAGIC_1 = struct.pack(">qiIbbqiii", 0, 22 + 4, 0, 1, 0, 0, -1, 4, 0)


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (damaged(flip_last), ErrorCode.CORRUPT_MESSAGE),
        (damaged(flip_crc), ErrorCode.CORRUPT_MESSAGE),
        (damaged(claim_more), ErrorCode.CORRUPT_MESSAGE),
        (damaged(claim_giant), ErrorCode.CORRUPT_MESSAGE),
        (damaged(set_magic(3)), ErrorCode.CORRUPT_MESSAGE),
        (damaged(set_magic(1)), ErrorCode.INVALID_RECORD),
        (batch_of(b"one") + batch_of(b"two"), ErrorCode.INVALID_RECORD),
        (batch_of(b"far in the future", timestamp_ms=2**62), ErrorCode.INVALID_TIMESTAMP),
        (batch_of(b"as a broker", log_append_time=True), ErrorCode.INVALID_TIMESTAMP),
        (batch_of(b"as a broker", is_control=True), ErrorCode.INVALID_RECORD),
        (batch_of(b"offset", base_offset=5), ErrorCode.INVALID_RECORD),
        (batch_of(b"v")[:40], ErrorCode.CORRUPT_MESSAGE),
        (b"", ErrorCode.INVALID_RECORD),
        (None, ErrorCode.INVALID_RECORD),
    ],
    ids=[
        "bad-record", "bad-crc", "length-too-long", "giant-length", "magic-3", "magic-1", "two-batches",
        "future", "append-time", "control", "base-offset", "header-cut", "empty", "null",
    ],
)  # fmt: skip
def test_a_bad_batch_is_refused_with_kafkas_code_and_the_connection_lives_on(
    connect: Connect, new_topic: NewTopic, batch: bytes | None, code: ErrorCode
) -> None:
    client = connect()
    topic = new_topic()
    answer = client.produce(topic, batch)
    assert (ErrorCode(answer.error_code).name, answer.base_offset) == (code.name, -1)
    assert answer.error_message, "a refusal says why"
    assert client.produce(topic, batch_of(b"good")).base_offset == 0
    assert values(client, topic) == [b"good"]


def test_a_message_set_of_the_old_format_is_refused(connect: Connect, new_topic: NewTopic) -> None:
    client = connect()
    topic = new_topic()
    answer = client.produce(topic, MESSAGE_MAGIC_1, version=3)
    assert answer.error_code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
    assert client.fetch(topic, 0).high_watermark == 0


def test_a_batch_over_the_topics_limit_is_refused_and_one_at_the_limit_taken(
    connect: Connect, new_topic: NewTopic
) -> None:
    client = connect()
    fitting = batch_of(bytes(5000))
    topic = new_topic(configs={"max.message.bytes": len(fitting)})
    answer = client.produce(topic, batch_of(bytes(5001)))
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert "max.message.bytes" in answer.error_message
    assert client.produce(topic, fitting).error_code == ErrorCode.NONE


def test_one_bad_partition_does_not_spoil_the_others_of_its_request(connect: Connect, new_topic: NewTopic) -> None:
    client = connect()
    topic = new_topic(partitions=2)
    schema_request = produce_request(topic, batch_of(b"good"), 0)
    bad = produce_request(topic, damaged(flip_crc), 1)
    elsewhere = produce_request("no-such-topic", batch_of(b"lost"), 0)
    topics = (*schema_request.topic_data, *bad.topic_data, *elsewhere.topic_data)
    request = type(schema_request)(transactional_id=None, acks=-1, timeout=schema_request.timeout, topic_data=topics)
    answer = client.ask(request)
    codes = [part.error_code for one in answer.responses for part in one.partition_responses]
    assert codes == [ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert values(client, topic) == [b"good"]


@pytest.mark.parametrize("version", [3, 9, 13])
def test_a_partition_that_is_named_twice_is_refused_and_the_others_are_written(
    connect: Connect, new_topic: NewTopic, version: int
) -> None:
    client = connect()
    topic = new_topic(partitions=2)
    by = {"topic_id": client.topic_id(topic)} if version >= 13 else {}
    requests = [
        produce_request(None if by else topic, batch_of(b"x"), index, version=version, **by) for index in (0, 1, 0)
    ]
    together = replace(requests[0], topic_data=tuple(request.topic_data[0] for request in requests))
    answer = client.ask(together)
    parts = [part for found in answer.responses for part in found.partition_responses]
    assert [part.error_code for part in parts] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert client.fetch(topic, 0, 0).high_watermark == 0
    assert client.fetch(topic, 0, 1).high_watermark == 1


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_acks_that_do_not_exist_are_refused(connect: Connect, new_topic: NewTopic, acks: int) -> None:
    client = connect()
    answer = client.produce(new_topic(), batch_of(b"v"), acks=acks)
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_acks_0_gets_no_answer_and_a_failed_one_closes_the_connection(connect: Connect, new_topic: NewTopic) -> None:
    client = connect()
    topic = new_topic()
    client.send(produce_request(topic, batch_of(b"silent"), acks=0))
    assert client.ask(api_versions_request()).error_code == 0  # the first answer is this one's
    assert values(client, topic) == [b"silent"]
    client.send_bytes(encode_request(9, "raw", produce_request(topic, damaged(flip_crc), acks=0)))
    assert client.is_closed()
    other = connect()
    other.send(produce_request("no-such-topic", batch_of(b"v"), acks=0))
    assert other.is_closed()


def test_the_brokers_clock_stamps_records_of_a_log_append_time_topic(connect: Connect, new_topic: NewTopic) -> None:
    client = connect()
    topic = new_topic(configs={"message.timestamp.type": "LogAppendTime"})
    before_ms = time.time_ns() // 1_000_000
    answer = client.produce(topic, batch_of(b"a", b"b", timestamp_ms=12345))
    after_ms = time.time_ns() // 1_000_000
    append_time_ms = round(answer.log_append_time.timestamp() * 1000)
    assert before_ms <= append_time_ms <= after_ms
    assert read_header(stored(client, topic)).is_log_append_time
    assert {record.timestamp_ms for record in records_in(stored(client, topic))} == {append_time_ms}


@pytest.mark.parametrize("sent", list(Codec))
@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"])
def test_records_are_stored_in_the_topics_compression(
    connect: Connect, new_topic: NewTopic, wanted: str, sent: Codec
) -> None:
    client = connect()
    topic = new_topic(configs={"compression.type": wanted})
    answer = client.produce(topic, batch_of(b"a" * 500, b"b" * 500, key=b"k", headers=[("h", None)], codec=sent))
    assert answer.error_code == ErrorCode.NONE
    head = read_header(stored(client, topic))
    expected = sent if wanted == "producer" else Codec.NONE if wanted == "uncompressed" else Codec[wanted.upper()]
    assert head.codec == expected
    assert [(record.key, record.value, record.headers) for record in records_in(stored(client, topic))] == [
        (b"k", b"a" * 500, (("h", None),)),
        (b"k", b"b" * 500, (("h", None),)),
    ]


def test_a_compacted_topic_takes_no_record_without_a_key(connect: Connect, new_topic: NewTopic) -> None:
    client = connect()
    topic = new_topic(configs={"cleanup.policy": "compact"})
    assert client.produce(topic, batch_of(b"no key")).error_code == ErrorCode.INVALID_RECORD
    assert client.produce(topic, batch_of(b"v", key=b"k")).error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", range(8, 13))
def test_the_records_that_cost_a_batch_its_place_are_named(connect: Connect, new_topic: NewTopic, version: int) -> None:
    client = connect()
    topic = new_topic(configs={"cleanup.policy": "compact"})
    now_ms = int(time.time() * 1000)
    rows = [(None if place in (1, 3) else b"k", b"v", now_ms, ()) for place in range(5)]
    answer = client.produce(topic, encode_batch(rows), version=version)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert [error.batch_index for error in answer.record_errors] == [1, 3]
    tomorrow = [(b"k", b"v", now_ms + (86_400_000 if place == 2 else 0), ()) for place in range(3)]
    answer = client.produce(topic, encode_batch(tomorrow), version=version)
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in answer.record_errors] == [2]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_decompression_bomb_is_refused(connect: Connect, new_topic: NewTopic, codec: Codec) -> None:
    client = connect()
    topic = new_topic(configs={"compression.type": "uncompressed", "max.message.bytes": 5_000_000})
    # Snappy cannot make more than 20 bytes out of one, so its bomb is smaller.
    zeros_mb = 100 if codec is Codec.SNAPPY else 300
    answer = client.produce(topic, batch_of(*[bytes(1 << 20)] * zeros_mb, codec=codec))
    assert answer.error_code in (ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE)
    assert client.produce(topic, batch_of(b"good")).base_offset == 0


def test_a_transactional_produce_is_refused_to_who_was_never_given_an_id(connect: Connect, new_topic: NewTopic) -> None:
    client = connect()
    RawProducer(client, "t").find_coordinator()
    batch = batch_of(b"v", producer=(7, 0, 0), is_transactional=True)
    answer: Any = client.produce(new_topic(), batch, transactional_id="t")
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_nobody_but_the_coordinators_writes_to_their_topics(connect: Connect) -> None:
    client = connect()
    producer = RawProducer(client).init()  # the topic is there then
    forged = batch_of(b"\0\1" + bytes(40), key=b"\0\0\0\1t")
    answer = client.produce("__transaction_state", forged)
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    answer = producer.send("__transaction_state", b"part of a transaction")
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    producer.abort()
    client.send_bytes(encode_request(77, "__admin_client", request := produce_request("__transaction_state", None)))
    _, as_a_tool = client.receive(request)
    assert as_a_tool.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_RECORD, "it is let in"


def test_a_batch_that_a_thread_looks_into_is_not_overwritten_by_what_follows_it(
    connect: Connect, new_topic: NewTopic
) -> None:
    """Its bytes lie in the connection's buffer, where the next requests arrive meanwhile."""
    client = connect()
    topic = new_topic(configs={"compression.type": "gzip"})
    sent = [bytes([ord("a") + number]) * 10_000 for number in range(20)]
    frames = [
        encode_request(number, "raw", produce_request(topic, batch_of(value))) for number, value in enumerate(sent)
    ]
    client.send_bytes(b"".join(frames))
    for number in range(len(sent)):
        correlation_id, answer = client.receive(produce_request(topic, batch_of(b"")))
        (result,) = answer.responses[0].partition_responses
        assert (correlation_id, result.error_code, result.base_offset) == (number, ErrorCode.NONE, number)
    assert values(client, topic) == sent
    assert {head.codec for _, head in iter_headers(stored(client, topic))} == {Codec.GZIP}
