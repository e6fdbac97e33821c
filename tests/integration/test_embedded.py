"""A broker in one's own process, and the pytest fixtures around it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from moldau import Broker
from moldau.errors import ConfigError, MoldauError
from tests.integration.clients import CLIENTS, Message
from tests.integration.conftest import cluster_at

CONFLUENT = CLIENTS[0]

pytest_plugins = ["pytester"]


def test_several_brokers_run_at_once_and_share_nothing() -> None:
    with Broker() as one, Broker() as two:
        assert one.port != two.port
        CONFLUENT.produce(one.bootstrap_servers, "t", [Message(b"one")])
        CONFLUENT.produce(two.bootstrap_servers, "t", [Message(b"two")])
        assert CONFLUENT.read(one.bootstrap_servers, "t", count=1)[0].value == b"one"
        assert CONFLUENT.read(two.bootstrap_servers, "t", count=1)[0].value == b"two"


def test_a_folder_of_ones_own_stays_and_a_temporary_one_goes(tmp_path: Path) -> None:
    with Broker() as broker:
        temporary = broker.data_dir
        assert temporary.exists()
    assert not temporary.exists()
    for _ in range(2):
        with Broker(data_dir=tmp_path) as broker:
            CONFLUENT.produce(broker.bootstrap_servers, "kept", [Message(b"v", partition=0)])
    with Broker(data_dir=tmp_path) as broker:
        assert CONFLUENT.first_and_end_offset(broker.bootstrap_servers, "kept") == (0, 2)


def test_a_broker_stops_and_starts_again(tmp_path: Path) -> None:
    broker = Broker(data_dir=tmp_path)
    for _ in range(3):
        broker.start()
        CONFLUENT.produce(broker.bootstrap_servers, "t", [Message(b"v", partition=0)])
        broker.stop()
        broker.stop()  # a second call does nothing
    with broker:
        assert CONFLUENT.first_and_end_offset(broker.bootstrap_servers, "t") == (0, 3)


async def test_a_broker_starts_and_stops_beside_an_event_loop() -> None:
    async with Broker() as broker:
        assert broker.port > 0


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        Broker({"num.partitionz": 3}).start()
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        Broker({"num.partitions": "many"}).start()
    with pytest.raises(MoldauError, match="not running"):
        _ = Broker().bootstrap_servers
    with Broker() as broker:
        with pytest.raises(MoldauError, match="already running"):
            broker.start()
        with pytest.raises(ConfigError, match=str(broker.port)):
            Broker(port=broker.port).start()
        with pytest.raises(ConfigError, match="in use"):
            Broker(data_dir=broker.data_dir).start()


def test_properties_may_be_python_values() -> None:
    with Broker({"num.partitions": 3, "auto.create.topics.enable": True}) as broker:
        CONFLUENT.produce(broker.bootstrap_servers, "made", [Message(b"v")])
        with cluster_at(broker.bootstrap_servers) as cluster:
            assert len(cluster.metadata().topics["made"].partitions) == 3


def test_the_topic_fixture_is_a_new_topic_of_the_sessions_broker(kafka_broker: Broker, kafka_topic: str) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    assert CONFLUENT.first_and_end_offset(bootstrap, kafka_topic) == (0, 0)
    CONFLUENT.produce(bootstrap, kafka_topic, [Message(b"v")])
    assert CONFLUENT.read(bootstrap, kafka_topic, count=1)[0].value == b"v"


def test_a_fresh_broker_is_another_one(kafka_broker: Broker, fresh_kafka_broker: Broker) -> None:
    assert kafka_broker.port != fresh_kafka_broker.port
    with cluster_at(fresh_kafka_broker.bootstrap_servers) as cluster:
        assert cluster.metadata().topics == {}


def test_a_users_project_gets_the_fixtures_by_installing_the_package(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def kafka_broker_config():
            return {"num.partitions": 5}
        """
    )
    pytester.makepyfile(
        """
        from confluent_kafka.admin import AdminClient
        from confluent_kafka import Producer

        seen = []

        def test_topic(kafka_broker, kafka_topic):
            seen.append(kafka_topic)
            admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
            assert kafka_topic in admin.list_topics(timeout=10).topics

        def test_it_is_deleted_afterwards_and_the_configuration_holds(kafka_broker):
            producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
            producer.produce("auto", b"v")
            assert producer.flush(10) == 0
            topics = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers}).list_topics(timeout=10).topics
            assert seen[0] not in topics
            assert len(topics["auto"].partitions) == 5
        """
    )
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=2)


def test_a_test_chooses_its_topic_and_gets_a_producer_and_a_consumer(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

        @pytest.mark.kafka_topic(partitions=3, config={"cleanup.policy": "compact", "retention.ms": 1000})
        def test_topic(kafka_broker, kafka_topic):
            admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
            assert len(admin.list_topics(timeout=10).topics[kafka_topic].partitions) == 3
            resource = ConfigResource(ResourceType.TOPIC, kafka_topic)
            entries = admin.describe_configs([resource])[resource].result()
            assert (entries["cleanup.policy"].value, entries["retention.ms"].value) == ("compact", "1000")

        def test_there_and_back(kafka_producer, kafka_topic, kafka_consumer):
            kafka_producer.produce(kafka_topic, value=b"ahoj")
            kafka_producer.flush()
            assert kafka_consumer.poll(10).value() == b"ahoj"

        @pytest.mark.kafka_topic(partition=3)
        def test_misspelt(kafka_topic): ...

        @pytest.mark.kafka_topic(config={"retention.mz": 1})
        def test_misspelt_key(kafka_topic): ...
        """
    )
    result = pytester.runpytest_subprocess("-q", "--strict-markers")
    result.assert_outcomes(passed=2, errors=2)
    result.stdout.fnmatch_lines(["*kafka_topic accepts only partitions=* and config=*", "*did you mean retention.ms?*"])
    assert "src/moldau" not in result.stdout.str()  # no traceback through ours


def test_a_misspelt_key_of_the_sessions_broker_is_one_sentence(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture(scope="session")
        def kafka_broker_config():
            return {"num.partitons": 5}

        def test_it(kafka_broker): ...
        """
    )
    result = pytester.runpytest_subprocess("-q")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["kafka_broker_config: *did you mean num.partitions?*"])


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({"listeners": "PLAINTEXT://127.0.0.1:0"}, {"port": 9}, "listeners: set either"),
        ({"log.dirs": "a"}, {"data_dir": "b"}, "log.dirs: set either"),
        ({"num.partitons": 3}, {}, "did you mean num.partitions"),
    ],
)
def test_a_contradiction_or_a_misspelt_key_is_an_error(
    config: dict[str, object], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Broker(config, **options).start()


def test_a_key_without_effect_is_a_warning_and_the_broker_starts() -> None:
    with pytest.warns(UserWarning, match="without effect: num.network.threads"), Broker({"num.network.threads": 3}):
        pass


def test_a_failed_start_leaves_the_folder_free(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as running, pytest.raises(ConfigError, match="cannot listen"):
        Broker(data_dir=tmp_path / "other", port=running.port).start()
    with Broker(data_dir=tmp_path / "other"):
        pass


def test_a_broker_that_is_open_to_the_network_says_so_and_what_clients_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Broker(host="0.0.0.0") as broker:
        port = broker.port
    warning = rf"listener PLAINTEXT://0\.0\.0\.0:{port} is open to every network.* connect to \S+:{port}; .*"
    assert re.search(warning + rf"set advertised\.listeners, for example PLAINTEXT://[\d.]+:{port}", caplog.text)
