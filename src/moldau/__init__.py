"""Moldau: Apache Kafka's commit log in Python, over Kafka's wire protocol, in Kafka's files.

with moldau.Broker() as broker:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.version import __version__

if TYPE_CHECKING:
    from moldau.embedded import Broker

__all__ = ["Broker", "__version__"]


def __getattr__(name: str) -> object:
    # The commands import this package too, and must not pay for a broker they do not start.
    if name == "Broker":
        from moldau.embedded import Broker

        return Broker
    raise AttributeError(f"module 'moldau' has no attribute {name!r}")
