"""Streams through a real Spark: every record in one batch, batches that can be replayed, positions to be seen."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

import moldau.spark
from moldau.cli.coordination import consumer_groups
from moldau.errors import ConfigError, MoldauError
from moldau.spark.source.read_plan import OffsetRange
from moldau.spark.source.stream_reader import TopicStreamReader
from tests.integration.conftest import NewTopic
from tests.integration.spark.topics import Copy, numbered, produce, source, stream
from tests.integration.waiting import eventually

ALL = ReadAllAvailable()


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path / "checkpoint")


def reader_of(bootstrap: str, **options: object) -> TopicStreamReader:
    """What Spark's Python process talks to, without the process."""
    wanted = source(bootstrap, **options)
    reader = wanted.streamReader(wanted.schema())
    assert callable(reader.latestOffset)
    assert isinstance(reader, TopicStreamReader)
    return reader


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(offset))
    return loaded


def ranges(reader: TopicStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int, int]]:
    parts: list[OffsetRange] = [part.value for part in reader.partitions(through_json(start), through_json(end))]
    return [(part.partition, part.start, part.end) for part in parts]


def numbers(end: int, start: int = 0) -> list[bytes]:
    return sorted(b"%d" % number for number in range(start, end))


def test_a_query_goes_on_where_it_stopped(spark: SparkSession, bootstrap: str, new_topic: NewTopic, copy: Copy) -> None:
    topic = new_topic()
    produce(bootstrap, topic, numbered(0, 90))
    df = stream(spark, bootstrap, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=40)
    query = copy.run(df)
    assert {batch: len(rows) for batch, rows in copy.batches.items()} == {0: 40, 1: 40, 2: 10}
    positions = moldau.spark.progress(query)
    assert [(p.partition, p.start, p.end, p.latest, p.lag) for p in positions.partitions] == [(0, 80, 90, 90, 0)]
    assert re.search(rf"batch 2, 10 rows in .* lag 0\n.*\n{topic} +0 +80 +90 +90 +0$", str(positions))
    kept = json.loads((copy.checkpoint / "offsets" / "2").read_text().splitlines()[-1])
    assert kept.pop(topic) == {"0": 90}
    assert set(map(str, kept.values())) == {"{}"}  # nothing to Spark's own source

    produce(bootstrap, topic, numbered(90, 100))
    copy.run(stream(spark, bootstrap, subscribe=topic))  # startingOffsets are of no effect any more
    assert copy.batches[3] == numbers(100, start=90)
    assert copy.rows == numbers(100)


def test_a_query_starts_at_the_end_and_shows_its_positions_in_a_group(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, copy: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, group = new_topic(), new_topic()
    produce(bootstrap, topic, [b"before"])
    with copy.of(stream(spark, bootstrap, subscribe=topic, commitGroupId=group)) as query:
        eventually(lambda: query.lastProgress is not None, "the first batch is done", 60)
        for end in (10, 20):
            produce(bootstrap, topic, numbered(end - 10, end))
            eventually(lambda: len(copy.rows) >= end, "rows arrive", 60)  # noqa: B023
        assert copy.rows == numbers(20)
        eventually(lambda: committed(bootstrap, group, capsys) == [(topic, "0", "21", "21", "0")], "positions are seen")


def committed(bootstrap: str, group: str, capsys: pytest.CaptureFixture[str]) -> list[tuple[str, ...]]:
    """Topic, partition, position, end and lag, as `kafka-consumer-groups --describe` prints them."""
    consumer_groups.main(["--bootstrap-server", bootstrap, "--describe", "--group", group])
    lines = capsys.readouterr().out.splitlines()
    return [tuple(line.split()[1:6]) for line in lines if line.startswith(group)]


def test_a_first_batch_that_failed_is_replayed_from_where_it_started(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, copy: Copy
) -> None:
    topic = new_topic()
    produce(bootstrap, topic, [b"before"])
    df = stream(spark, bootstrap, subscribe=topic, startingOffsets="latest")
    copy.fail = True
    with copy.of(df) as query, pytest.raises(Exception, match="this batch was to fail"):
        query.awaitTermination(60)
    produce(bootstrap, topic, numbered(0, 10))  # after the start: not to be missed
    copy.fail = False
    copy.run(df)
    assert copy.batches == {0: [], 1: numbers(10)}


def test_starts_are_looked_up_once_and_kept_with_the_batch(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    produce(bootstrap, topic, numbered(0, 30) + numbered(0, 10, partition=1))
    options = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 20, "1": -1}})}
    first = reader_of(bootstrap, **options)
    assert first.initialOffset() == {}
    produce(bootstrap, topic, numbered(30, 40))
    end = first.latestOffset({}, ALL)
    assert end[topic] == {"0": 40, "1": 10}
    produce(bootstrap, topic, numbered(10, 15, partition=1))

    again = reader_of(bootstrap, **options)  # a restart: the first batch is not finished
    assert ranges(again, again.initialOffset(), end) == ranges(first, {}, end) == [(0, 20, 40)]
    following = again.latestOffset(through_json(end), ALL)
    assert following[topic] == {"0": 40, "1": 15}
    assert ranges(again, end, following) == [(1, 10, 15)]
    assert again.latestOffset(through_json(following), ALL) == following
    assert again.reportLatestOffset() == {topic: following[topic]}
    again.stop()


