"""Ranges of partitions, read from a real broker as a Spark task reads them, without the Spark."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.servers.apache import ApacheKafka
from moldau import Broker
from moldau.client.admin import delete_records, delete_topics, list_offsets
from moldau.client.config import ClientConfig, parse_servers
from moldau.errors import CorruptRecordError, DataLossError, ErrorCode, KafkaError
from moldau.spark import connections
from moldau.spark.columns.decode import RAW_FIELDS
from moldau.spark.source import fetching
from moldau.spark.source.fetching import read_range
from moldau.spark.source.read_plan import OffsetRange, ReadPlan
from moldau.wire.batch import assemble, encode_batch, read_header
from moldau.wire.compression import Codec
from moldau.wire.constants import IsolationLevel
from moldau.wire.fetch import FetchResponse, parse_fetch_response
from moldau.wire.topic_partition import TopicPartition
from tests.integration.clients import CODECS
from tests.integration.conftest import NewTopic, cluster_at, make_topic
from tests.integration.raw import RawClient, batch_of
from tests.integration.raw_txn import RawProducer, last_stable_offset
from tests.integration.records import test_apache as apache
from tests.integration.records.test_compaction import COMPACTED, EAGER
from tests.integration.waiting import eventually

FLUSH_S = 30
END = 1 << 40


def plan(bootstrap: str, **changes: Any) -> ReadPlan:
    client = ClientConfig(parse_servers(bootstrap), retry_backoff_ms=20, api_timeout_ms=20_000)
    return ReadPlan(client)._replace(**changes)


def impatient(bootstrap: str, **changes: Any) -> ReadPlan:
    client = ClientConfig(parse_servers(bootstrap), retry_backoff_ms=20, api_timeout_ms=300)
    return ReadPlan(client)._replace(**changes)


def read(how: ReadPlan, topic: str, start: int, end: int) -> list[dict[str, Any]]:
    return [row for batch in read_range(how, OffsetRange(topic, 0, start, end)) for row in batch.to_pylist()]


def values(how: ReadPlan, topic: str, start: int, end: int) -> list[Any]:
    return [row["value"] for row in read(how._replace(columns=("value",)), topic, start, end)]


def offsets(how: ReadPlan, topic: str, start: int, end: int) -> list[int]:
    return [row["offset"] for row in read(how._replace(columns=("offset",)), topic, start, end)]


def produce(bootstrap: str, topic: str, batches: Sequence[bytes]) -> None:
    with RawClient(bootstrap) as client:
        for batch in batches:
            assert client.produce(topic, batch).error_code == 0


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


# -- the same records as any consumer gets

contents = st.one_of(st.none(), st.binary(max_size=200))
messages = st.fixed_dictionaries(
    {
        "key": contents,
        "value": contents,
        "timestamp": st.integers(1, 1_700_000_000_000),
        "headers": st.lists(st.tuples(st.text(min_size=1, max_size=5), contents), max_size=3),
    }
)


def consumed(bootstrap: str, topic: str, count: int) -> list[tuple[Any, ...]]:
    """The view of librdkafka."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[Any] = []
    while len(found) < count:
        batch = consumer.consume(count - len(found), timeout=FLUSH_S)
        assert batch, f"{len(found)} of {count} records"
        found += batch
    consumer.close()
    return [
        (m.offset(), m.key(), m.value(), m.timestamp()[1], [tuple(header) for header in m.headers() or ()])
        for m in found
    ]


def as_consumed(row: dict[str, Any]) -> tuple[Any, ...]:
    headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
    return row["offset"], row["key"], row["value"], round(row["timestamp"].timestamp() * 1000), headers


@pytest.mark.parametrize("codec", CODECS)
def test_rows_are_what_confluent_kafka_consumes(bootstrap: str, new_topic: NewTopic, codec: str) -> None:
    @given(rows=st.lists(messages, min_size=1, max_size=60))
    @settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
    def check(rows: list[dict[str, Any]]) -> None:
        topic = new_topic()
        settings_ = {"bootstrap.servers": bootstrap, "compression.type": codec, "batch.num.messages": 25}
        producer = confluent_kafka.Producer(settings_)
        for row in rows:
            producer.produce(topic, partition=0, **row)
        assert producer.flush(FLUSH_S) == 0
        found = read(plan(bootstrap, batch_rows_max=17), topic, 0, len(rows))
        assert [as_consumed(row) for row in found] == consumed(bootstrap, topic, len(rows))
        assert {(row["topic"], row["partition"], row["timestampType"]) for row in found} == {(topic, 0, 0)}

    check()


