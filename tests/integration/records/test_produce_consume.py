"""What one client writes, every client reads: all pairs, all codecs, everything a record can hold."""

from __future__ import annotations

import time
from collections.abc import Sequence

import kafka.partitioner.default
import pytest

from moldau.wire.apis import ApiKey
from moldau.wire.batch import read_header
from tests.integration.clients import CLIENTS, CODECS, Client, Message, Received
from tests.integration.conftest import NewTopic
from tests.integration.raw import RawClient, api_versions_request

each_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda one: one.name)
each_writer = pytest.mark.parametrize("writer", CLIENTS, ids=lambda one: one.name)
each_reader = pytest.mark.parametrize("reader", CLIENTS, ids=lambda one: one.name)

NOW_MS = time.time_ns() // 1_000_000


def contents(records: Sequence[Received]) -> list[tuple[object, ...]]:
    return [record[1:] for record in records]


def stored_codec(client: RawClient, topic: str) -> str:
    return read_header(bytes(client.fetch(topic, 0).records)).codec.name.lower()


def lz4_is_off(client: RawClient, writer: Client, codec: str) -> bool:
    """librdkafka compresses with lz4 only where FindCoordinator is served, by which it tells new brokers from old."""
    served = {api.api_key for api in client.ask(api_versions_request()).api_keys}
    return writer.name == "confluent-kafka" and codec == "lz4" and ApiKey.FIND_COORDINATOR not in served


@pytest.mark.parametrize("codec", CODECS)
@each_writer
def test_every_client_reads_what_any_client_wrote_with_any_codec(
    bootstrap: str, new_topic: NewTopic, writer: Client, codec: str
) -> None:
    if codec not in writer.codecs():
        pytest.skip(f"{writer.name} has no {codec} library here")
    topic = new_topic()
    messages = [
        Message(b"value %d " % number * 20, b"key %d" % (number % 7), (("n", b"%d" % number),), NOW_MS + number, 0)
        for number in range(200)
    ]
    places = writer.produce(bootstrap, topic, messages, codec=codec)
    assert places == [(0, offset) for offset in range(200)]
    with RawClient(bootstrap) as raw:
        assert stored_codec(raw, topic) == codec or lz4_is_off(raw, writer, codec)
    wanted = [(one.value, one.key, one.headers, one.timestamp_ms) for one in messages]
    for reader in CLIENTS:
        if codec in reader.codecs():
            records = reader.read(bootstrap, topic, count=200)
            assert [record.offset for record in records] == list(range(200)), reader.name
            assert contents(records) == wanted, reader.name


@each_reader
@each_writer
def test_null_and_empty_keys_values_and_headers_stay_what_they_are(
    bootstrap: str, new_topic: NewTopic, writer: Client, reader: Client
) -> None:
    topic = new_topic()
    messages = [
        Message(None, b"tombstone"),
        Message(b"", b"empty value"),
        Message(b"no key", None),
        Message(b"empty key", b""),
        Message(b"many headers", b"k", (("a", b"1"), ("a", b"2"), ("empty", b""), ("ž", bytes(range(256))))),
        Message(bytes(range(256)) * 10, bytes(range(256))),
    ]
    messages = [message._replace(timestamp_ms=NOW_MS, partition=0) for message in messages]
    writer.produce(bootstrap, topic, messages)
    records = reader.read(bootstrap, topic, count=len(messages))
    assert contents(records) == [(one.value, one.key, one.headers, one.timestamp_ms) for one in messages]


@each_writer
def test_messages_up_to_the_topics_limit_pass(bootstrap: str, new_topic: NewTopic, writer: Client) -> None:
    topic = new_topic(configs={"max.message.bytes": 12_000_000})
    value = bytes(range(256)) * 40_000  # 10.24 MB
    messages = [Message(b"small", partition=0), Message(value, partition=0), Message(b"after", partition=0)]
    writer.produce(bootstrap, topic, messages, max_bytes=11_000_000)
    for reader in CLIENTS:
        found = reader.read(bootstrap, topic, count=3)
        assert [record.value for record in found] == [b"small", value, b"after"]


@each_client
def test_keys_land_where_apache_kafka_puts_them(bootstrap: str, new_topic: NewTopic, client: Client) -> None:
    topic = new_topic(partitions=7)
    # From Kafka's own test of its hash (UtilsTest.testMurmur2).
    hashes = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    places = client.produce(bootstrap, topic, [Message(b"v", key) for key in hashes])
    assert [partition for partition, _ in places] == [(value & 0x7FFF_FFFF) % 7 for value in hashes.values()]


