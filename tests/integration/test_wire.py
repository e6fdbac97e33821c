"""The protocol as bytes: what is answered, in which order, and what closes a connection."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest

from fuzz.requests import RequestMaker, Target
from moldau import Broker
from moldau.errors import ErrorCode
from moldau.wire.apis import APIS, ApiKey
from moldau.wire.messages import decode_response, encode_request
from soak.broker_process import BrokerProcess
from tests.integration.conftest import NewTopic
from tests.integration.raw import (
    RawClient,
    api_versions_request,
    batch_of,
    fetch_request,
    frame,
    header,
    list_offsets_request,
    produce_request,
)

Connect = Callable[..., RawClient]


def served(client: RawClient) -> dict[int, tuple[int, int]]:
    return {api.api_key: (api.min_version, api.max_version) for api in client.ask(api_versions_request()).api_keys}


def test_every_served_api_answers_in_every_version(connect: Connect, new_topic: NewTopic) -> None:
    client = connect()
    topic = new_topic()
    target = Target([(topic, client.topic_id(topic))], "no-such-topic")
    for key, (_, highest) in served(client).items():
        for version in range(APIS[key].min_version, highest + 1):
            maker = RequestMaker(target, random.Random(7))
            request = maker.request(key, version)
            while key == ApiKey.PRODUCE and request.acks == 0:  # that one has no answer
                request = maker.request(key, version)
            client.ask(request)  # fails on a closed connection, a wrong correlation id, an undecodable answer


def test_the_served_versions_are_those_of_the_protocol_table(connect: Connect) -> None:
    versions = served(connect())
    for key, (lowest, highest) in versions.items():
        assert (lowest, highest) == (APIS[key].advertised_min, APIS[key].max_version), APIS[key].name
    assert versions[ApiKey.PRODUCE] == (0, 13), "librdkafka drops compression when Produce 0 is missing"
    assert versions[ApiKey.API_VERSIONS] == (0, 4)


def test_pipelined_requests_are_answered_in_order(connect: Connect, new_topic: NewTopic) -> None:
    client = connect()
    topic = new_topic()
    fast, slow = api_versions_request(), fetch_request([(topic, 0, 0)], max_wait_ms=300)
    write = produce_request(topic, batch_of(b"v"))
    kinds = [fast, slow, fast, write, slow, fast, list_offsets_request(topic, -1)] * 20
    client.send_bytes(b"".join(encode_request(number, "raw", kind) for number, kind in enumerate(kinds)))
    for number, kind in enumerate(kinds):
        assert client.receive(kind)[0] == number


def test_requests_cut_into_single_bytes_are_answered(connect: Connect) -> None:
    client = connect()
    for byte in encode_request(5, "raw", api_versions_request(3)):
        client.send_bytes(bytes([byte]))
    assert client.receive(api_versions_request(3))[0] == 5


def test_api_versions_in_an_unknown_version_is_answered_in_version_0_with_the_table(connect: Connect) -> None:
    client = connect()
    for version in (5, 99, 32767):
        client.send_bytes(frame(header(ApiKey.API_VERSIONS, version, 77) + b"whatever a newer client sends"))
        answer = client.receive_frame()
        assert answer is not None
        correlation_id, table = decode_response(ApiKey.API_VERSIONS, 0, answer)
        assert (correlation_id, table.error_code) == (77, ErrorCode.UNSUPPORTED_VERSION)
        assert {api.api_key: (api.min_version, api.max_version) for api in table.api_keys} == served(client)


@pytest.mark.parametrize("version", [0, 1, 2, 14])
def test_produce_in_a_version_that_is_not_served_closes_the_connection(connect: Connect, version: int) -> None:
    client = connect()
    client.send_bytes(frame(header(ApiKey.PRODUCE, version) + bytes(10)))
    assert client.is_closed()


@pytest.mark.parametrize("key", [4, 5, 6, 7, 999, -1, 32767])
def test_an_unknown_api_key_closes_the_connection(connect: Connect, key: int) -> None:
    client = connect()
    client.send_bytes(frame(header(key, 0)))
    assert client.is_closed()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),  # TLS
        struct.pack(">i", 0),
        struct.pack(">i", -5),
        frame(b"\0"),
        frame(header(ApiKey.METADATA, 4) + b"\xff\xff\xff"),
        frame(header(ApiKey.LIST_OFFSETS, 1) + struct.pack(">ii", -1, 0) + b"left over"),
        frame(struct.pack(">hhih", 18, 0, 1, -7)),
        frame(struct.pack(">hhih", 18, 0, 1, 3) + b"\xff\xff\xff"),
    ],
    ids=[
        "http",
        "tls",
        "zero",
        "negative",
        "short",
        "underflow",
        "left-over",
        "client-id-length",
        "client-id-utf8",
    ],
)
def test_bytes_that_are_no_request_close_their_connection_only(connect: Connect, data: bytes) -> None:
    neighbour, client = connect(), connect()
    neighbour.ask(api_versions_request())
    client.send_bytes(data)
    assert client.is_closed()
    neighbour.ask(api_versions_request())


def test_a_request_over_the_limit_closes_and_the_neighbour_goes_on(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    limit = 10_000
    folder = tmp_path_factory.mktemp("limit")
    with (
        Broker({"socket.request.max.bytes": limit}, data_dir=folder) as broker,
        RawClient(broker.bootstrap_servers) as neighbour,
        RawClient(broker.bootstrap_servers) as client,
    ):
        neighbour.ask(api_versions_request())
        client.send_bytes(struct.pack(">i", limit + 1))
        assert client.is_closed()
        neighbour.ask(api_versions_request())
        # Exactly the limit is a request like any other: here the name of a topic nobody has.
        empty = encode_request(1, "raw", list_offsets_request("", -1, version=4))
        fitting = list_offsets_request("x" * (limit - len(empty) + 4), -1, version=4)
        assert len(encode_request(1, "raw", fitting)) == limit + 4
        answer = neighbour.ask(fitting)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_client_that_leaves_in_the_middle_hurts_nobody(connect: Connect, new_topic: NewTopic) -> None:
    topic = new_topic()
    for _ in range(50):
        client = connect()
        client.send(fetch_request([(topic, 0, 0)], max_wait_ms=10_000))
        client.send_bytes(encode_request(2, "raw", produce_request(topic, batch_of(bytes(1000))))[:500])
        client.socket.close()
    with_records = connect()
    with_records.produce(topic, batch_of(b"v"))
    assert with_records.fetch(topic, 0).high_watermark == 1


GIANT = 2**31 - 1


def giant_lengths() -> dict[str, bytes]:
    """One frame for each place where a length can stand, with the largest length there."""
    int32, int16, compact = struct.pack(">i", GIANT), struct.pack(">h", 32767), b"\xff\xff\xff\xff\x07"
    produce_3 = header(ApiKey.PRODUCE, 3) + struct.pack(">hhi", -1, 1, 1000)
    produce_9 = header(ApiKey.PRODUCE, 9) + b"\0" + struct.pack(">hi", 1, 1000)
    fetch_4 = header(ApiKey.FETCH, 4) + struct.pack(">iiiib", -1, 0, 1, GIANT, 0)
    fetch_12 = header(ApiKey.FETCH, 12) + struct.pack(">iiiibii", -1, 0, 1, GIANT, 0, 0, -1)
    return {
        "frame": int32,
        "client id": frame(struct.pack(">hhi", 18, 0, 1) + int16),
        "header tags": frame(struct.pack(">hhih", 18, 3, 1, -1) + compact),
        "transactional id": frame(header(ApiKey.PRODUCE, 3) + int16),
        "produce topics": frame(produce_3 + int32),
        "produce topic name": frame(produce_3 + struct.pack(">i", 1) + int16),
        "produce partitions": frame(produce_3 + struct.pack(">ih", 1, 1) + b"t" + int32),
        "produce records": frame(produce_3 + struct.pack(">ih", 1, 1) + b"t" + struct.pack(">ii", 1, 0) + int32),
        "compact produce topics": frame(produce_9 + compact),
        "compact produce name": frame(produce_9 + b"\x02" + compact),
        "compact produce partitions": frame(produce_9 + b"\x02\x02t" + compact),
        "compact produce records": frame(produce_9 + b"\x02\x02t\x02" + bytes(4) + compact),
        "compact produce tags": frame(produce_9 + b"\x02\x02t\x02" + bytes(4) + b"\x01" + compact),
        "fetch topics": frame(fetch_4 + int32),
        "fetch partitions": frame(fetch_4 + struct.pack(">ih", 1, 1) + b"t" + int32),
        "compact fetch topics": frame(fetch_12 + compact),
        "compact fetch partitions": frame(fetch_12 + b"\x02\x02t" + compact),
        "compact fetch forgotten": frame(fetch_12 + b"\x01" + compact),
        "compact fetch rack": frame(fetch_12 + b"\x01\x01" + compact),
        "metadata topics": frame(header(ApiKey.METADATA, 4) + int32),
        "compact metadata topics": frame(header(ApiKey.METADATA, 9) + compact),
        "create topics": frame(header(ApiKey.CREATE_TOPICS, 2) + int32),
        "compact create topics": frame(header(ApiKey.CREATE_TOPICS, 5) + compact),
        "delete topics": frame(header(ApiKey.DELETE_TOPICS, 1) + int32),
        "list offsets": frame(header(ApiKey.LIST_OFFSETS, 1) + struct.pack(">i", -1) + int32),
        "describe configs": frame(header(ApiKey.DESCRIBE_CONFIGS, 1) + int32),
        "log dirs": frame(header(ApiKey.DESCRIBE_LOG_DIRS, 1) + int32),
        "software name": frame(header(ApiKey.API_VERSIONS, 3) + compact),
    }


def test_giant_lengths_from_a_hundred_connections_cost_no_memory(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    frames = giant_lengths()
    with BrokerProcess(tmp_path_factory.mktemp("giant"), log_level="WARNING") as broker:
        with RawClient(broker.bootstrap) as client:
            client.ask(api_versions_request())
        before_bytes = highest_bytes = broker.rss_bytes()
        for name, data in frames.items():
            clients = [RawClient(broker.bootstrap) for _ in range(100)]
            for client in clients:
                client.send_bytes(data)
            highest_bytes = max(highest_bytes, broker.rss_bytes())
            assert all(client.is_closed() for client in clients), name
            for client in clients:
                client.socket.close()
        assert max(highest_bytes, broker.rss_bytes()) - before_bytes < 32 << 20
        with RawClient(broker.bootstrap) as client:
            client.ask(api_versions_request())
        assert broker.metrics()["moldau_unexpected_errors_total"] == 0
