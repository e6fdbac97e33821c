"""Topics and raw connections on the session's broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Protocol

import pytest

from moldau import Broker
from moldau.client.admin import create_topic
from moldau.client.cluster import ClusterClient
from moldau.client.config import ClientConfig, parse_servers
from tests.integration.raw import RawClient
from tests.integration.zookeeper import zookeeper  # noqa: F401 - a fixture


class NewTopic(Protocol):
    def __call__(
        self, partitions: int = 1, *, name: str | None = None, configs: Mapping[str, object] | None = None
    ) -> str: ...


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files may run beside each other; the tests of one share what it started."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(item.path.stem))


def cluster_at(bootstrap: str) -> ClusterClient:
    return ClusterClient(ClientConfig(parse_servers(bootstrap)))


def make_topic(
    bootstrap: str, partitions: int = 1, *, name: str | None = None, configs: Mapping[str, object] | None = None
) -> str:
    name = name or f"topic-{uuid.uuid4().hex[:12]}"
    with cluster_at(bootstrap) as cluster:
        create_topic(
            cluster,
            name,
            partitions=partitions,
            configs={key: str(value) for key, value in (configs or {}).items()},
        )
    return name


@pytest.fixture
def bootstrap(kafka_broker: Broker) -> str:
    """Where the session's broker is."""
    return kafka_broker.bootstrap_servers


@pytest.fixture
def new_topic(bootstrap: str) -> NewTopic:
    """`new_topic(partitions=1, configs={"segment.bytes": 1000})` makes a topic and returns its name."""

    return partial(make_topic, bootstrap)


@pytest.fixture
def connect(bootstrap: str) -> Iterator[Callable[..., RawClient]]:
    """`connect()` opens a raw connection to the session's broker, closed at the end of the test."""
    with ExitStack() as opened:

        def open_one(where: str = bootstrap) -> RawClient:
            return opened.enter_context(RawClient(where))

        yield open_one
