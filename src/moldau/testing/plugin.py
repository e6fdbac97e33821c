"""The pytest plugin, loaded by itself once Moldau is installed.

| fixture                 | gives                                                                     |
|-------------------------|---------------------------------------------------------------------------|
| `kafka_broker`          | one real broker for the whole test session, with `.bootstrap_servers`     |
| `kafka_broker_config`   | override it (session scope) to give that broker Kafka's server properties |
| `fresh_kafka_broker`    | a broker for this test alone                                              |
| `kafka_cluster`         | three brokers, each a process of its own, for this test alone             |
| `kafka_topic`           | the name of a new, empty topic on `kafka_broker`, deleted afterwards      |
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from moldau.embedded import Broker
    from moldau.local_cluster import Cluster


@pytest.fixture(scope="session")
def kafka_broker_config() -> dict[str, object]:
    """Server properties of the session's broker."""
    return {}


@pytest.fixture(scope="session")
def kafka_broker(kafka_broker_config: dict[str, object]) -> Iterator[Broker]:
    """A real broker on a free port, for the whole session."""
    from moldau.embedded import Broker

    with Broker(kafka_broker_config) as broker:
        yield broker


@pytest.fixture
def fresh_kafka_broker() -> Iterator[Broker]:
    """A real broker on a free port, for this test alone."""
    from moldau.embedded import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def kafka_cluster() -> Iterator[Cluster]:
    """Three real brokers that a test may kill, pause and start again."""
    from moldau.local_cluster import Cluster

    with Cluster(3) as cluster:
        yield cluster


@pytest.fixture
def kafka_topic(kafka_broker: Broker, request: pytest.FixtureRequest) -> Iterator[str]:
    """A new topic of one partition, named after the test."""
    from moldau.client.admin import create_topic, delete_topics
    from moldau.client.cluster import Cluster as Client
    from moldau.client.config import ClientConfig

    stem = re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)[:80]
    name = f"{stem}-{uuid.uuid4().hex[:8]}"
    with Client(ClientConfig.from_properties(kafka_broker.bootstrap_servers, {})) as client:
        create_topic(client, name, partitions=1)
        yield name
        delete_topics(client, [name])
