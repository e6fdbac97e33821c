"""A program that works off a queue and says what became of its records; a process of its own, so that it can be killed.

    python -m soak.queue_worker <bootstrap> <number> <seed>

It prints a line for the records it is about to accept, and another for those of which the broker said that it did.
After an error it ends; whoever runs it starts it again.
"""

from __future__ import annotations

import os
import random
import sys
import time

import confluent_kafka

from soak.copier import CLIENT

GROUP, TOPIC = "workers", "queue"
ACCEPTING, ACCEPTED = b"accepting", b"accepted"
RELEASE_PROBABILITY = 0.05
WORK_S = 0.2
"""What twenty records take, at the most."""
TIMEOUT_S = 10.0


def run(bootstrap: str, seed: int) -> None:
    rng = random.Random(seed)
    consumer = confluent_kafka.ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": 20,
            **CLIENT,
        }
    )
    consumer.subscribe([TOPIC])
    while True:
        accepting: dict[int, list[bytes]] = {}
        for message in consumer.poll(0.5):
            if message.error() is not None:
                continue
            if rng.random() < RELEASE_PROBABILITY:
                consumer.acknowledge(message, confluent_kafka.AcknowledgeType.RELEASE)
            else:
                consumer.acknowledge(message, confluent_kafka.AcknowledgeType.ACCEPT)
                partition, value = message.partition(), message.value()
                assert partition is not None
                assert value is not None
                accepting.setdefault(partition, []).append(value)
        if accepting:
            time.sleep(rng.uniform(0, WORK_S))
            _say(ACCEPTING, [value for values in accepting.values() for value in values])
            done = consumer.commit_sync(TIMEOUT_S)
            _say(
                ACCEPTED, [v for where, failure in done.items() if failure is None for v in accepting[where.partition]]
            )


def _say(what: bytes, values: list[bytes]) -> None:
    os.write(sys.stdout.fileno(), b" ".join((what, *values)) + b"\n")


if __name__ == "__main__":
    try:
        run(sys.argv[1], int(sys.argv[3]))
    except confluent_kafka.KafkaException as error:
        print(f"worker {sys.argv[2]} ends: {error}", file=sys.stderr)
        sys.exit(1)
