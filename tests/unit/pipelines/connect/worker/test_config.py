"""Keys of worker.properties."""

from __future__ import annotations

from pathlib import Path

import pytest

from moldau.errors import ConfigError
from moldau.pipelines.worker.config import Listener, StateTopic, WorkerConfig
from moldau.pipelines.worker.records import Topic


def config(**properties: str) -> WorkerConfig:
    return WorkerConfig({name.replace("_", "."): value for name, value in properties.items()}, Path())


def test_the_topics_have_connects_names_by_default() -> None:
    assert [config().topic(which).name for which in (Topic.CONFIG, Topic.OFFSET, Topic.STATUS)] == [
        "connect-configs",
        "connect-offsets",
        "connect-status",
    ]
    given = config(offset_storage_topic="o", offset_storage_partitions="3", offset_storage_replication_factor="2")
    assert given.topic(Topic.OFFSET) == StateTopic("o", 3, 2)
    with pytest.raises(ConfigError, match=r"status\.storage\.partitions=many"):
        config(status_storage_partitions="many").topic(Topic.STATUS)


@pytest.mark.parametrize(
    ("properties", "listener"),
    [
        ({}, Listener("127.0.0.1", 8083)),
        ({"listeners": "HTTP://localhost:9000"}, Listener("localhost", 9000)),
        ({"listeners": "https://127.0.0.1:8443"}, Listener("127.0.0.1", 8443, True)),
        ({"rest_port": "8084"}, Listener("127.0.0.1", 8084)),
        ({"listeners": "127.0.0.1:1"}, Listener("127.0.0.1", 1)),
    ],
)
def test_where_it_listens(properties: dict[str, str], listener: Listener) -> None:
    assert config(**properties).listener == listener


@pytest.mark.parametrize("address", ["http://:8083", "http://0.0.0.0:8083", "http://[::]:8083", "example.com:80"])
def test_nobody_else_is_let_in_without_a_password(address: str) -> None:
    with pytest.raises(ConfigError, match=r"rest\.basic\.auth\.file"):
        _ = config(listeners=address).listener
    assert config(listeners=address, rest_basic_auth_file="users").listener
    assert config(listeners=address, moldau_rest_allow_unauthenticated="true").listener


@pytest.mark.parametrize("address", ["ftp://x:1", "http://localhost", "http://localhost:port", "http://a:1,http://b:2"])
def test_a_wrong_listener_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="listen"):
        _ = config(listeners=address).listener


def test_clients_get_the_way_to_the_brokers_and_nothing_of_connects() -> None:
    client = config(bootstrap_servers="b:1", group_id="g", offset_flush_interval_ms="10", key_converter="x").client()
    client.pop("logger")
    assert client == {"bootstrap.servers": "b:1", "client.id": "moldau-worker-g"}
