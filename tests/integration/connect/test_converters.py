"""Converters on a real Spark: what they write is what Connect writes, and what they read is what was meant."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from moldau.pipelines.doors.connect.catalog import find_plugin
from moldau.pipelines.doors.connect.plugins import SCHEMALESS, PluginKind
from moldau.pipelines.doors.connect.tolerance import ERROR, Tolerance
from moldau.pipelines.model.options import Given
from tests.integration.conftest import NewTopic
from tests.integration.pipelines.processes import read_topic

RECORD = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, " + (
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


def converter(name: str, **options: str) -> Any:
    plugin = find_plugin(name, PluginKind.CONVERTER)
    given = {key.replace("_", "."): Given(value) for key, value in options.items()}
    return plugin.build(plugin.options.values(given))


def texts(frame: DataFrame) -> list[str | None]:
    return [None if row.value is None else bytes(row.value).decode() for row in frame.select("value").collect()]


def raw(spark: SparkSession, *values: str | bytes | None) -> DataFrame:
    rows = [
        (None, value.encode() if isinstance(value, str) else value, "in", 0, number, None, None)
        for number, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, RECORD)


VALUE = t.StructType(
    [
        t.StructField("id", t.LongType(), nullable=False),
        t.StructField("price", t.DecimalType(10, 2)),
        t.StructField("big", t.DecimalType(38, 3)),
        t.StructField("day", t.DateType()),
        t.StructField("at", t.TimestampType()),
        t.StructField("data", t.BinaryType()),
        t.StructField("tags", t.ArrayType(t.StringType())),
        t.StructField("sums", t.MapType(t.StringType(), t.DecimalType(4, 1))),
    ]
)
ROWS = [
    (
        1,
        Decimal("12.34"),
        Decimal("12345678901234567890123456789012345.678"),
        date(1970, 1, 11),
        datetime(2024, 2, 29, 12, 30, 0, 123000, UTC),
        b"\x00\xff",
        ["a", None],
        {"x": Decimal("-12.8")},
    ),
    (2, Decimal("-0.01"), Decimal("-1.000"), date(1969, 12, 31), None, None, None, None),
]


def values(spark: SparkSession) -> DataFrame:
    schema = t.StructType([t.StructField("value", VALUE)])
    return spark.createDataFrame([(row,) for row in ROWS] + [(None,)], schema)


@pytest.mark.parametrize("decimals", ["BASE64", "NUMERIC"])
def test_a_value_with_its_schema_comes_back_as_it_was(spark: SparkSession, decimals: str) -> None:
    json_converter = converter("JsonConverter", decimal_format=decimals)
    written = json_converter.encode(values(spark), "value")
    first, second, last = texts(written)
    assert first is not None
    assert second is not None
    assert last is None
    envelope = json.loads(first)
    assert envelope["schema"]["fields"][1]["name"] == "org.apache.kafka.connect.data.Decimal"
    shown = "BNI=" if decimals == "BASE64" else 12.34
    assert (envelope["payload"]["price"], envelope["payload"]["day"], envelope["payload"]["data"]) == (
        shown,
        10,
        "AP8=",
    )
    assert envelope["payload"]["at"] == 1709209800123
    assert json.loads(second)["payload"]["price"] == ("/w==" if decimals == "BASE64" else -0.01)
    read = json_converter.decode(raw(spark, first, second, None), "value")
    found = [row.value and tuple(row.value) for row in read.select("value").collect()]
    utc = [tuple(v.astimezone(UTC) if isinstance(v, datetime) else v for v in row or ()) for row in found[:2]]
    assert utc == ROWS
    assert found[2] is None


def test_plain_json_gets_its_schema_from_the_batch(spark: SparkSession) -> None:
    json_converter = converter("JsonConverter", schemas_enable="false")
    frame = raw(spark, '{"a": 1, "b": "x"}', '{"a": 2.5, "c": {"d": [true]}}', None)
    read = json_converter.decode(frame, "value")
    assert read.schema["value"].metadata == {SCHEMALESS: True}
    rows = [row.value and row.value.asDict(recursive=True) for row in read.select("value").collect()]
    assert rows == [{"a": 1.0, "b": "x", "c": None}, {"a": 2.5, "b": None, "c": {"d": [True]}}, None]
    assert texts(json_converter.encode(read, "value"))[0] == '{"a":1.0,"b":"x"}'


def test_the_envelope_is_read_whoever_wrote_it_and_whatever_the_setting(spark: SparkSession) -> None:
    number = '{"type":"int32","optional":false}'
    read = converter("JsonConverter", schemas_enable="false").decode(
        raw(
            spark,
            f'{{"schema":{number},"payload":1}}',
            f'{{ "payload": 2, "schema": {number} }}',
            '{"schema":null,"payload":3}',
            "4",
            f'{{"schema":{number},"payload":null}}',
        ),
        "value",
    )
    assert [row.value for row in read.select("value").collect()] == [1, 2, 3, 4, None]


def test_a_field_named_schema_is_an_ordinary_field(spark: SparkSession) -> None:
    read = converter("JsonConverter").decode(raw(spark, '{"schema":"v1","payload":{"n":1}}'), "value")
    assert read.select("value.schema", "value.payload.n").collect() == [("v1", 1)]


def test_records_that_are_no_json_are_told_and_the_others_read(spark: SparkSession) -> None:
    typed = '{"schema":{"type":"int32","optional":false},"payload":%s}'
    read = converter("JsonConverter").decode(raw(spark, typed % 1, "no json", typed % '"x"'), "value")
    found = [(row.value, row[ERROR] is None) for row in read.select("value", ERROR).collect()]
    assert found == [(1, True), (None, False), (None, False)]


@pytest.mark.parametrize(
    ("name", "kind", "number", "data"),
    [
        ("IntegerConverter", "INT", -2, b"\xff\xff\xff\xfe"),
        ("LongConverter", "BIGINT", 258, b"\0\0\0\0\0\0\1\2"),
        ("ShortConverter", "SMALLINT", -1, b"\xff\xff"),
        ("BooleanConverter", "BOOLEAN", True, b"\1"),
    ],
)
def test_numbers_are_those_of_kafkas_serializers(
    spark: SparkSession, name: str, kind: str, number: int, data: bytes
) -> None:
    written = converter(name).encode(spark.createDataFrame([(number,)], f"value {kind}"), "value")
    assert bytes(written.collect()[0].value) == data
    read = converter(name).decode(raw(spark, data, b"\1\2\3", None), "value").select("value", ERROR).collect()
    assert [row.value for row in read] == [number, None, None]
    assert [row[ERROR] is None for row in read] == [True, False, True]


def test_text_and_bytes_are_what_they_are(spark: SparkSession) -> None:
    read = converter("StringConverter").decode(raw(spark, "Ä"), "value")
    assert read.collect()[0].value == "Ä"
    assert texts(converter("StringConverter").encode(read, "value")) == ["Ä"]
    assert texts(converter("ByteArrayConverter").decode(raw(spark, "b"), "value")) == ["b"]


def test_a_record_that_cannot_be_decoded_fails_is_skipped_or_becomes_a_dead_letter(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic
) -> None:
    converters = {"key": converter("StringConverter"), "value": converter("JsonConverter")}
    frame = raw(spark, "1", "{no", "3")
    with pytest.raises(Exception, match=r"cannot decode record in-0@1, value: not JSON"):
        Tolerance("c").decoding(converters)(frame).select(F.count("*")).collect()
    skipping = Tolerance("c", is_tolerant=True).decoding(converters)
    assert [row.value for row in skipping(frame).collect()] == [1, 3]
    topic = new_topic()
    kafka = {"kafka.bootstrap.servers": Given(bootstrap)}
    sending = Tolerance("c", is_tolerant=True, topic=topic, kafka=kafka).decoding(converters)
    good = sending(frame)
    assert good.columns == frame.columns
    assert [row.value for row in good.collect()] == [1, 3]
    (letter,) = read_topic(bootstrap, topic)
    assert letter.value == b"{no"
    headers = {name.removeprefix("__connect.errors."): value for name, value in letter.headers}
    expected = {"topic": b"in", "partition": b"0", "offset": b"1", "connector.name": b"c", "stage": b"VALUE_CONVERTER"}
    assert expected.items() <= headers.items()
