"""The pytest plugin, loaded by itself once Moldau is installed.

| fixture                 | gives                                                                     |
|-------------------------|---------------------------------------------------------------------------|
| `kafka_broker`          | one real broker for the whole test session, with `.bootstrap_servers`     |
| `kafka_broker_config`   | its server properties: override it in conftest.py, with scope="session"   |
| `kafka_topic`           | the name of a new, empty topic on `kafka_broker`, deleted afterwards      |
| `kafka_producer`        | a confluent-kafka `Producer` for `kafka_broker`, flushed at the end       |
| `kafka_consumer`        | a `Consumer` that reads `kafka_topic` from its first record on            |
| `fresh_kafka_broker`    | a broker for this test alone, with the same configuration                 |
| `kafka_cluster`         | three brokers, each a process of its own, for this test alone             |

`@pytest.mark.kafka_topic(partitions=3, config={"cleanup.policy": "compact"})` on a test chooses what its topic is like.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

    from moldau.embedded import Broker
    from moldau.local_cluster import Cluster


T = TypeVar("T")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kafka_topic(partitions=1, config={}): what the fixture kafka_topic creates")


@pytest.fixture(scope="session")
def kafka_broker_config() -> dict[str, object]:
    """Server properties of the session's broker."""
    return {}


@pytest.fixture(scope="session")
def kafka_broker(kafka_broker_config: dict[str, object]) -> Iterator[Broker]:
    """A real broker on a free port, for the whole session."""
    broker = _start(kafka_broker_config)
    yield broker
    broker.stop()


@pytest.fixture
def fresh_kafka_broker(kafka_broker_config: dict[str, object]) -> Iterator[Broker]:
    """A real broker on a free port, for this test alone."""
    broker = _start(kafka_broker_config)
    yield broker
    broker.stop()


def _start(config: dict[str, object]) -> Broker:
    from moldau.embedded import Broker

    return _or_fail("kafka_broker_config", lambda: Broker(config).start())


def _or_fail(where: str, do: Callable[[], T]) -> T:
    """What `do` returns; an error of ours fails the test in one sentence, without a traceback."""
    from moldau.errors import MoldauError

    try:
        return do()
    except MoldauError as error:
        message = f"{where}: {error}"
    pytest.fail(message, pytrace=False)  # not above, or pytest shows the first error as well


@pytest.fixture
def kafka_cluster() -> Iterator[Cluster]:
    """Three real brokers that a test may kill, pause and start again."""
    from moldau.local_cluster import Cluster

    with Cluster(3) as cluster:
        yield cluster


@pytest.fixture
def kafka_topic(kafka_broker: Broker, request: pytest.FixtureRequest) -> Iterator[str]:
    """A new topic named after the test: of one partition, unless the test's marker `kafka_topic` says otherwise."""
    from moldau.client.admin import create_topic, delete_topics
    from moldau.client.cluster import Cluster as Client
    from moldau.client.config import ClientConfig

    partitions, config = _topic_options(request.node)
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)[:80]
    name = f"{stem}-{uuid.uuid4().hex[:8]}"
    with Client(ClientConfig.from_properties(kafka_broker.bootstrap_servers, {})) as client:
        _or_fail("@pytest.mark.kafka_topic", lambda: create_topic(client, name, partitions=partitions, configs=config))
        yield name
        delete_topics(client, [name])


def _topic_options(test: pytest.Item) -> tuple[int, dict[str, str]]:
    """Of the marker nearest to the test: on itself, its class or its module."""
    from moldau.config.properties import as_property

    marker = test.get_closest_marker("kafka_topic")
    options = {"partitions": 1, "config": {}, **(marker.kwargs if marker else {})}
    unknown = options.keys() - {"partitions", "config"}
    if unknown or (marker and marker.args):
        pytest.fail("@pytest.mark.kafka_topic takes partitions=… and config={…}, nothing else", pytrace=False)
    return options["partitions"], {key: as_property(value) for key, value in options["config"].items()}


@pytest.fixture
def kafka_producer(kafka_broker: Broker) -> Iterator[Producer]:
    """A producer for the session's broker; what it still holds is sent at the end of the test."""
    from confluent_kafka import Producer

    with Producer({"bootstrap.servers": kafka_broker.bootstrap_servers}) as producer:
        yield producer


@pytest.fixture
def kafka_consumer(kafka_broker: Broker, kafka_topic: str) -> Iterator[Consumer]:
    """A consumer in a group of its own that reads the test's topic from the first record on."""
    from confluent_kafka import Consumer

    settings = {"bootstrap.servers": kafka_broker.bootstrap_servers, "auto.offset.reset": "earliest"}
    with Consumer({**settings, "group.id": f"{kafka_topic}-group"}) as consumer:
        consumer.subscribe([kafka_topic])
        yield consumer
