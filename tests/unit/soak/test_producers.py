"""Producers of single partitions, used like one. The brokers are those inside librdkafka."""

from __future__ import annotations

from typing import Any

from soak.producers import PartitionProducers

PARTITIONS = 3


def test_every_record_is_answered_once_and_in_the_order_of_its_partition() -> None:
    answers: list[tuple[int, int, int]] = []
    producers = PartitionProducers({"test.mock.num.brokers": 1, "log_level": 0, "linger.ms": 1}, PARTITIONS)

    def delivered(number: int) -> Any:
        def done(error: object, message: Any) -> None:
            assert error is None
            answers.append((message.partition(), message.offset(), number))

        return done

    for number in range(12):
        producers.produce("t", b"%d" % number, partition=number % PARTITIONS, on_delivery=delivered(number))
        producers.poll(0)
    assert producers.flush(60) == 0
    assert len(producers) == 0
    # Each has brokers of its own here, so a record in the wrong producer would have another offset.
    assert sorted(answers) == [(n % PARTITIONS, n // PARTITIONS, n) for p in range(PARTITIONS) for n in range(p, 12, 3)]
