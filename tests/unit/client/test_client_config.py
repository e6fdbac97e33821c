"""Client properties: where to connect, how long to wait, and what is wrong with them when they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from moldau.client.config import ClientConfig, parse_servers
from moldau.client.librdkafka import producer_defaults, to_librdkafka
from moldau.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("localhost:9092", (("localhost", 9092),)),
        (" a:1 , b:2,", (("a", 1), ("b", 2))),
        ("PLAINTEXT://broker.example:19092", (("broker.example", 19092),)),
        ("[::1]:9092", (("::1", 9092),)),
    ],
)
def test_bootstrap_servers_are_read_in_every_form_kafka_takes(text: str, servers: object) -> None:
    assert parse_servers(text) == servers


@pytest.mark.parametrize("text", ["", "localhost", "localhost:", ":9092", "localhost:0", "localhost:65536", "a:b"])
def test_a_bad_bootstrap_server_is_named_in_the_error(text: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        parse_servers(text)


def test_the_command_line_wins_over_the_properties() -> None:
    config = ClientConfig.from_properties("a:1", {"bootstrap.servers": "b:2", "client.id": "me"})
    assert config.bootstrap_servers == (("a", 1),)
    assert config.client_id == "me"


def test_properties_may_bring_the_servers_and_the_timeouts() -> None:
    props = {"bootstrap.servers": "b:2", "request.timeout.ms": "7", "default.api.timeout.ms": "8"}
    config = ClientConfig.from_properties("", props)
    assert (config.bootstrap_servers, config.request_timeout_ms, config.api_timeout_ms) == ((("b", 2),), 7, 8)


@pytest.mark.parametrize("value", ["0", "-1", "soon", ""])
def test_a_timeout_that_is_no_number_is_refused_by_name(value: str) -> None:
    with pytest.raises(ConfigError, match=r"request\.timeout\.ms"):
        ClientConfig.from_properties("a:1", {"request.timeout.ms": value})


def test_java_properties_mean_the_same_to_librdkafka(tmp_path: Path) -> None:
    config, ignored = to_librdkafka(
        {
            "key.serializer": "org.apache.kafka.common.serialization.StringSerializer",
            "buffer.memory": "33554432",
            "fetch.max.wait.ms": "100",
            "auto.offset.reset": "none",
            "partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor, roundrobin",
            "compression.type": "gzip",
            "compression.gzip.level": "9",
            "compression.zstd.level": "3",
            "zookeeper.connect": "localhost:2181",
            "linger.ms": " 5 ",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": 'X required username="u" password="p";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "ca.pem",
            "ssl.endpoint.identification.algorithm": "",
        }
    )
    assert config == {
        "queue.buffering.max.kbytes": "32768",
        "fetch.wait.max.ms": "100",
        "auto.offset.reset": "error",
        "partition.assignment.strategy": "range,roundrobin",
        "compression.type": "gzip",
        "compression.level": "9",
        "linger.ms": "5",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "p",
        "ssl.ca.location": "ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert ignored == ["zookeeper.connect"]


def test_librdkafka_itself_takes_what_we_make_of_java_properties() -> None:
    from confluent_kafka import Producer

    config, _ = to_librdkafka({"buffer.memory": "33554432", "max.request.size": "2000000", "acks": "-1"})
    Producer(producer_defaults(config) | config | {"bootstrap.servers": "127.0.0.1:1", "log_level": 0})


@pytest.mark.parametrize(
    ("config", "idempotent"), [({}, True), ({"acks": "all"}, True), ({"acks": "1"}, False), ({"retries": "0"}, False)]
)
def test_producers_are_idempotent_where_a_java_producer_is(config: dict[str, str], idempotent: bool) -> None:
    defaults = producer_defaults(config)
    assert defaults["partitioner"] == "murmur2_random"
    assert ("enable.idempotence" in defaults) == idempotent