def test_all_clients_agree_on_the_partition_of_a_thousand_keys(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=12)
    keys = [b"user-%d" % number for number in range(1000)]
    expected = [(kafka.partitioner.default.murmur2(key) & 0x7FFF_FFFF) % 12 for key in keys]
    for client in CLIENTS:
        places = client.produce(bootstrap, topic, [Message(b"", key) for key in keys])
        assert [partition for partition, _ in places] == expected, client.name


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@each_client
def test_every_kind_of_acknowledgement_is_served(
    bootstrap: str, new_topic: NewTopic, client: Client, acks: str
) -> None:
    topic = new_topic()
    values = [b"%d" % number for number in range(100)]
    places = client.produce(bootstrap, topic, [Message(value, partition=0) for value in values], acks=acks)
    if acks != "0":
        assert places == [(0, offset) for offset in range(100)]
    assert [record.value for record in client.read(bootstrap, topic, count=100)] == values


@each_client
def test_order_within_each_partition_is_the_order_of_sending(
    bootstrap: str, new_topic: NewTopic, client: Client
) -> None:
    topic = new_topic(partitions=3)
    messages = [Message(b"%06d" % number, partition=number % 3) for number in range(3000)]
    client.produce(bootstrap, topic, messages, linger_ms=0)
    for partition in range(3):
        found = client.read(bootstrap, topic, partition, count=1000)
        assert [record.value for record in found] == [b"%06d" % number for number in range(partition, 3000, 3)]
        assert [record.offset for record in found] == list(range(1000))


@each_client
def test_an_idempotent_producer_with_five_requests_in_flight_writes_each_once_and_in_order(
    bootstrap: str, new_topic: NewTopic, client: Client
) -> None:
    topic = new_topic()
    values = [b"%06d" % number for number in range(5000)]
    messages = [Message(value, partition=0) for value in values]
    places = client.produce(bootstrap, topic, messages, idempotent=True, linger_ms=0)
    assert places == [(0, offset) for offset in range(5000)]
    assert [record.value for record in client.read(bootstrap, topic, count=5000)] == values
    assert client.first_and_end_offset(bootstrap, topic) == (0, 5000)


@each_client
def test_reading_starts_at_the_beginning_the_end_an_offset_or_a_time(
    bootstrap: str, new_topic: NewTopic, client: Client
) -> None:
    topic = new_topic()
    messages = [Message(b"%d" % number, timestamp_ms=NOW_MS + 10 * number, partition=0) for number in range(300)]
    client.produce(bootstrap, topic, messages)
    first, end = client.first_and_end_offset(bootstrap, topic)
    assert (first, end) == (0, 300)
    assert client.read(bootstrap, topic, start=first, count=1)[0].value == b"0"
    assert client.read(bootstrap, topic, start=137, count=2)[0].value == b"137"
    # The first record that is not older than the time, not the beginning of its batch.
    assert client.offset_for_time(bootstrap, topic, NOW_MS + 1234) == 124
    assert client.offset_for_time(bootstrap, topic, NOW_MS) == 0
    assert client.offset_for_time(bootstrap, topic, 0) == 0
    assert client.offset_for_time(bootstrap, topic, NOW_MS + 2991) is None
    client.produce(bootstrap, topic, [Message(b"after the end", partition=0)])
    assert client.read(bootstrap, topic, start=end, count=1)[0].value == b"after the end"


def test_many_readers_read_at_their_own_pace(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(configs={"segment.bytes": 1 << 20})
    confluent, kafka_python, aiokafka = CLIENTS
    confluent.produce(bootstrap, topic, [Message(b"%05d" % n + bytes(1000), partition=0) for n in range(5000)])
    for start in (4999, 0, 2500, 1):
        for reader in (kafka_python, aiokafka, confluent):
            found = reader.read(bootstrap, topic, start=start, count=min(50, 5000 - start))
            assert [record.value[:5] for record in found if record.value] == [
                b"%05d" % n for n in range(start, min(start + 50, 5000))
            ]


def test_a_topic_is_created_by_the_first_message_for_it(bootstrap: str, new_topic: NewTopic) -> None:
    for client in CLIENTS:
        topic = f"made-by-{client.name}-{time.time_ns()}"
        client.produce(bootstrap, topic, [Message(b"first")])
        assert client.read(bootstrap, topic, count=1)[0].value == b"first"
