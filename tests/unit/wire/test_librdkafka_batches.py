"""Batches against librdkafka itself: its mock broker keeps the raw bytes that it wrote, and serves ours."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from moldau.wire.apis import ApiKey
from moldau.wire.batch import Record, check_batch, decode_records, encode_batch, iter_headers
from moldau.wire.compression import Codec
from moldau.wire.messages import decode_response, encode_request, ms, request_schema

FETCH_VERSION = 11
PRODUCE_VERSION = 7
HEADERS: list[tuple[str, bytes | None]] = [("trace", b"id"), ("none", None)]
RECORDS = [(b"key-%d" % number, b"value " * number, HEADERS) for number in range(1, 400)]


def call(address: tuple[str, int], key: int, version: int, entity: Any) -> Any:
    with socket.create_connection(address, timeout=10) as connection, connection.makefile("rb") as stream:
        connection.sendall(encode_request(1, "test", entity))
        (size,) = struct.unpack(">i", stream.read(4))
        return decode_response(key, version, stream.read(size))[1]


def fetch(address: tuple[str, int], topic: str, offset: int) -> bytes:
    schema = request_schema(ApiKey.FETCH, FETCH_VERSION)
    partition = schema.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=10_000_000)
    request = schema.FetchRequest(
        replica_id=-1,
        max_wait=ms(100),
        min_bytes=1,
        topics=(schema.FetchTopic(topic=topic, partitions=(partition,)),),
        forgotten_topics_data=(),
    )
    response = call(address, ApiKey.FETCH, FETCH_VERSION, request)
    stored: bytes = response.responses[0].partitions[0].records
    assert stored, f"nothing is stored at offset {offset}"
    return stored


@pytest.fixture(scope="module")
def mock() -> Iterator[tuple[str, int]]:
    owner = Producer({"bootstrap.servers": "", "test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = owner.list_topics(timeout=10).brokers.values()
    yield broker.host, broker.port
    owner.flush(1)


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name)
def test_what_librdkafka_writes_is_read(mock: tuple[str, int], codec: Codec) -> None:
    topic = f"from-librdkafka-{codec.name.lower()}"
    servers = f"{mock[0]}:{mock[1]}"
    # On a busy machine the flush may send the first records on their own, and a batch too small to gain by
    # compression goes without; the large rest never does.
    producer = Producer({"bootstrap.servers": servers, "compression.type": codec.name.lower(), "linger.ms": 10_000})
    for key, value, headers in RECORDS:
        producer.produce(topic, key=key, value=value, headers=dict(headers), partition=0, timestamp=1_700_000_000_000)
    assert producer.flush(10) == 0
    read: list[Record] = []
    codecs = set()
    while len(read) < len(RECORDS):
        stored = fetch(mock, topic, len(read))
        for pos, header in iter_headers(stored):
            check_batch(stored, pos, header, strict=header.base_offset == 0)
            codecs.add(header.codec)
            read += decode_records(stored, pos, header)
    assert codec in codecs
    assert codecs <= {codec, Codec.NONE}
    assert [(record.key, record.value, list(record.headers)) for record in read] == RECORDS
    assert {record.timestamp_ms for record in read} == {1_700_000_000_000}
    assert [record.offset for record in read] == list(range(len(RECORDS)))


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name)
def test_librdkafka_reads_what_is_written_here(mock: tuple[str, int], codec: Codec) -> None:
    topic = f"to-librdkafka-{codec.name.lower()}"
    batch = encode_batch([(key, value, 1_000, headers) for key, value, headers in RECORDS], codec=codec)
    schema = request_schema(ApiKey.PRODUCE, PRODUCE_VERSION)
    data = schema.TopicProduceData(name=topic, partition_data=(schema.PartitionProduceData(index=0, records=batch),))
    request = schema.ProduceRequest(acks=-1, timeout=ms(1_000), topic_data=(data,))
    Producer({"bootstrap.servers": f"{mock[0]}:{mock[1]}"}).list_topics(topic, timeout=10)
    response = call(mock, ApiKey.PRODUCE, PRODUCE_VERSION, request)
    assert response.responses[0].partition_responses[0].error_code.value == 0
    settings = {"bootstrap.servers": f"{mock[0]}:{mock[1]}", "group.id": "g", "check.crcs": True}
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages: list[Message] = []
        while len(messages) < len(RECORDS):
            message = consumer.poll(10)
            assert message is not None
            assert message.error() is None
            messages.append(message)
    finally:
        consumer.close()
    assert [(message.key(), message.value(), message.headers()) for message in messages] == RECORDS
    assert [message.offset() for message in messages] == list(range(len(RECORDS)))