@pytest.mark.apache
@pytest.mark.skipif(apache._missing() is not None, reason=str(apache._missing()))
def test_rows_of_apache_kafka_are_what_confluent_kafka_consumes(tmp_path: Path) -> None:
    kafka = ApacheKafka(tmp_path)
    kafka.start()
    try:
        topic = make_topic(kafka.bootstrap)
        for codec in CODECS:
            producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "compression.type": codec})
            for number in range(3000):
                headers: Any = [("h", b"%d" % number)] if number % 7 == 0 else None
                producer.produce(topic, b"%d " % number * 20, b"k" if number % 3 else None, 0, headers=headers)
            assert producer.flush(FLUSH_S) == 0
        count = 3000 * len(CODECS)
        found = read(plan(kafka.bootstrap, fetch_bytes_max=200_000), topic, 0, count)
        assert [as_consumed(row) for row in found] == consumed(kafka.bootstrap, topic, count)
    finally:
        kafka.stop()


def test_log_append_time_is_the_brokers(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(configs={"message.timestamp.type": "LogAppendTime"})
    produce(bootstrap, topic, [batch_of(b"a", b"b", timestamp_ms=5)])
    rows = read(plan(bootstrap), topic, 0, 2)
    assert [row["timestampType"] for row in rows] == [1, 1]
    assert {row["timestamp"].year for row in rows} != {1970}


# -- exactly the range


@pytest.mark.parametrize("fetch_bytes_max", [1, 500, 5_000, 1 << 20])
def test_any_range_in_fetches_of_any_size_is_exactly_its_records(
    bootstrap: str, new_topic: NewTopic, fetch_bytes_max: int
) -> None:
    topic = new_topic()
    produce(
        bootstrap, topic, [batch_of(*numbers(start, start + 10), codec=Codec(start % 5)) for start in range(0, 300, 10)]
    )
    how = plan(bootstrap, fetch_bytes_max=fetch_bytes_max, batch_rows_max=64)
    for start, end in ((0, 300), (0, 1), (299, 300), (15, 15), (15, 14), (5, 295), (10, 20), (19, 21)):
        assert values(how, topic, start, end) == numbers(start, max(start, end))


def test_a_record_larger_than_a_fetch_comes_whole(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    large = os.urandom(900_000)
    produce(bootstrap, topic, [batch_of(b"before"), batch_of(large), batch_of(b"behind")])
    assert values(plan(bootstrap, fetch_bytes_max=1000), topic, 0, 3) == [b"before", large, b"behind"]


def test_arrow_batches_have_the_asked_columns_and_rows(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    produce(bootstrap, topic, [batch_of(*numbers(0, 250))])
    how = plan(bootstrap, columns=("offset", "value"), batch_rows_max=100)
    batches = list(read_range(how, OffsetRange(topic, 0, 0, 250)))
    assert [batch.num_rows for batch in batches] == [100, 100, 50]
    assert {batch.schema for batch in batches} == {pa.schema([RAW_FIELDS["offset"], RAW_FIELDS["value"]])}


def test_a_reader_that_stops_early_leaves_nothing_behind(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    produce(bootstrap, topic, [batch_of(bytes(5000)) for _ in range(50)])
    how = plan(bootstrap, fetch_bytes_max=10_000)
    for _ in range(3):
        batches = read_range(how, OffsetRange(topic, 0, 0, 50))
        next(batches)
        batches.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("moldau-fetch")]
    assert len(values(how, topic, 0, 50)) == 50


def test_ranges_of_a_process_share_connections(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    produce(bootstrap, topic, [batch_of(b"a", b"b")])
    how = plan(bootstrap)
    connections.close_idle()
    assert values(how, topic, 0, 1) == [b"a"]
    (cluster,) = connections._idle[how.client]
    before = dict(cluster._connections)
    assert values(how, topic, 1, 2) == [b"b"]
    assert connections._idle[how.client] == [cluster]
    assert cluster._connections == before


def test_a_reader_that_stops_early_does_not_wait_for_what_may_never_come(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    with RawClient(bootstrap) as client:
        client.produce(topic, batch_of(b"before"))
        RawProducer(client).init().write(topic, b"open")
        reading = read_range(plan(bootstrap), OffsetRange(topic, 0, 0, 2))
        assert next(reading).num_rows == 1
        began = time.monotonic()
        reading.close()  # type: ignore[attr-defined]
        assert time.monotonic() - began < plan(bootstrap).client.api_timeout_ms / 1000 / 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("moldau-fetch")]


# -- gaps that are no loss


def test_committed_readers_see_no_aborted_record_and_others_see_all(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    with RawClient(bootstrap) as client:
        first, second = RawProducer(client).init(), RawProducer(client).init()
        first.write(topic, b"kept 1")
        second.write(topic, b"gone 1")
        client.produce(topic, batch_of(b"plain"))
        first.commit()
        second.abort()
        first.write(topic, b"gone 2")
        first.abort()
        second.write(topic, b"kept 2")
        second.commit()
        end = last_stable_offset(client, topic)
    committed = plan(bootstrap)
    everything = plan(bootstrap, isolation=IsolationLevel.READ_UNCOMMITTED)
    assert values(committed, topic, 0, end) == [b"kept 1", b"plain", b"kept 2"]
    assert values(everything, topic, 0, end) == [b"kept 1", b"gone 1", b"plain", b"gone 2", b"kept 2"]
    # From the middle of an aborted transaction, and up to markers, which no reader sees; and each batch by itself.
    for how in (committed, everything):
        all_of_it = offsets(how, topic, 0, end)
        for start in range(end):
            left = [offset for offset in all_of_it if offset >= start]
            assert offsets(how, topic, start, end) == left
            assert offsets(how._replace(fetch_bytes_max=1), topic, start, end) == left


def test_an_open_transaction_is_waited_for_and_named(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    with RawClient(bootstrap) as client:
        client.produce(topic, batch_of(b"before"))
        producer = RawProducer(client).init()
        producer.write(topic, b"open")
        client.produce(topic, batch_of(b"behind"))
        with pytest.raises(KafkaError, match="a transaction is open since 1") as raised:
            values(impatient(bootstrap), topic, 0, 3)
        assert raised.value.code == ErrorCode.REQUEST_TIMED_OUT
        assert values(plan(bootstrap, isolation=IsolationLevel.READ_UNCOMMITTED), topic, 0, 3) == [
            b"before",
            b"open",
            b"behind",
        ]
        reading = read_range(plan(bootstrap), OffsetRange(topic, 0, 0, 3))
        assert next(reading).num_rows == 1
        producer.commit()
        assert [batch.num_rows for batch in reading] == [2]


def test_a_compacted_topic_has_gaps_and_its_ranges_end(tmp_path: Path) -> None:
    with Broker(EAGER, data_dir=tmp_path) as broker:
        bootstrap = broker.bootstrap_servers
        topic = make_topic(bootstrap, configs=COMPACTED)
        stale = [encode_batch([(b"key", b"%d" % n, n, ()), (b"gone", None, n, ())]) for n in range(20)]
        end = [encode_batch([(b"end", bytes(40_000), 0, ())])] * 3  # the active segment is never cleaned
        produce(bootstrap, topic, [*stale, *end])
        how = plan(bootstrap)
        eventually(lambda: offsets(how, topic, 0, 43)[0] == 38, "old values are cleaned")
        assert offsets(how, topic, 0, 38) == []
        assert offsets(how, topic, 0, 39) == [38]
        left = offsets(how, topic, 0, 43)
        assert offsets(how, topic, 38, 42) == [offset for offset in left if offset < 42]


# -- what goes wrong


def test_records_deleted_before_they_were_read_are_a_loss(
    bootstrap: str, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic()
    produce(bootstrap, topic, [batch_of(*numbers(start, start + 10)) for start in range(0, 50, 10)])
    with cluster_at(bootstrap) as cluster:
        delete_records(cluster, {TopicPartition(topic, 0): 25})
    with pytest.raises(
        DataLossError, match=f"{topic}-0: offsets 0 to 24 are lost: the log starts at 25.*failOnDataLoss"
    ):
        values(plan(bootstrap), topic, 0, 50)
    lenient = plan(bootstrap, fail_on_data_loss=False)
    with caplog.at_level(logging.WARNING):
        assert values(lenient, topic, 0, 50) == numbers(25, 50)
        assert values(lenient, topic, 0, 20) == []
    assert "offsets 0 to 24 are lost" in caplog.text
    assert "offsets 0 to 19 are lost" in caplog.text


def test_a_log_shorter_than_planned_is_a_loss_and_no_wait_for_ever(
    bootstrap: str, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic()
    produce(bootstrap, topic, [batch_of(*numbers(0, 10))])
    for start, lost in ((5, 10), (10, 10), (15, 15)):
        with pytest.raises(DataLossError, match=f"offsets {lost} to 19 are lost: the log ends at 10"):
            values(impatient(bootstrap), topic, start, 20)
    assert values(impatient(bootstrap, fail_on_data_loss=False), topic, 5, 20) == numbers(5, 10)
    assert "offsets 10 to 19 are lost" in caplog.text


def test_a_topic_deleted_while_it_is_read_is_a_loss(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_GONE_AFTER_MS", 100)
    for fails in (True, False):
        topic = new_topic()
        produce(bootstrap, topic, [batch_of(bytes(2000)) for _ in range(50)])
        how = plan(bootstrap, fetch_bytes_max=5000, fail_on_data_loss=fails)
        reading = read_range(how, OffsetRange(topic, 0, 0, 50))
        next(reading)
        with cluster_at(bootstrap) as cluster:
            delete_topics(cluster, [topic])
        if fails:
            with pytest.raises(DataLossError, match="to 49 are lost: the topic is gone"):
                list(reading)
        else:
            assert len(list(reading)) < 49


def test_a_topic_made_again_is_not_taken_for_the_one_that_was_planned(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_GONE_AFTER_MS", 100)
    topic = new_topic()
    batches = [batch_of(bytes(2000)) for _ in range(50)]
    produce(bootstrap, topic, batches)
    reading = read_range(plan(bootstrap, fetch_bytes_max=5000), OffsetRange(topic, 0, 0, 50))
    next(reading)
    with cluster_at(bootstrap) as cluster:
        delete_topics(cluster, [topic])
    new_topic(name=topic)
    produce(bootstrap, topic, batches)
    with pytest.raises(DataLossError, match=r"the topic is gone .it was deleted and created again"):
        list(reading)


def test_a_broker_restarted_while_it_is_read_loses_and_repeats_nothing(tmp_path: Path) -> None:
    broker = Broker(data_dir=tmp_path).start()
    try:
        bootstrap, port = broker.bootstrap_servers, broker.port
        topic = make_topic(bootstrap)
        produce(bootstrap, topic, [batch_of(b"%d" % number, bytes(2000)) for number in range(200)])
        reading = read_range(
            plan(bootstrap, fetch_bytes_max=10_000, columns=("offset",)), OffsetRange(topic, 0, 0, 400)
        )
        found = next(reading).column(0).to_pylist()
        broker.stop()
        broker = Broker(data_dir=tmp_path, port=port)
        restarted = threading.Timer(0.3, broker.start)
        restarted.start()
        for batch in reading:
            found += batch.column(0).to_pylist()
        restarted.join()
        assert found == list(range(400))
    finally:
        broker.stop()


def test_a_broker_that_stays_away_is_an_error_in_time() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(KafkaError, match="No broker could be reached"):
            values(impatient(f"127.0.0.1:{unused.getsockname()[1]}"), "topic", 0, 1)


def test_a_malformed_record_is_named_by_topic_partition_and_offset(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    good = batch_of(b"good")
    bad = assemble(read_header(good), b"\xff" * 10)  # brokers look at the CRC, not at records
    produce(bootstrap, topic, [good, bad])
    with pytest.raises(CorruptRecordError, match=f"{topic}-0: record 0 of the batch at offset 1 is malformed"):
        values(plan(bootstrap), topic, 0, 2)
    assert values(plan(bootstrap), topic, 0, 1) == [b"good"]


# -- brokers that answer without records, though they have some


def answer_first(
    monkeypatch: pytest.MonkeyPatch, times: int, change: Callable[[FetchResponse], FetchResponse]
) -> list[int]:
    """Have the first answers changed on their way; returns a list that counts them."""
    answers: list[int] = []

    def parse(version: int, frame: memoryview) -> FetchResponse:
        answers.append(version)
        response = parse_fetch_response(version, frame)
        return change(response) if len(answers) <= times else response

    monkeypatch.setattr(fetching, "parse_fetch_response", parse)
    return answers


def without_records(response: FetchResponse, **changes: Any) -> FetchResponse:
    ((name, topic_id, (result,)),) = response.topics
    return response._replace(topics=[(name, topic_id, [result._replace(records=None, **changes)])])


def throttled(response: FetchResponse) -> FetchResponse:
    return response._replace(throttle_ms=50, topics=[])


def sent_elsewhere(response: FetchResponse) -> FetchResponse:
    return without_records(response, preferred_read_replica=1)


@pytest.mark.parametrize("change", [throttled, sent_elsewhere, without_records])
def test_an_answer_without_records_is_no_end_of_a_range(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch, change: Callable[..., FetchResponse]
) -> None:
    topic = new_topic()
    produce(bootstrap, topic, [batch_of(*numbers(0, 10))])
    with cluster_at(bootstrap) as cluster:
        assert list(cluster.brokers()) == [1]
    if change is without_records:  # as a broker says it whose remote storage is slow
        monkeypatch.setattr(fetching._Source, "_is_local", lambda source, position: False)
    answers = answer_first(monkeypatch, 2, change)
    assert values(plan(bootstrap), topic, 0, 10) == numbers(0, 10)
    assert len(answers) == 3
    answer_first(monkeypatch, 1_000_000, change)
    with pytest.raises(KafkaError, match=f"{topic}-0: nothing came from offset 0 in 300 ms") as raised:
        values(impatient(bootstrap, fail_on_data_loss=False), topic, 0, 10)
    assert raised.value.code == ErrorCode.REQUEST_TIMED_OUT


def test_a_gap_up_to_the_end_of_the_log_ends_a_range(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    produce(bootstrap, topic, [batch_of(*numbers(0, 10))])
    answers = answer_first(monkeypatch, 1_000_000, without_records)
    assert values(plan(bootstrap), topic, 3, 10) == []
    assert len(answers) == 1


def test_a_leader_that_goes_away_while_a_loss_is_looked_into_is_asked_again(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    produce(bootstrap, topic, [batch_of(*numbers(0, 10)), batch_of(*numbers(10, 20))])
    with cluster_at(bootstrap) as cluster:
        delete_records(cluster, {TopicPartition(topic, 0): 10})
    asked = []

    def flaky(*arguments: Any) -> Any:
        asked.append(arguments)
        if len(asked) == 1:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "connection lost")
        return list_offsets(*arguments)

    monkeypatch.setattr(fetching, "list_offsets", flaky)
    assert values(plan(bootstrap, fail_on_data_loss=False), topic, 0, 20) == numbers(10, 20)


def test_batches_that_do_not_go_forward_are_corrupt() -> None:
    for offsets_ in ((10, 5), (5, 5), (5, 10)):
        log = b"".join(encode_batch([(None, b"v", 0, ())] * 3, base_offset=offset) for offset in offsets_)
        fetched = fetching._Fetched(7, np.frombuffer(log, np.uint8), ())
        if offsets_ == (5, 10):
            assert fetching._batches_from(fetched).shape[1] == 2
        else:
            with pytest.raises(CorruptRecordError, match="offset 7 do not go forward"):
                fetching._batches_from(fetched)
