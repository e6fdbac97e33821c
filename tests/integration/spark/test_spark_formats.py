"""Typed topics in real Spark: read, aggregated, written back, equal to Spark's own functions, bad records told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from fastavro import parse_schema, schemaless_writer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import moldau.spark
from moldau.spark.formats.protobuf import message_class
from tests.integration.conftest import NewTopic
from tests.unit.spark.messages import descriptor_set

Load = Callable[..., DataFrame]
VIEW = json.dumps(
    {
        "type": "record",
        "name": "View",
        "fields": [{"name": "page", "type": "string"}, {"name": "user", "type": ["null", "long"], "default": None}],
    }
)


@pytest.fixture
def load(spark: SparkSession, bootstrap: str) -> Load:
    moldau.spark.register(spark)

    def load_topic(topic: str, schema: str | None = None, stream: bool = False, **options: str) -> DataFrame:
        reader: Any = spark.readStream if stream else spark.read
        given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        typed = reader.format("moldau").options(**given | {k.replace("__", "."): v for k, v in options.items()})
        return (typed.schema(schema) if schema else typed).load()

    return load_topic


def produce(bootstrap: str, topic: str, values: Iterable[bytes | None], **record: Any) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value=value, **record)
    assert producer.flush(30) == 0


def records_of(bootstrap: str, topic: str, count: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "tests", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = consumer.consume(count, timeout=30)
    more = consumer.consume(1, timeout=0.2)
    consumer.close()
    assert len(found) == count
    assert more == []
    return found


def avro(*rows: dict[str, Any]) -> list[bytes]:
    values = []
    for row in rows:
        stream = BytesIO()
        schemaless_writer(stream, parse_schema(json.loads(VIEW)), row)
        values.append(stream.getvalue())
    return values


@pytest.mark.parametrize("more", ["", ", more MAP<STRING, BIGINT>"], ids=["in bulk", "one by one"])
def test_json_is_read_as_by_sparks_own_from_json(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, load: Load, more: str
) -> None:
    ddl = (
        "id BIGINT, small TINYINT, ratio DOUBLE, name STRING, ok BOOLEAN, at TIMESTAMP, day DATE, price DECIMAL(9,2), "
        "raw BINARY, tags ARRAY<STRING>, inner STRUCT<x: INT, y: ARRAY<STRUCT<z: FLOAT>>>" + more
    )
    texts = [
        '{"id":1,"small":-128,"ratio":0.1,"name":"žluťoučký \\u0001 \\"kůň\\"","ok":true}',
        '{"at":"2024-02-29T12:00:00.123456Z"}',
        '{"day":"2024-02-29","price":12.345,"raw":"AAEC","tags":["a",null,""],"inner":{"x":1,"y":[{"z":1.5},{},null]}}',
        '{"price":"7","more":{"b":1,"a":null},"unknown":{"deep":[1,2,{"x":[]}]},"inner":{"y":[]}}',
        '{"id":9223372036854775807,"ratio":1e300,"name":12.5,"at":1700000000,"tags":[]}',
        '{"name":{"a":[1,true,null]},"ratio":"NaN","at":"2024-01-01 00:00:00+05:30"}',
        '{"id":1,"id":2,"ratio":3}',
        "{}",
        ' {\n"id" : 7 }\t',
    ] * 20  # fmt: skip
    topic = new_topic()
    produce(bootstrap, topic, [text.encode() for text in texts])
    ours = load(topic, value__format="json", value__schema=ddl)
    assert ours.where("_corrupt_record is not null").count() == 0
    theirs = spark.createDataFrame([(index, text) for index, text in enumerate(texts)], "offset BIGINT, text STRING")
    zone = {"timeZone": "UTC"}
    expected = theirs.select("offset", f.to_json(f.from_json("text", ddl, zone), zone))
    found = ours.select("offset", f.to_json("value", zone))
    assert sorted(found.collect()) == sorted(expected.collect())


def test_an_inferred_schema_is_sparks_own(spark: SparkSession, bootstrap: str, new_topic: NewTopic, load: Load) -> None:
    texts = [
        '{"b":{"x":1,"y":[1,2.5]},"a":"t","mixed":1}',
        '{"mixed":"one","later":true,"c":[{"p":1},{"q":null}]}',
        '{"x":"1","none":null,"m":[[1],["a"],null]}',
    ]
    topic = new_topic()
    produce(bootstrap, topic, [text.encode() for text in texts])
    found = load(topic, value__format="json").schema["value"].dataType
    assert found == spark.read.json(spark.sparkContext.parallelize(texts)).schema


def test_bad_records_are_rows_with_their_bytes_and_the_reason(bootstrap: str, new_topic: NewTopic, load: Load) -> None:
    topic = new_topic()
    produce(bootstrap, topic, [b'{"id":1}', b"\xff\xfe", None, b'{"id":"x"}', b'{"id":2}'], key=b"k")
    rows = load(topic, value__format="json", value__schema="id INT", key__format="string").collect()
    assert [row.key for row in rows] == ["k"] * 5
    assert [row.value and row.value.id for row in rows] == [1, None, None, None, 2]
    assert [row._corrupt_record and bytes(row._corrupt_record.value) for row in rows] == [
        None, b"\xff\xfe", None, b'{"id":"x"}', None,
    ]  # fmt: skip
    assert rows[3]._corrupt_record.reason == 'value: id: expected int, found "x"'


def test_bad_records_go_to_the_dead_letter_topic_as_they_were(bootstrap: str, new_topic: NewTopic, load: Load) -> None:
    topic, dead = new_topic(), new_topic()
    produce(bootstrap, topic, avro({"page": "/a", "user": 1}))
    produce(bootstrap, topic, [b"junk"], key=b"k", headers=[("trace", b"7"), ("none", None)], timestamp=1700000000123)
    produce(bootstrap, topic, avro({"page": "/b", "user": None}))
    options = {"errors__deadletterqueue__topic__name": dead, "value__format": "avro", "value__schema": VIEW}
    frame = load(topic, "value struct<page:string,user:bigint>, offset bigint", **options)
    rows = frame.collect()  # no orderBy: to find ranges, that one reads twice, and so there would be two letters
    assert [(row.offset, row.value.page, row.value.user) for row in rows] == [(0, "/a", 1), (2, "/b", None)]
    (letter,) = records_of(bootstrap, dead, 1)
    assert (letter.key(), letter.value(), letter.timestamp()[1]) == (b"k", b"junk", 1700000000123)
    headers = dict(letter.headers())
    assert letter.headers()[:2] == [("trace", b"7"), ("none", None)]
    assert headers["__connect.errors.topic"] == topic.encode()
    assert headers["__connect.errors.partition"] == b"0"
    assert headers["__connect.errors.offset"] == b"1"
    assert headers["__connect.errors.stage"] == b"VALUE_CONVERTER"
    assert headers["__connect.errors.exception.message"].startswith(b"no Avro of this schema")


def test_without_tolerance_the_query_fails_and_says_where(bootstrap: str, new_topic: NewTopic, load: Load) -> None:
    topic = new_topic()
    produce(bootstrap, topic, [b'{"id":1}', b"?"])
    frame = load(topic, value__format="json", value__schema="id INT", errors__tolerance="none")
    with pytest.raises(PySparkException, match=f"{topic}-0@1: value: Expecting value"):
        frame.collect()


def test_an_empty_topic_asks_for_the_schema(new_topic: NewTopic, load: Load) -> None:
    with pytest.raises(PySparkException, match=r"give it in option value\.schema"):
        load(new_topic(), value__format="json").count()


def test_a_windowed_count_over_typed_fields_lives_through_schema_changes(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, load: Load, tmp_path: Path
) -> None:
    topic = new_topic()

    def view(minute: int, **fields: Any) -> bytes:
        return json.dumps({"at": f"2024-01-01T00:{minute:02}:30Z"} | fields).encode()

    produce(bootstrap, topic, [view(minute, page="/a") for minute in (0, 0, 1)])
    views = load(topic, stream=True, value__format="json")  # its schema is what the topic holds now
    bad, never = f.col("_corrupt_record").isNotNull().alias("bad"), f.lit(datetime(2024, 1, 1, 0, 59, tzinfo=UTC))
    counts = (
        views.select("value.page", f.coalesce(f.to_timestamp("value.at"), never).alias("at"), bad)
        .groupBy(f.window("at", "1 minute").alias("window"), "page", "bad")
        .count()
    )

    def run() -> dict[tuple[Any, ...], int]:
        query = (
            counts.writeStream.format("memory").queryName("views").outputMode("complete")
            .option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination(60)
        assert query.exception() is None
        rows = spark.table("views").collect()
        return {(row.window.start.astimezone(UTC).minute, row.page, row.bad): row["count"] for row in rows}

    assert run() == {(0, "/a", False): 2, (1, "/a", False): 1}
    later = [view(1, page="/a", added=[1]), view(2, renamed="/a"), view(1, page={"path": "/a"}), b'{"at":[}', b"7"]
    produce(bootstrap, topic, later)
    assert run() == {
        (0, "/a", False): 2,
        (1, "/a", False): 2,  # a new field is left out
        (2, None, False): 1,  # a renamed one is null
        (1, '{"path":"/a"}', False): 1,  # a string takes any JSON
        (59, None, True): 2,
    }


@pytest.mark.parametrize("kind", ["json", "avro"])
def test_what_is_written_typed_is_read_typed(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, load: Load, kind: str
) -> None:
    topic = new_topic()
    ddl = "id BIGINT, at TIMESTAMP, tags ARRAY<STRING>, inner STRUCT<x: DOUBLE, day: DATE>, m MAP<STRING, INT>"
    rows = spark.sql(
        "SELECT string(id) AS key, named_struct('id', id, 'at', timestamp_micros(id * 1000001),"
        " 'tags', IF(id % 3 = 0, NULL, array('a', NULL, string(id))), 'inner', named_struct('x', id / 7, 'day',"
        " date_from_unix_date(int(id))), 'm', map('k', int(id))) AS value FROM range(1000)"
    )
    rows.write.format("moldau").mode("append").options(
        **{"kafka.bootstrap.servers": bootstrap, "topic": topic, "value.format": kind, "key.format": "string"}
    ).save()
    options = {"value__format": kind, "key__format": "string"}
    if kind == "json":
        options["value__schema"] = ddl
    else:
        from moldau.spark.formats.avro_schema import avro_schema
        from moldau.spark.formats.ddl import parse_type

        options["value__schema"] = json.dumps(avro_schema(parse_type(ddl), "value"))
    found = load(topic, **options).select("key", f.to_json("value"))
    assert sorted(found.collect()) == sorted(rows.select("key", f.to_json("value")).collect())


def test_protobuf_is_read_and_written_by_a_descriptor_set(
    bootstrap: str, new_topic: NewTopic, load: Load, tmp_path: Path
) -> None:
    topic, copy = new_topic(), new_topic()
    (tmp_path / "shop.desc").write_bytes(descriptor_set())
    order = message_class(descriptor_set(), "shop.Order")
    made = datetime(2024, 2, 29, 12, 0, 0, 5, UTC)
    messages = [order(a_uint64=2**64 - 1, color="BLUE", items=[{"id": 1}], made=made), order(a_string="x", maybe=0)]
    produce(bootstrap, topic, [messages[0].SerializeToString(), b"\xff\xff", messages[1].SerializeToString()])
    options = {
        "value.format": "protobuf",
        "value.descriptor": str(tmp_path / "shop.desc"),
        "value.message": "shop.Order",
    }
    frame = load(topic, **options)
    rows = frame.collect()
    assert (int(rows[0].value.a_uint64), rows[0].value.color) == (2**64 - 1, "BLUE")
    assert rows[0].value.made == made.astimezone().replace(tzinfo=None)
    assert rows[1]._corrupt_record.reason.startswith("value: no message shop.Order")
    assert (rows[2].value.a_string, rows[2].value.maybe, rows[2].value.item) == ("x", 0, None)
    good = frame.where("value is not null").select("value")
    sink = {"kafka.bootstrap.servers": bootstrap, "topic": copy}
    good.write.format("moldau").mode("append").options(**options | sink).save()
    assert [order.FromString(record.value()) for record in records_of(bootstrap, copy, 2)] == messages
