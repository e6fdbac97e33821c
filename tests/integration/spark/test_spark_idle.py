"""A stream with nothing to read waits at the brokers, and notices new records at once."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import confluent_kafka
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from moldau.spark.source import idle_wait
from moldau.spark.source.stream_reader import TopicStreamReader
from tests.integration.conftest import NewTopic
from tests.integration.spark.test_spark_stream import reader_of
from tests.integration.spark.topics import produce
from tests.integration.waiting import eventually

ALL = ReadAllAvailable()
# Longer than any test waits: an answer before that was given because of something new.
FOR_LONG = {"idleWaitMs": 10_000, "startingOffsets": "earliest"}
WITHIN_S = 8


class Waiter:
    """Asks a reader as Spark does until it waits at the broker."""

    def __init__(self, reader: TopicStreamReader, start: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self._is_waiting = False
        receive = idle_wait._receive_all

        def noticed(*arguments: Any) -> bool:
            self._is_waiting = True
            return receive(*arguments)

        monkeypatch.setattr(idle_wait, "_receive_all", noticed)
        self.looks = 0
        self._reader, self._start = reader, start

    def ask(self) -> dict[str, Any]:
        while True:
            self.looks += 1
            latest = self._reader.latestOffset(dict(self._start), ALL)
            if self._is_waiting:
                return latest

    def in_background(self, thread: ThreadPoolExecutor) -> Future[dict[str, Any]]:
        answer = thread.submit(self.ask)
        eventually(lambda: self._is_waiting, "the reader waits at the broker")
        return answer


def test_new_records_end_the_wait(bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = new_topic(2)
    produce(bootstrap, topic, [b"a"])
    reader = reader_of(bootstrap, subscribe=topic, **FOR_LONG)
    start = reader.latestOffset({}, ALL)
    waiter = Waiter(reader, start, monkeypatch)
    with ThreadPoolExecutor(1) as thread:
        answer = waiter.in_background(thread)
        assert waiter.looks == idle_wait._LOOKS  # the ones before let batches without data run
        produce(bootstrap, topic, [{"value": b"b", "partition": 1}])
        assert answer.result(WITHIN_S)[topic] == {"0": 1, "1": 1}


def test_new_records_of_another_source_end_the_wait(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, other = new_topic(), new_topic()
    produce(bootstrap, topic, [b"a"])
    reader = reader_of(bootstrap, subscribe=topic, idleWaitTopics=other, **FOR_LONG)
    start = reader.latestOffset({}, ALL)
    with ThreadPoolExecutor(1) as thread:
        answer = Waiter(reader, start, monkeypatch).in_background(thread)
        produce(bootstrap, other, [b"b"])
        assert answer.result(WITHIN_S) == start


def test_records_of_an_open_transaction_do_not_end_the_wait_before_it_is_committed(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    produce(bootstrap, topic, [b"a"])
    reader = reader_of(bootstrap, subscribe=topic, **FOR_LONG)
    start = reader.latestOffset({}, ALL)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": new_topic()})
    producer.init_transactions()
    with ThreadPoolExecutor(1) as thread:
        answer = Waiter(reader, start, monkeypatch).in_background(thread)
        producer.begin_transaction()
        producer.produce(topic, b"b")
        producer.flush()
        assert not answer.done()
        producer.commit_transaction()
        assert answer.result(WITHIN_S)[topic] == {"0": 3}  # with the marker of the transaction


def test_a_reader_without_the_option_never_waits(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    produce(bootstrap, topic, [b"a"])
    reader = reader_of(bootstrap, subscribe=topic, startingOffsets="earliest")
    monkeypatch.setattr(idle_wait, "_receive_all", lambda *_: pytest.fail("it waits"))
    start = reader.latestOffset({}, ALL)
    for _ in range(2 * idle_wait._LOOKS):
        assert reader.latestOffset(start, ALL) is start
