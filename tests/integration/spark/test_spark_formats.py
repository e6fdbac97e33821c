"""Typed topics in real Spark: read, aggregated, written back, equal to Spark's own functions, bad records told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import reduce
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
from moldau.spark.formats.avro_schema import avro_schema
from moldau.spark.formats.ddl import parse_type
from moldau.spark.formats.protobuf import message_class
from tests.integration.conftest import NewTopic
from tests.unit.spark.formats.messages import descriptor_set

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
        loaded: DataFrame = (typed.schema(schema) if schema else typed).load()
        return loaded

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


def test_json_is_read_as_by_sparks_own_from_json(bootstrap: str, new_topic: NewTopic, load: Load) -> None:
    in_bulk = (
        "id BIGINT, small TINYINT, ratio DOUBLE, name STRING, ok BOOLEAN, at TIMESTAMP, day DATE, price DECIMAL(9,2), "
        "raw BINARY, tags ARRAY<STRING>, inner STRUCT<x: INT, y: ARRAY<STRUCT<z: FLOAT>>>"
    )
    one_by_one = in_bulk + ", more MAP<STRING, BIGINT>"
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
    zone = {"timeZone": "UTC"}
    values = load(topic, "offset bigint, value binary").withColumn("text", f.col("value").cast("string"))
    ours = [load(topic, value__format="json", value__schema=ddl) for ddl in (in_bulk, one_by_one)]
    frames = [frame.select("offset", f.to_json("value", zone), "_corrupt_record.reason") for frame in ours]
    for ddl in (in_bulk, one_by_one):
        theirs = f.to_json(f.from_json("text", ddl, zone), zone)
        frames.append(values.select("offset", theirs, f.lit(None).cast("string")))
    numbered = [frame.withColumn("frame", f.lit(number)) for number, frame in enumerate(frames)]
    rows = reduce(DataFrame.union, numbered).collect()
    by_frame = [sorted((row[0], row[1]) for row in rows if row.frame == number) for number in range(4)]
    assert by_frame[:2] == by_frame[2:]
    assert {row[2] for row in rows} == {None}
    assert len(rows) == 4 * 180


def test_an_inferred_schema_is_sparks_own(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, load: Load, tmp_path: Path
) -> None:
    texts = [
        '{"b":{"x":1,"y":[1,2.5]},"a":"t","mixed":1}',
        '{"mixed":"one","later":true,"c":[{"p":1},{"q":null}]}',
        '{"x":"1","none":null,"m":[[1],["a"],null]}',
    ]
    topic = new_topic()
    produce(bootstrap, topic, [text.encode() for text in texts])
    found = load(topic, value__format="json").schema["value"].dataType
    (tmp_path / "texts.json").write_text("\n".join(texts))
    assert found == spark.read.json(str(tmp_path)).schema


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
    with pytest.raises(PySparkException, match=f"{topic}-0@1: value: not JSON: Expecting value"):
        frame.collect()


def test_a_running_query_lives_through_schema_changes(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, load: Load
) -> None:
    topic = new_topic()

    def produce_views(*views: dict[str, Any] | int) -> None:
        produce(bootstrap, topic, [json.dumps(view).encode() for view in views])

    produce_views({"page": "/a", "user": 1}, {"page": "/b", "user": 2})
    views = load(topic, stream=True, value__format="json")  # its schema is what the topic holds now
    rows = views.select("value.page", "value.user", f.col("_corrupt_record").isNotNull().alias("bad"))
    query = rows.writeStream.format("memory").queryName("views").start()
    try:
        query.processAllAvailable()
        produce_views({"page": "/c", "user": 3, "added": [1]}, {"renamed": "/a"}, {"page": {"path": "/a"}})
        produce_views({"page": "/d", "user": "four"}, 7)
        query.processAllAvailable()
    finally:
        query.stop()
    assert [tuple(row) for row in spark.table("views").collect()] == [
        ("/a", 1, False),
        ("/b", 2, False),
        ("/c", 3, False),  # a new field is left out
        (None, None, False),  # a renamed one is null
        ('{"path":"/a"}', None, False),  # a string takes any JSON
        (None, None, True),
        (None, None, True),
    ]


def test_what_is_written_typed_is_read_typed(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, load: Load
) -> None:
    topic = new_topic()
    ddl = "id BIGINT, at TIMESTAMP, tags ARRAY<STRING>, inner STRUCT<x: DOUBLE, day: DATE>, m MAP<STRING, INT>"
    rows = spark.sql(
        "SELECT named_struct('id', id) AS key, named_struct('id', id, 'at', timestamp_micros(id * 1000001),"
        " 'tags', IF(id % 3 = 0, NULL, array('a', NULL, string(id))), 'inner', named_struct('x', id / 7, 'day',"
        " date_from_unix_date(int(id))), 'm', map('k', int(id))) AS value FROM range(1000)"
    )
    formats = {"key.format": "json", "value.format": "avro"}
    sink = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
    rows.write.format("moldau").mode("append").options(**formats | sink).save()
    schema = json.dumps(avro_schema(parse_type(ddl), "value"))
    found = load(topic, **formats, key__schema="id BIGINT", value__schema=schema)
    columns = f.to_json("key"), f.to_json("value")
    assert sorted(found.select(*columns).collect()) == sorted(rows.select(*columns).collect())


def test_protobuf_is_read_by_a_descriptor_set(bootstrap: str, new_topic: NewTopic, load: Load, tmp_path: Path) -> None:
    topic = new_topic()
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
    rows = load(topic, **options).collect()
    assert (int(rows[0].value.a_uint64), rows[0].value.color) == (2**64 - 1, "BLUE")
    assert rows[0].value.made == made.astimezone().replace(tzinfo=None)
    assert rows[1]._corrupt_record.reason.startswith("value: no message shop.Order")
    assert (rows[2].value.a_string, rows[2].value.maybe, rows[2].value.item) == ("x", 0, None)
