"""Topics for the scenarios: created, waited for, checked, deleted, by the same calls on both servers."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping

from confluent_kafka.admin import AdminClient, NewTopic

from bench.raw import RawConnection, end_offsets
from bench.servers.server import Server

READY_TIMEOUT_S = 60
_numbers = itertools.count(1)


def _admin(server: Server) -> AdminClient:
    # Errors only: librdkafka tells of the end of every short-lived client.
    return AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 3})


def create_topic(server: Server, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
    """A new topic, returned once every partition answers."""
    name = f"bench-{next(_numbers)}"
    # Kafka keeps the files of a deleted topic open for a minute; the next scenario needs the room sooner.
    topic = NewTopic(name, partitions, 1, config={"file.delete.delay.ms": "1000", **(config or {})})
    # Kept by name: a client that is collected takes its unfinished calls with it.
    admin = _admin(server)
    admin.create_topics([topic])[name].result(READY_TIMEOUT_S)
    await_topic(server, name, partitions)
    return name


def await_topic(server: Server, topic: str, partitions: int) -> list[int]:
    """The end offsets of all partitions, as soon as the server knows all of them."""
    deadline = time.perf_counter() + READY_TIMEOUT_S
    while True:
        try:
            with RawConnection(server.bootstrap) as connection:
                return end_offsets(connection, topic, partitions)
        except (RuntimeError, OSError):
            if time.perf_counter() > deadline:
                raise
            time.sleep(0.005)


def delete_topic(server: Server, topic: str) -> None:
    admin = _admin(server)
    admin.delete_topics([topic])[topic].result(READY_TIMEOUT_S)


@contextlib.contextmanager
def temporary_topic(server: Server, partitions: int = 1) -> Iterator[str]:
    topic = create_topic(server, partitions)
    yield topic
    delete_topic(server, topic)


def expect_records(server: Server, topic: str, partitions: int, expected: int) -> None:
    """What was acknowledged must be in the log, all of it and once: a fast broker that loses is no broker."""
    held = sum(await_topic(server, topic, partitions))
    if held != expected:
        raise AssertionError(f"{server.title}: {held} records in {topic} where {expected} were acknowledged")
