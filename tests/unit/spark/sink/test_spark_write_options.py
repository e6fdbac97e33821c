"""A sink takes the options of Spark's Kafka sink and of Kafka's producer, and says what is wrong with others."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from moldau.errors import ConfigError
from moldau.spark.formats.ddl import parse_type
from moldau.spark.sink.sink_columns import check_columns
from moldau.spark.sink.write_options import WriteOptions
from moldau.wire.compression import Codec

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


def parsed(**given: str) -> WriteOptions:
    return WriteOptions.parse(SERVERS | {name.replace("__", "."): value for name, value in given.items()})


def schema(ddl: str) -> StructType:
    struct = parse_type(ddl)
    assert isinstance(struct, StructType)
    return struct


def test_what_nobody_says_is_exactly_once_uncompressed_and_for_all_replicas() -> None:
    options = parsed(topic="out")
    assert (options.topic, options.exactly_once, options.codec, options.acks) == ("out", True, Codec.NONE, -1)
    assert options.transaction_timeout_ms == 600_000


def test_options_of_kafka_s_producer_are_taken() -> None:
    options = parsed(
        kafka__compression__type="ZSTD",
        kafka__compression__zstd__level="-3",
        kafka__batch__size="100000",
        kafka__transaction__timeout__ms="5000",
        kafka__linger__ms="5",
        kafka__acks="-1",
        processing__guarantee="exactly_once_v2",
    )
    assert (options.codec, options.level, options.transaction_timeout_ms) == (Codec.ZSTD, -3, 5000)
    assert options.batch_bytes < 100_000


def test_batches_stay_below_the_largest_request() -> None:
    assert parsed(kafka__batch__size="5000000").batch_bytes < 1024 * 1024


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kafka__acks": "0"}, "expected one of all, -1, 1"),
        ({"kafka__acks": "1"}, "exactly_once needs all"),
        ({"kafka__compression__type": "brotli"}, "expected one of none, gzip"),
        ({"kafka__max__request__size": "999999999"}, "or less"),
        ({"kafka__transactional__id": "mine"}, "transactionalIdPrefix"),
        ({"transactionalIdPrefix": "team a"}, "letters, digits"),
        ({"kafka__value__serializer": "x.Y"}, "value.format"),
        ({"processing__guarantee": "twice"}, "expected one of exactly_once"),
        ({"txnAppId": "app"}, "must be set together"),
        ({"txnAppId": "a", "txnVersion": "1", "processing__guarantee": "at_least_once"}, "need processing.guarantee"),
        ({"txnAppid": "a", "txnVersoin": "1"}, "did you mean 'txnVersion'"),
        ({"topik": "t"}, "did you mean 'topic'"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        parsed(**given)


def test_at_least_once_leaves_the_choice_of_acks() -> None:
    assert parsed(processing__guarantee="at_least_once", kafka__acks="1").acks == 1


@pytest.mark.parametrize(
    ("ddl", "topic", "words"),
    [
        ("key string", "out", "no column 'value'"),
        ("value int", "out", "column 'value' is int, not string or binary"),
        ("value string", None, "no topic to write to"),
        ("value string, topic int", None, "column 'topic' is int"),
        ("value string, key struct<a:int>", "out", "column 'key' is struct"),
        ("value string, partition bigint", "out", "column 'partition' is bigint, not int"),
        ("value string, headers map<string,binary>", "out", "column 'headers'"),
        ("value string, timestamp string", "out", "column 'timestamp' is string, not timestamp"),
    ],
)
def test_columns_that_cannot_be_written_are_refused_before_the_job_starts(
    ddl: str, topic: str | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        check_columns(schema(ddl), topic)


def test_columns_of_the_source_can_be_written_back_and_others_are_left_alone() -> None:
    check_columns(
        schema(
            "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
            "timestampType int, headers array<struct<key:string,value:binary>>, mine map<string,int>"
        ),
        None,
    )
