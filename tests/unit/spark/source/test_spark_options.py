"""What a source may be asked, and what it says when it is asked wrongly."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql.types import ArrayType, StructType

from moldau.errors import ConfigError
from moldau.spark.data_source import MoldauDataSource
from moldau.spark.options import Options
from moldau.spark.source.projection import RowReader, source_schema
from moldau.spark.source.read_options import ReadOptions, Subscription
from moldau.wire.constants import EARLIEST, LATEST, IsolationLevel
from moldau.wire.topic_partition import TopicPartition

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


def options(**given: object) -> Options:
    return Options(
        SERVERS | {"subscribe": "t"} | {name.replace("__", "."): str(value) for name, value in given.items()}
    )


def batch(**given: object) -> ReadOptions:
    return ReadOptions.for_batch(options(**given))


def stream(**given: object) -> ReadOptions:
    return ReadOptions.for_stream(options(**given))


def test_importing_the_package_loads_neither_spark_nor_arrow() -> None:
    code = "import sys, moldau.spark; print(*{'pyspark', 'pyarrow', 'numpy', 'numba'}.intersection(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


def test_defaults_are_those_of_sparks_kafka_source_but_for_isolation() -> None:
    read = batch()
    assert (read.start.time, read.end.time, stream().start.time) == (EARLIEST, LATEST, LATEST)
    assert read.fail_on_data_loss
    assert not read.include_headers
    assert read.trigger_delay_max_ms == 15 * 60_000
    assert read.isolation is IsolationLevel.READ_COMMITTED


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"subscribe": "b, a,,a"}, Subscription(topics=("a", "b"))),
        ({"subscribePattern": "page.*"}, Subscription(pattern="page.*")),
        (
            {"assign": '{"b":[1,0],"a":[2]}'},
            Subscription(partitions=(TopicPartition("a", 2), TopicPartition("b", 0), TopicPartition("b", 1))),
        ),
    ],
)
def test_topics_are_chosen_by_name_by_pattern_or_by_partition(given: dict[str, str], expected: Subscription) -> None:
    assert ReadOptions.for_batch(Options(SERVERS | given)).subscription == expected


@pytest.mark.parametrize("given", [{}, {"subscribe": "a", "assign": '{"a":[0]}'}])
def test_exactly_one_way_to_choose_topics_is_taken(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="exactly one of the options subscribe, subscribePattern, assign"):
        ReadOptions.for_batch(Options(SERVERS | given))


def test_a_time_wins_over_times_of_partitions_and_those_over_offsets() -> None:
    by_times = {"startingOffsetsByTimestamp": '{"t":{"0":5}}', "startingOffsets": "earliest"}
    assert batch(**by_times).start.times == {("t", 0): 5}
    assert batch(startingTimestamp=7, **by_times).start.time == 7


def test_offsets_may_be_numbers_the_earliest_and_the_latest() -> None:
    assert stream(startingOffsets='{"t":{"0":23,"1":-1,"2":-2}}').start.offsets == {
        ("t", 0): 23,
        ("t", 1): LATEST,
        ("t", 2): EARLIEST,
    }
    assert batch(startingOffsets=" Earliest ").start.time == EARLIEST


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"startingOffsets": "latest"}, "a batch cannot start at the latest offset"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "a batch cannot start at the latest offset"),
        ({"endingOffsets": "earliest"}, "a batch cannot end at the earliest offset"),
        ({"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":4}}'}, "t-0 starts behind its endingOffsets"),
        ({"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"1":9}}'}, "different partitions: t-0, t-1"),
        ({"startingOffsets": "newest"}, "expected earliest, latest or offsets of each partition"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "expected earliest, latest or offsets"),
        ({"startingOffsets": '{"t":{"0":"5"}}'}, "expected earliest, latest or offsets"),
        ({"startingOffsets": '{"t":{"0":true}}'}, "expected earliest, latest or offsets"),
        ({"startingOffsets": '{"t":[0]}'}, "expected earliest, latest or offsets"),
        ({"startingOffsetsByTimestamp": "{}"}, "expected milliseconds of each partition"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp=yesterday: expected a whole number"),
        ({"startingOffsetsByTimestampStrategy": "skip"}, "expected one of error, latest"),
        ({"subscribe": " , "}, "name at least one topic"),
        ({"minPartitions": "0"}, "minPartitions=0: expected a whole number, 1 or more"),
        ({"maxOffsetsPerTrigger": 2**63}, "expected a whole number, 1 or more"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss=maybe: expected true or false"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay=soon: expected a time like 30s"),
        ({"minOffsetsPerTrigger": 9, "maxOffsetsPerTrigger": 8}, "more than maxOffsetsPerTrigger=8"),
        ({"commitGroupId": ""}, "commitGroupId is empty"),
        ({"kafka__isolation__level": "dirty"}, "expected one of read_uncommitted, read_committed"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_to_do(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        batch(**given)


@pytest.mark.parametrize("text", ["", "[", '{"t":', "[0]", '{"t":{"0":1}}', '{"t":[-1]}', '{"t":["0"]}'])
def test_an_assignment_that_names_no_partitions_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r'expected like \{"topicA":\[0,1\]'):
        ReadOptions.for_batch(Options(SERVERS | {"assign": text}))


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a regular expression"):
        ReadOptions.for_batch(Options(SERVERS | {"subscribePattern": "a("}))


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: a stream has no end"):
        stream(**{name: "latest"})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("startingOffset", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("failOnDataLos", "failOnDataLoss"),
    ],
)
def test_a_misspelt_option_is_told_what_was_meant(given: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{meant}'"):
        stream(**{given: "1"})


@pytest.mark.parametrize("name", ["path", "checkpointLocation", "queryName", "mergeSchema", "header", "mode"])
def test_an_option_of_sparks_own_is_let_through(name: str) -> None:
    stream(**{name: "1"})


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        ("kafka.max.poll.recordz", "did you mean 'kafka.max.poll.records'?"),
        ("kafka.Fetch.Min.Bites", "did you mean 'kafka.fetch.min.bytes'?"),
        ("kafka.of.my.own", "option 'kafka.of.my.own' is unknown and has no effect"),
        ("kafka.max.poll.records", None),
        ("kafka.sasl.oauthbearer.of.a.plugin", None),
    ],
)
def test_a_property_that_kafkas_clients_do_not_have_is_a_warning(
    given: str, warning: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    MoldauDataSource(SERVERS | {"subscribe": "t", given: "5"})
    assert [record.getMessage().endswith(warning or "") for record in caplog.records] == [True] * bool(warning)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("kafka.auto.offset.reset", "use the option startingOffsets"),
        ("kafka.enable.auto.commit", "use the option commitGroupId"),
        ("kafka.key.deserializer", "use the option value.format or key.format"),
        ("kafka.value.deserializer", "use the option value.format or key.format"),
        ("kafka.interceptor.classes", "functions of the DataFrame"),
    ],
)
def test_properties_that_would_take_over_sparks_work_are_refused_with_what_to_use(name: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is not supported: .*{instead}"):
        stream(**{name: "x"})


def test_options_of_a_java_consumer_change_nothing() -> None:
    java = {
        "groupIdPrefix": "g",
        "kafka.group.id": "g",
        "kafkaConsumer.pollTimeoutMs": "1",
        "fetchOffset.numRetries": "1",
        "kafka.max.poll.records": "5000",
    }
    assert stream(**java) == stream()


def test_a_missing_address_is_told_with_an_example() -> None:
    with pytest.raises(ConfigError, match=r'\.option\("kafka.bootstrap.servers", "localhost:9092"\)'):
        ReadOptions.for_batch(Options({"subscribe": "t"}))


@pytest.mark.parametrize(("text", "ms"), [("500", 500), ("30s", 30_000), ("2 min", 120_000), ("1h", 3_600_000)])
def test_delays_are_written_as_in_spark(text: str, ms: int) -> None:
    assert stream(maxTriggerDelay=text).trigger_delay_max_ms == ms


def test_the_smaller_of_two_fetch_sizes_counts() -> None:
    sizes = {"kafka.max.partition.fetch.bytes": 5000, "kafka.fetch.max.bytes": 4000}
    assert batch(**sizes).fetch_bytes_max == 4000


def test_what_travels_with_a_task_shows_no_password_when_it_is_printed() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="sesame";'
    given = options(
        value__format="string", kafka__security__protocol="SASL_SSL", kafka__sasl__mechanism="PLAIN",
        kafka__sasl__jaas__config=jaas, kafka__ssl__key__password="sesame",
    )  # fmt: skip
    read = ReadOptions.for_batch(given)
    rows = RowReader.of(given, read, source_schema(given, read))
    assert rows.plan.client.security.password.value == "sesame"
    assert "sesame" not in repr((read, rows))


def test_corrupt_records_take_no_other_columns_place() -> None:
    with pytest.raises(ConfigError, match="columnNameOfCorruptRecord=offset: a topic has that column"):
        source_schema(options(value__format="string", columnNameOfCorruptRecord="offset"), batch())


def test_columns_are_those_of_sparks_kafka_source() -> None:
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert source_schema(options(), batch()).names == names
    with_headers = options(includeHeaders="true")
    assert source_schema(with_headers, ReadOptions.for_batch(with_headers)).names == [*names, "headers"]


def test_a_schema_chooses_columns_in_its_own_order() -> None:
    schema = StructType().add("timestamp", "timestamp").add("value", "binary")
    rows = RowReader.of(options(), batch(), schema)
    assert rows.plan.columns == rows.columns == ("timestamp", "value")


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("timestamptype", "integer", "did you mean 'timestampType'"),
        ("temperature", "integer", "a topic has no column 'temperature'"),
        ("value", "string", "column value is binary, not string"),
        ("offset", "integer", "column offset is bigint, not int: use bigint in the schema and cast it in the query"),
    ],
)
def test_a_schema_that_is_no_choice_of_columns_is_told_why(name: str, kind: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RowReader.of(options(), batch(), StructType().add(name, kind))


HEADER = StructType().add("key", "string", nullable=False).add("value", "binary")


@pytest.mark.parametrize(
    "schema",
    [StructType().add("offset", "long", nullable=False), StructType().add("headers", ArrayType(HEADER))],
    ids=["column", "inside"],
)
def test_a_schema_promises_no_values_where_records_may_have_none(schema: StructType) -> None:
    with pytest.raises(ConfigError, match="may contain nulls: remove NOT NULL from the schema"):
        RowReader.of(options(), batch(), schema)


def test_the_other_connector_is_asked_for_elsewhere() -> None:
    with pytest.raises(ConfigError, match="apply_options"):
        Options({"connector": "jvm"}).refuse_other_connector()
