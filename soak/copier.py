"""A program that consumes, transforms and produces exactly once; a process of its own, so that it can be killed.

    python -m soak.copier <bootstrap> <number> <seed>

Some of its transactions it aborts, and it never says which: their records carry a mark that nobody must ever read.
After an error that is not the transaction's own it ends; whoever runs it starts it again.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import confluent_kafka

GROUP, SOURCE, TARGET = "copiers", "source", "target"
ABORTED = b"aborted:"
TRANSACTION_RECORDS = 200
ABORT_PROBABILITY = 0.15
TIMEOUT_S = 30.0
CLIENT = {
    # A broker that is back is to be found at once.
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 200,
    "log_level": 0,
}


class Copier:
    def __init__(self, bootstrap: str, number: int, seed: int) -> None:
        self._rng = random.Random(seed)
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "group.instance.id": f"copier-{number}",  # one that was killed takes its own place again
                "session.timeout.ms": 6000,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                **CLIENT,
            }
        )
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"copier-{number}",
                "transaction.timeout.ms": 10_000,
                "linger.ms": 5,
                **CLIENT,
            }
        )

    def run(self) -> None:
        self._producer.init_transactions(TIMEOUT_S)
        self._consumer.subscribe([SOURCE])
        while True:
            messages = [one for one in self._consumer.consume(TRANSACTION_RECORDS, 0.5) if one.error() is None]
            if messages:
                self._transaction(messages, aborts=self._rng.random() < ABORT_PROBABILITY)

    def _transaction(self, messages: list[Any], *, aborts: bool) -> None:
        producer = self._producer
        producer.begin_transaction()
        try:
            for message in messages:
                value = (ABORTED if aborts else b"") + message.value()
                producer.produce(TARGET, value, message.key())
                producer.poll(0)
            if aborts:
                producer.flush(TIMEOUT_S)
                self._abort()
                return
            offsets = self._consumer.position(self._consumer.assignment())
            producer.send_offsets_to_transaction(offsets, self._consumer.consumer_group_metadata(), TIMEOUT_S)
            self._commit()
        except confluent_kafka.KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                raise
            self._abort()

    def _commit(self) -> None:
        while True:
            try:
                self._producer.commit_transaction(TIMEOUT_S)
                return
            except confluent_kafka.KafkaException as failure:
                if not failure.args[0].retriable():
                    raise

    def _abort(self) -> None:
        """What was read is to be read again, from where the group is."""
        self._producer.abort_transaction(TIMEOUT_S)
        for where in self._consumer.committed(self._consumer.assignment(), TIMEOUT_S):
            where.offset = max(where.offset, 0)
            self._consumer.seek(where)


if __name__ == "__main__":
    try:
        Copier(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])).run()
    except confluent_kafka.KafkaException as error:
        print(f"copier {sys.argv[2]} ends: {error}", file=sys.stderr)
        sys.exit(1)