def test_a_query_continues_from_a_checkpoint_of_sparks_kafka_source(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    produce(bootstrap, topic, numbered(0, 7) + numbered(0, 3, partition=1))
    reader = reader_of(bootstrap, subscribe=topic)
    assert ranges(reader, {topic: {"0": 5}}, {topic: {"0": 7, "1": 3}}) == [(0, 5, 7), (1, 0, 3)]
    with pytest.raises(ConfigError, match="finish it there, or use another checkpoint"):
        reader.partitions({}, {topic: {"0": 7, "1": 3}})


def test_a_trigger_takes_its_share_of_each_partition(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    produce(bootstrap, topic, numbered(0, 90) + numbered(0, 10, partition=1))
    reader = reader_of(bootstrap, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=20, minPartitions=3)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(20)
    end = reader.latestOffset({}, limit)
    assert end[topic] == {"0": 18, "1": 2}
    assert ranges(reader, {}, end) == [(0, 0, 9), (0, 9, 18), (1, 0, 2)]
    assert reader.latestOffset(end, ALL)[topic] == {"0": 90, "1": 10}  # Trigger.Once


def test_a_trigger_waits_for_enough_records_or_long_enough(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    options: dict[str, object] = {"subscribe": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": 10}
    patient, hasty = reader_of(bootstrap, **options), reader_of(bootstrap, **options, maxTriggerDelay="1ms")
    limit = patient.getDefaultReadLimit()
    assert limit == ReadMinRows(10)
    start = patient.latestOffset({}, limit)
    assert hasty.latestOffset({}, limit) == start
    produce(bootstrap, topic, numbered(0, 5))
    assert patient.latestOffset(start, limit)[topic] == {"0": 5}  # the first one does not wait, as in Spark
    produce(bootstrap, topic, numbered(5, 10))
    assert patient.latestOffset({topic: {"0": 5}}, limit) == {topic: {"0": 5}}
    assert hasty.latestOffset({topic: {"0": 5}}, limit)[topic] == {"0": 10}
    produce(bootstrap, topic, numbered(10, 15))
    assert patient.latestOffset({topic: {"0": 5}}, limit)[topic] == {"0": 15}


def test_available_now_ends_where_the_records_ended_when_it_began(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    produce(bootstrap, topic, numbered(0, 10))
    reader = reader_of(bootstrap, subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger=100)
    reader.prepareForTriggerAvailableNow()
    produce(bootstrap, topic, numbered(10, 20))
    end = reader.latestOffset({}, reader.getDefaultReadLimit())
    assert end[topic] == {"0": 10}
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
    latest = reader_of(bootstrap, subscribe=topic)
    latest.prepareForTriggerAvailableNow()
    produce(bootstrap, topic, numbered(20, 30))
    assert ranges(latest, {}, latest.latestOffset({}, ALL)) == []


@pytest.mark.parametrize("given", [{"endingOffsets": "latest"}, {"schema": "value string"}], ids=["option", "schema"])
def test_the_first_line_of_a_streams_error_says_what_to_do(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, copy: Copy, given: dict[str, str]
) -> None:
    df = stream(spark, bootstrap, **({"subscribe": new_topic()} | given))
    with copy.of(df) as query, pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination(60)
    first_line = str(raised.value).splitlines()[0]
    assert re.search(r"moldau.errors.ConfigError: .*(drop the option|cast it in the query)", first_line)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda _: {"subscribe": "no-such"}, "no such topic: no-such; check the name, or create it"),
        (lambda topic: {"subscribe": topic + "x"}, r"no such topic: .*x; did you mean '.*'\? If not, create it"),
        (lambda topic: {"assign": json.dumps({topic: [0, 7]})}, "no such partition: .*-7; check the option assign"),
        (lambda topic: {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 7}})}, "has no offset 7 yet"),
        (lambda topic: {"subscribe": topic, "endingOffsets": "latest"}, "a stream has no end"),
    ],
)
def test_a_query_that_cannot_start_says_why(
    bootstrap: str, new_topic: NewTopic, given: Callable[[str], dict[str, str]], words: str
) -> None:
    options = given(new_topic())
    with pytest.raises(MoldauError, match=words):
        reader_of(bootstrap, **options).latestOffset({}, ALL)


def test_a_group_that_cannot_be_written_to_is_a_warning(
    bootstrap: str, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic()
    reader = reader_of(bootstrap, subscribe=topic, commitGroupId="x" * 40_000)
    end = reader.latestOffset({}, ALL)
    assert reader.latestOffset(end, ALL) == end
    assert "positions not committed to group" in caplog.text
