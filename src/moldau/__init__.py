"""Moldau: Apache Kafka's commit log in Python, over Kafka's wire protocol, in Kafka's files.

with moldau.Broker() as broker:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

`moldau.Cluster(3)` is the same with three brokers, each a process of its own.
"""

from __future__ import annotations

from moldau.version import __version__

TYPE_CHECKING = False  # type checkers take it for true; `typing` would be a fifth of what a command imports at first
if TYPE_CHECKING:
    from moldau.embedded import Broker
    from moldau.local_cluster import Cluster

__all__ = ["Broker", "Cluster", "__version__"]


def __getattr__(name: str) -> object:
    # The commands import this package too, and must not pay for a broker they do not start.
    if name == "Broker":
        from moldau.embedded import Broker

        return Broker
    if name == "Cluster":
        from moldau.local_cluster import Cluster

        return Cluster
    raise AttributeError(f"module 'moldau' has no attribute {name!r}")
