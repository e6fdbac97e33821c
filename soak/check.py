"""Reads a topic from its beginning to its end and holds it against what the writers were told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka

from soak.load import Writer
from soak.log_end import log_end

READ_TIMEOUT_S = 30.0


@dataclass
class Findings:
    """`problems` is what a good log has none of."""

    records: int = 0
    problems: list[str] = field(default_factory=list)


def check_topic(bootstrap: str, topic: str, partitions: int, writers: Sequence[Writer]) -> Findings:
    """Every number of every writer once, in order, without a gap, up to the last acknowledged one at least."""
    findings = Findings()
    following = {(writer.name, partition): partition for writer in writers for partition in range(partitions)}
    for partition in range(partitions):
        offset = 0
        for message in _read(bootstrap, topic, partition):
            if message.offset() != offset:
                findings.problems.append(f"{topic}-{partition}: offset {message.offset()} after {offset - 1}")
            offset = message.offset() + 1
            findings.records += 1
            name, number_text, _ = message.value().decode().split(":", 2)
            number, expected = int(number_text), following[name, partition]
            if number != expected:
                what = "again" if number < expected else "too early"
                findings.problems.append(f"{name}: {number} {what} at {topic}-{partition}@{offset - 1}")
            following[name, partition] = max(expected, number + partitions)
    for writer in writers:
        findings.problems += [f"{writer.name}: not delivered: {failure}" for failure in writer.failures]
        # A number is in its partition when that partition has gone past it.
        lost = sum(
            max(0, (writer.acked_upto - following[writer.name, partition]) // partitions + 1)
            for partition in range(partitions)
        )
        if lost:
            findings.problems.append(f"{writer.name}: {lost} acknowledged records are lost")
    return findings


def _read(bootstrap: str, topic: str, partition: int) -> Iterator[Any]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
        }
    )
    try:
        where = confluent_kafka.TopicPartition(topic, partition, 0)
        end = log_end(consumer, where)
        consumer.assign([where])
        offset = 0
        while offset < end:
            messages = consumer.consume(min(10_000, end - offset), READ_TIMEOUT_S)
            if not messages:
                raise TimeoutError(f"{topic}-{partition}: nothing after offset {offset}, its end is {end}")
            for message in messages:
                if message.error() is not None:
                    raise RuntimeError(f"{topic}-{partition}: {message.error()}")
                yield message
                found = message.offset()
                assert found is not None
                offset = found + 1
    finally:
        consumer.close()
