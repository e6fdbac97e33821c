"""Transforms on real records in Spark: what goes in, and what comes out. The cases are in `transform_cases`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from moldau.errors import RecordFormatError
from moldau.pipelines.doors.connect.plugins import SCHEMA_NAME, SCHEMA_VERSION, SCHEMALESS
from moldau.pipelines.doors.connect.transforms import chain
from tests.integration.connect.transform_cases import FAILURES, GROUPS, smt

_COLUMNS = {
    "topic": "'topic'",
    "partition": "0",
    "key": "'key'",
    "value": "'value'",
    "timestamp": "timestamp_millis(0)",
    "headers": "CAST(array() AS ARRAY<STRUCT<key: STRING, value: BINARY>>)",
}


_HEADERS = "transform(headers, h -> named_struct('key', h.key, 'value', CAST(h.value AS STRING))) AS headers"
_TIMESTAMP = "unix_millis(timestamp) AS timestamp"


def _as_json(columns: Iterable[str]) -> str:
    """A record of any schema as one text."""
    others = [name for name in columns if name not in ("timestamp", "headers", "before")]
    fields = ", ".join([*others, _TIMESTAMP, _HEADERS])
    return f"to_json(struct({fields}), map('ignoreNullFields', 'false', 'timeZone', 'UTC'))"


def _records(spark: SparkSession, given: Mapping[str, str], *, schemaless: bool = False) -> DataFrame:
    """One record, with a text of how it was before.

    Spark computes what is made of inline values while it plans, without a job.
    """
    columns = _COLUMNS | dict(given)
    fields = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
    frame = spark.sql(f"SELECT *, {_as_json(columns)} AS before FROM (SELECT {fields} FROM VALUES (1) AS t(id))")
    return frame.withMetadata("value", {SCHEMALESS: True}) if schemaless else frame


def _transformed(frame: DataFrame, config: Mapping[str, str]) -> DataFrame:
    return reduce(lambda records, step: step(records), chain(config), frame)


@pytest.fixture(scope="module", autouse=True)
def _far_from_utc(spark: SparkSession) -> Any:
    """Connect's times are in UTC, wherever the driver is."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
    yield
    spark.conf.set("spark.sql.session.timeZone", str(zone))


@pytest.mark.parametrize("group", GROUPS)
def test_records_come_out_as_from_apache_kafka(spark: SparkSession, group: str) -> None:
    found, expected = {}, {}
    for index, case in enumerate(GROUPS[group]):
        label = f"{index} {case.name}"
        records = _records(spark, case.given, schemaless=case.schemaless)
        after = _transformed(records, case.config)
        types = {name: after.schema[name].dataType.simpleString() for name in case.types}
        rows = [tuple(map(json.loads, row)) for row in after.selectExpr("before", _as_json(after.columns)).collect()]
        found[label] = [after for _, after in rows], types
        expected[label] = [] if case.dropped else [{**before, **case.then} for before, _ in rows], case.types
        assert len(rows) == (0 if case.dropped else 1), label
    assert found == expected


@pytest.mark.parametrize(("config", "value", "message"), FAILURES, ids=lambda each: str(each)[-40:])
def test_a_wrong_record_fails_with_connects_words(
    spark: SparkSession, config: dict[str, str], value: str, message: str
) -> None:
    frame = _transformed(_records(spark, {"value": value}), config)
    with pytest.raises(PySparkException) as error:
        frame.collect()
    assert message in str(error.value)


def test_a_schema_gets_a_name_and_keeps_it_through_other_transforms(spark: SparkSession) -> None:
    config = smt("SetSchemaMetadata$Value", schema_name="shop.Order", schema_version="2") | {
        "transforms": "t,insert",
        "transforms.insert.type": "InsertField$Value",
        "transforms.insert.topic.field": "origin",
    }
    frame = _transformed(_records(spark, {"value": "named_struct('id', 1)"}), config)
    assert frame.schema["value"].metadata == {SCHEMA_NAME: "shop.Order", SCHEMA_VERSION: 2}


def test_required_fields_stay_required(spark: SparkSession) -> None:
    frame = _records(spark, {"value": "IF(id > 5, NULL, named_struct('id', 1, 'name', CAST(NULL AS STRING)))"})
    config = smt("InsertField$Value", topic_field="topic!", partition_field="partition")
    kind = _transformed(frame, config).schema["value"].dataType
    assert {each.name: each.nullable for each in kind.fields} == {  # type: ignore[attr-defined]
        "id": False,
        "name": True,
        "topic": False,
        "partition": True,
    }


def _mixed(spark: SparkSession) -> DataFrame:
    """Two records, of the topics a and b."""
    records = spark.createDataFrame([("a", 1), ("b", 2)], "topic STRING, id INT")
    value = F.struct(F.col("id"), F.lit("x").alias("name"))
    columns = [F.expr(sql).alias(name) for name, sql in _COLUMNS.items() if name not in ("topic", "value")]
    return records.select("topic", value.alias("value"), *columns)


_ON_A = "TopicNameMatches pattern a"


@pytest.mark.parametrize(
    ("config", "values"),
    [
        (
            smt("InsertField$Value", predicate=_ON_A, static_field="at", static_value="here"),
            [{"id": 1, "name": "x", "at": "here"}, {"id": 2, "name": "x", "at": None}],
        ),
        (
            smt("ReplaceField$Value", predicate=f"not {_ON_A}", renames="name:title"),
            [{"id": 1, "name": "x", "title": None}, {"id": 2, "name": None, "title": "x"}],
        ),
        (smt("Cast$Value", predicate=_ON_A, spec="id:int64"), [{"id": 1, "name": "x"}, {"id": 2, "name": "x"}]),
        (smt("Cast$Value", predicate=_ON_A, spec="id:string"), [{"id": "1", "name": "x"}, {"id": "2", "name": "x"}]),
        (smt("MaskField$Value", predicate=_ON_A, fields="name"), [{"id": 1, "name": ""}, {"id": 2, "name": "x"}]),
        (smt("Filter", predicate=f"not {_ON_A}"), [{"id": 1, "name": "x"}]),
    ],
)
def test_other_records_keep_what_a_predicate_leaves_out(
    spark: SparkSession, config: dict[str, str], values: list[dict[str, Any]]
) -> None:
    rows = _transformed(_mixed(spark), config).orderBy("topic").collect()
    assert [row.value.asDict() for row in rows] == values


def test_a_predicate_needs_types_that_go_together(spark: SparkSession) -> None:
    with pytest.raises(RecordFormatError, match="the records of a micro-batch need one type"):
        _transformed(_mixed(spark), smt("HoistField$Key", predicate=_ON_A, field="id"))


def test_steps_see_what_the_ones_before_made(spark: SparkSession) -> None:
    config = {
        "transforms": "key,id,route",
        "transforms.key.type": "ValueToKey",
        "transforms.key.fields": "id",
        "transforms.id.type": "ExtractField$Key",
        "transforms.id.field": "id",
        "transforms.route.type": "RegexRouter",
        "transforms.route.regex": "(.*)",
        "transforms.route.replacement": "copy-$1",
    }
    rows = _transformed(_mixed(spark), config).orderBy("topic").collect()
    assert [(row.topic, row.key) for row in rows] == [("copy-a", 1), ("copy-b", 2)]
