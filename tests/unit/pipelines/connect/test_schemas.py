"""Connect's schemas and Spark's types."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import types as t

from moldau.errors import ConfigError
from moldau.pipelines.doors.connect.converters import inferred_schema
from moldau.pipelines.doors.connect.plugins import SCHEMA_NAME, SCHEMA_VERSION
from moldau.pipelines.doors.connect.schemas import is_schema, json_type, merged, metadata_of, schema_of

DATA = "org.apache.kafka.connect.data."


def text_of(kind: t.DataType, *, is_optional: bool = False) -> str:
    return json.dumps(schema_of(kind, is_optional=is_optional), separators=(",", ":"))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (t.StringType(), '{"type":"string","optional":false}'),
        (t.LongType(), '{"type":"int64","optional":false}'),
        (t.ByteType(), '{"type":"int8","optional":false}'),
        (t.BinaryType(), '{"type":"bytes","optional":false}'),
        (t.DateType(), f'{{"type":"int32","optional":false,"name":"{DATA}Date","version":1}}'),
        (t.TimestampType(), f'{{"type":"int64","optional":false,"name":"{DATA}Timestamp","version":1}}'),
        (t.TimeType(), f'{{"type":"int32","optional":false,"name":"{DATA}Time","version":1}}'),
        (
            t.DecimalType(10, 2),
            f'{{"type":"bytes","optional":false,"name":"{DATA}Decimal","version":1,"parameters":{{"scale":"2"}}}}',
        ),
        (
            t.ArrayType(t.IntegerType(), containsNull=False),
            '{"type":"array","items":{"type":"int32","optional":false},"optional":false}',
        ),
        (
            t.MapType(t.StringType(), t.DoubleType()),
            '{"type":"map","keys":{"type":"string","optional":false},'
            '"values":{"type":"double","optional":true},"optional":false}',
        ),
        (
            t.StructType().add("a", t.StringType()).add("b", t.BooleanType(), nullable=False),
            '{"type":"struct","fields":[{"type":"string","optional":true,"field":"a"},'
            '{"type":"boolean","optional":false,"field":"b"}],"optional":false}',
        ),
    ],
)
def test_a_schema_is_written_as_connect_writes_it(kind: t.DataType, expected: str) -> None:
    assert text_of(kind) == expected
    assert is_schema(json.loads(expected))


def test_names_and_versions_of_schemas_are_kept_with_the_column() -> None:
    metadata = {SCHEMA_NAME: "io.debezium.time.Date", SCHEMA_VERSION: 1}
    schema = schema_of(t.IntegerType(), is_optional=True, metadata=metadata)
    assert schema == {"type": "int32", "optional": True, "name": "io.debezium.time.Date", "version": 1}
    assert metadata_of(schema) == metadata
    assert json_type(schema) == t.IntegerType()


def test_a_type_without_a_schema_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"interval day.* has no Connect schema"):
        schema_of(t.DayTimeIntervalType(), is_optional=True)


@pytest.mark.parametrize(
    "value", [None, 1, {}, {"type": "person"}, {"type": "struct"}, {"type": "array", "items": "x"}, {"type": ["null"]}]
)
def test_a_field_named_schema_is_not_taken_for_one(value: Any) -> None:
    assert not is_schema(value)


INT = {"type": "int32", "optional": False}
LONG = {"type": "int64", "optional": False}
TEXT = {"type": "string", "optional": True}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (INT, INT, INT),
        (INT, LONG, LONG),
        (INT, TEXT, TEXT),
        (LONG, LONG | {"name": f"{DATA}Timestamp"}, {"type": "string", "optional": False}),
        (
            {"type": "array", "items": INT, "optional": False},
            {"type": "array", "items": LONG, "optional": True},
            {"type": "array", "items": LONG, "optional": True},
        ),
        (
            {"type": "struct", "fields": [INT | {"field": "a"}, INT | {"field": "b"}]},
            {"type": "struct", "fields": [INT | {"field": "c"}, LONG | {"field": "b"}]},
            {
                "type": "struct",
                "fields": [
                    {"type": "int32", "optional": True, "field": "a"},
                    {"type": "int64", "optional": False, "field": "b"},
                    {"type": "int32", "optional": True, "field": "c"},
                ],
                "optional": False,
            },
        ),
    ],
)
def test_records_with_different_schemas_share_one(one: Any, other: Any, expected: Any) -> None:
    assert merged(one, other) == expected


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("VOID", None),
        ("BIGINT", {"type": "int64", "optional": True}),
        ("DECIMAL(3,1)", {"type": "double", "optional": True}),
        ("VARIANT", TEXT),
        ("ARRAY<VOID>", {"type": "array", "items": TEXT, "optional": True}),
        ("OBJECT<>", TEXT),
        (
            "OBJECT<VOID: VARIANT, `b c`: ARRAY<BIGINT>>",
            {
                "type": "struct",
                "fields": [
                    TEXT | {"field": "VOID"},
                    {
                        "type": "array",
                        "items": {"type": "int64", "optional": True},
                        "optional": True,
                        "field": "b c",
                    },
                ],
                "optional": True,
            },
        ),
    ],
)
def test_plain_json_gets_a_schema_from_its_values(variant: str, expected: Any) -> None:
    assert inferred_schema(variant) == expected
