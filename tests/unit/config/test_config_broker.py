from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.config.broker import BROKER_KEYS, BrokerConfig
from moldau.config.listeners import Listener
from moldau.config.properties import parse_properties
from moldau.errors import ConfigError

STOCK = """
# The settings of the server.properties that Apache Kafka 4 ships.
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""

OLD_STOCK = """
# ... and the one that Apache Kafka 2 and 3 shipped with ZooKeeper.
broker.id=0
listeners=PLAINTEXT://:9092
num.network.threads=3
log.dirs=/tmp/kafka-logs
group.initial.rebalance.delay.ms=0
inter.broker.protocol.version=2.8
log.message.format.version=2.8
zookeeper.connect=localhost:2181
zookeeper.connection.timeout.ms=18000
"""


def config(**props: str) -> BrokerConfig:
    return BrokerConfig.from_properties({name.replace("_", "."): text for name, text in props.items()})[0]


def refusal(props: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_properties(props)
    return str(caught.value)


def test_a_stock_server_properties_starts() -> None:
    broker, warnings = BrokerConfig.from_properties(parse_properties(STOCK))
    assert broker.node_id == broker.broker_id == 1
    assert broker.listeners == (Listener("PLAINTEXT", "", 9092, "PLAINTEXT"),)
    assert broker.advertised_listeners == (Listener("PLAINTEXT", "localhost", 9092, "PLAINTEXT"),)
    assert broker.log_dirs == ("/tmp/kraft-combined-logs",)
    idle, unopened = warnings
    assert "CONTROLLER" in unopened
    assert "not opened" in unopened
    assert idle == (
        "configuration keys without effect: process.roles, controller.quorum.bootstrap.servers, "
        "num.network.threads, num.io.threads"
    )


def test_an_old_stock_server_properties_starts() -> None:
    broker, warnings = BrokerConfig.from_properties(parse_properties(OLD_STOCK))
    assert broker.node_id == 0
    assert broker.zookeeper_connect == "localhost:2181"
    assert broker.zookeeper_connection_timeout_ms == 18_000
    assert warnings == [
        "configuration keys without effect: num.network.threads, "
        "inter.broker.protocol.version, log.message.format.version",
    ]


def test_no_properties_give_a_broker_that_only_this_machine_reaches() -> None:
    broker, warnings = BrokerConfig.from_properties({})
    assert warnings == []
    assert [str(listener) for listener in broker.listeners] == ["PLAINTEXT://127.0.0.1:9092"]
    assert broker.advertised_listeners == broker.listeners
    assert broker.log_dirs == ("./moldau-data",)
    assert broker.node_id == 1
    assert 0 < broker.max_connections_per_ip <= broker.max_connections < 2**31 - 1
    assert broker.queued_max_request_bytes >= broker.socket_request_max_bytes


def test_a_constructed_configuration_equals_a_parsed_one() -> None:
    constructed, parsed = BrokerConfig(num_partitions=3), config(num_partitions="3")
    assert all(constructed.get(name) == parsed.get(name) for name in BROKER_KEYS)


@pytest.mark.parametrize("name", ["node.id", "broker.id"])
def test_either_name_sets_the_nodes_id(name: str) -> None:
    broker, _ = BrokerConfig.from_properties({name: "7"})
    assert (broker.node_id, broker.broker_id) == (7, 7)
    assert broker.get("node.id") == 7


def test_two_names_with_two_ids_are_refused() -> None:
    assert "node.id (1)" in refusal({"node.id": "1", "broker.id": "2"})
    assert config(node_id="1", broker_id="1").node_id == 1


def test_a_broker_id_of_minus_one_means_the_default() -> None:
    assert config(broker_id="-1").node_id == 1
    assert config(broker_id="-1", node_id="5").broker_id == 5


def test_log_dirs_wins_over_log_dir() -> None:
    assert config(log_dir="/a").log_dirs == ("/a",)
    assert config(log_dir="/a", log_dirs="/b, /c").log_dirs == ("/b", "/c")
    assert "List must not be empty" in refusal({"log.dirs": ""})
    assert "duplicates" in refusal({"log.dirs": "/a,/a"})


def test_an_unknown_key_is_reported_with_the_nearest_one() -> None:
    _, warnings = BrokerConfig.from_properties({"num.partition": "3", "quite.unheard.of.here": "1"})
    assert warnings == [
        "unknown configuration key num.partition; did you mean num.partitions?",
        "unknown configuration key quite.unheard.of.here",
    ]


def test_strictly_a_misspelt_key_is_refused_and_one_without_effect_is_not() -> None:
    BrokerConfig.from_properties({"group.initial.rebalance.delay.ms": "0", "num.io.threads": "8"}, strict=True)
    with pytest.raises(ConfigError, match=r"did you mean num\.partitions"):
        BrokerConfig.from_properties({"num.partition": "3"}, strict=True)


def test_an_ignored_authorizer_says_that_nothing_is_protected() -> None:
    _, warnings = BrokerConfig.from_properties({"authorizer.class.name": "a.b.C", "super.users": "User:a"})
    assert len(warnings) == 2
    assert all("every client may do everything" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("props", "parts"),
    [
        ({"num.partitions": "0"}, ["Invalid value 0 for configuration num.partitions", "at least 1"]),
        ({"num.partitions": "many"}, ["Invalid value many for configuration num.partitions", "INT"]),
        ({"auto.create.topics.enable": "1"}, ["auto.create.topics.enable", "true or false"]),
        ({"compression.type": "brotli"}, ["compression.type", "zstd, lz4, snappy, gzip"]),
        ({"compression.gzip.level": "10"}, ["between 1 and 9 or equal to -1"]),
        ({"compression.lz4.level": "18"}, ["no more than 17"]),
        ({"log.cleanup.policy": "shrink"}, ["log.cleanup.policy", "compact, delete"]),
        ({"log.segment.bytes": "1024"}, ["log.segment.bytes", "at least 1048576"]),
        ({"log.roll.ms": "0"}, ["log.roll.ms (0)"]),
        ({"log.roll.jitter.ms": "-1"}, ["log.roll.jitter.ms (-1)"]),
        ({"log.retention.ms": "0"}, ["log.retention.ms (0)"]),
        ({"log.retention.hours": "0"}, ["log.retention.hours (0)"]),
        (
            {"log.cleaner.min.compaction.lag.ms": "5", "log.cleaner.max.compaction.lag.ms": "4"},
            ["max.compaction"],
        ),
        (
            {"queued.max.request.bytes": "1000"},
            ["queued.max.request.bytes (1000)", "socket.request.max.bytes"],
        ),
        ({"max.connections.per.ip": "0"}, ["max.connections.per.ip.overrides"]),
        ({"max.connections.per.ip.overrides": "127.0.0.1:x"}, ["'x' is not a number"]),
        ({"max.connections.per.ip.overrides": "127.0.0.1"}, ["'127.0.0.1' is not name:value"]),
        ({"replica.fetch.wait.max.ms": "40000"}, ["replica.fetch.wait.max.ms (40000)"]),
        ({"group.min.session.timeout.ms": "10", "group.max.session.timeout.ms": "9"}, ["group.min.session"]),
        ({"group.coordinator.rebalance.protocols": "consumer"}, ["classic"]),
    ],
)
def test_a_bad_value_is_refused_with_key_value_and_what_is_allowed(props: dict[str, str], parts: list[str]) -> None:
    message = refusal(props)
    assert all(part in message for part in parts), message


def test_shorter_units_win_in_the_check_of_retention() -> None:
    assert config(log_retention_ms="5", log_retention_hours="0").log_retention_ms == 5


def test_connection_limits_of_single_addresses() -> None:
    broker = config(max_connections_per_ip="0", max_connections_per_ip_overrides="127.0.0.1:5, ::1:7")
    assert broker.connection_limits_by_ip == {"127.0.0.1": 5, "::1": 7}


class TestListeners:
    def test_names_hosts_ports_and_protocols(self) -> None:
        broker, _ = BrokerConfig.from_properties(
            {
                "listeners": "inside://10.0.0.1:9092,OUTSIDE://[::1]:9093,ANY://0.0.0.0:0",
                "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:plaintext,ANY:PLAINTEXT",
                "inter.broker.listener.name": "inside",
            }
        )
        assert broker.listeners == (
            Listener("INSIDE", "10.0.0.1", 9092, "PLAINTEXT"),
            Listener("OUTSIDE", "::1", 9093, "PLAINTEXT"),
            Listener("ANY", "0.0.0.0", 0, "PLAINTEXT"),
        )
        assert str(broker.listeners[1]) == "OUTSIDE://[::1]:9093"

    def test_every_interface_is_not_advertised(self) -> None:
        broker = config(listeners="PLAINTEXT://0.0.0.0:9092")
        assert broker.listeners[0].host == "0.0.0.0"
        assert broker.advertised_listeners == (Listener("PLAINTEXT", "", 9092, "PLAINTEXT"),)
        props = {"listeners": "PLAINTEXT://:9092", "advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}
        assert "0.0.0.0" in refusal(props)

    @pytest.mark.parametrize(
        "entry",
        [
            "127.0.0.1:9092",
            "PLAINTEXT://",
            "PLAINTEXT://h",
            "PLAINTEXT://h:70000",
            "PLAINTEXT://h:-1",
            "://:1",
        ],
    )
    def test_a_malformed_listener_is_refused_with_an_example(self, entry: str) -> None:
        assert "PLAINTEXT://127.0.0.1:9092" in refusal({"listeners": entry})

    @pytest.mark.parametrize(
        ("listeners", "problem"),
        [
            ("PLAINTEXT://a:1,PLAINTEXT://a:2", "used twice"),
            ("PLAINTEXT://:1,SSL://:1", "use the same port"),
            ("PLAINTEXT://a:1,SSL://0.0.0.0:1", "use the same port"),
            ("OTHER://:1", "OTHER:PLAINTEXT"),
            ("", "must not be empty"),
        ],
    )
    def test_listeners_that_cannot_stand_together(self, listeners: str, problem: str) -> None:
        assert problem in refusal({"listeners": listeners})

    @pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
    def test_a_protected_listener_is_never_opened_unprotected(self, protocol: str) -> None:
        message = refusal({"listeners": f"{protocol}://:9093"})
        assert f"requires {protocol}" in message
        message = refusal({"listeners": "SAFE://:1", "listener.security.protocol.map": f"SAFE:{protocol}"})
        assert f"requires {protocol}" in message

    def test_an_unknown_protocol_is_refused(self) -> None:
        message = refusal({"listener.security.protocol.map": "A:TLS"})
        assert "TLS is not a security protocol" in message

    def test_advertised_names_must_be_listeners(self) -> None:
        assert "is not one of the listeners" in refusal({"advertised.listeners": "SSL://h:1"})
        assert "inter.broker.listener.name" in refusal({"inter.broker.listener.name": "SSL"})

    def test_only_controller_listeners_leave_nothing_for_clients(self) -> None:
        props = {"listeners": "CONTROLLER://:9093", "controller.listener.names": "CONTROLLER"}
        assert "no listener for clients" in refusal(props)

    def test_free_ports_are_never_the_same(self) -> None:
        broker = config(listeners="A://:0,B://:0", listener_security_protocol_map="A:PLAINTEXT,B:PLAINTEXT")
        assert [listener.port for listener in broker.listeners] == [0, 0]

    def test_one_port_may_be_advertised_twice(self) -> None:
        broker, _ = BrokerConfig.from_properties(
            {
                "listeners": "A://:1,B://:2",
                "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
                "advertised.listeners": "A://proxy:443,B://proxy:443",
            }
        )
        assert [listener.port for listener in broker.advertised_listeners] == [443, 443]


class TestDynamic:
    def test_own_values_win_over_defaults_of_all_and_over_properties(self) -> None:
        static = config(message_max_bytes="1000", log_retention_bytes="10")
        broker = static.with_overrides(
            {"message.max.bytes": "3000"}, {"message.max.bytes": "2000", "log.retention.bytes": "20"}
        )
        assert (broker.message_max_bytes, broker.log_retention_bytes) == (3000, 20)
        assert broker.originals == {"message.max.bytes": "1000", "log.retention.bytes": "10"}
        assert (static.message_max_bytes, static.log_retention_bytes) == (1000, 10)

    def test_taking_values_away_brings_the_properties_back(self) -> None:
        static = config(message_max_bytes="1000")
        broker = static.with_overrides({"message.max.bytes": "3000"}).with_overrides({})
        assert broker.message_max_bytes == 1000

    def test_nothing_new_gives_the_same_object(self) -> None:
        broker = config().with_overrides({"message.max.bytes": "3000"})
        assert broker.with_overrides({"message.max.bytes": "3000"}) is broker

    @pytest.mark.parametrize("name", ["num.partitions", "listeners", "log.dirs", "process.roles", "ssl.key.password"])
    def test_other_keys_need_a_restart(self, name: str) -> None:
        with pytest.raises(ConfigError, match=rf"Cannot update these configs dynamically: \[{name}\]"):
            config().with_overrides({name: "1"})

    def test_a_bad_value_changes_nothing(self) -> None:
        with pytest.raises(ConfigError, match=r"Invalid value -1 for configuration message\.max\.bytes"):
            config().with_overrides({"message.max.bytes": "-1"})

    def test_foreign_keys_are_taken(self) -> None:
        assert config().with_overrides({"my.plugin.key": "1"}).dynamic == {"my.plugin.key": "1"}


def test_get_knows_no_other_names() -> None:
    with pytest.raises(KeyError):
        config().get("originals")


@given(
    st.dictionaries(
        st.sampled_from(sorted(BROKER_KEYS)),
        st.one_of(
            st.integers(-2, 10).map(str),
            st.sampled_from(["", "true", "a,b", "PLAINTEXT://:1", "A:PLAINTEXT", "producer", "compact"]),
            st.text(max_size=8),
        ),
        max_size=6,
    )
)
def test_any_properties_give_a_configuration_or_a_config_error(props: dict[str, str]) -> None:
    with contextlib.suppress(ConfigError):
        broker, _ = BrokerConfig.from_properties(props)
        assert broker.originals.items() >= props.items()
