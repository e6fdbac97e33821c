"""A record that cannot be read is a row with its reason, or an error with its place: never lost without a word."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

from moldau.errors import ConfigError, RecordFormatError
from moldau.spark.options import Options
from moldau.spark.source.typed_fields import TypedFields, typed_fields

JSON = {"value.format": "json", "value.schema": "a BIGINT", "kafka.bootstrap.servers": "localhost:9092"}


def fields_of(**options: str) -> TypedFields:
    given = JSON | {name.replace("_", "."): value for name, value in options.items()}
    typed = typed_fields(Options(given), lambda column, rows: [])
    assert typed is not None
    shipped: TypedFields = pickle.loads(pickle.dumps(typed))
    return shipped


def raw(values: list[bytes | None], keys: list[bytes | None] | None = None) -> pa.RecordBatch:
    rows = len(values)
    return pa.record_batch(
        {
            "key": pa.array(keys or [None] * rows, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": ["views"] * rows,
            "partition": pa.array([3] * rows, pa.int32()),
            "offset": pa.array(range(100, 100 + rows), pa.int64()),
        }
    )


def decoded(typed: TypedFields, columns: tuple[str, ...], batch: pa.RecordBatch) -> list[dict[str, Any]]:
    decoder = typed.decoder(columns)
    rows: list[dict[str, Any]] = decoder.apply(batch.select(list(typed.raw_columns(columns)))).to_pylist()
    decoder.finish()
    return rows


def test_a_bad_record_stays_a_row_with_its_bytes_and_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rows = decoded(fields_of(), ("offset", "value", "_corrupt_record"), raw([b'{"a":1}', b"?", None, b"!"]))
    assert [row["offset"] for row in rows] == [100, 101, 102, 103]
    assert [row["value"] for row in rows] == [{"a": 1}, None, None, None]
    assert [row["_corrupt_record"] and row["_corrupt_record"]["value"] for row in rows] == [None, b"?", None, b"!"]
    assert rows[1]["_corrupt_record"]["reason"].startswith("value: not JSON: Expecting value")
    assert len(caplog.records) == 1
    assert "2 records could not be decoded and are in column _corrupt_record; the first: views-3@101" in caplog.text


def test_one_bad_record_is_told_in_the_singular(caplog: pytest.LogCaptureFixture) -> None:
    decoded(fields_of(), ("offset", "value", "_corrupt_record"), raw([b"?"]))
    assert "1 record could not be decoded and is in column _corrupt_record; the first: views-3@100" in caplog.text


def test_a_bad_key_and_a_bad_value_are_told_together() -> None:
    typed = fields_of(key_format="string")
    rows = decoded(typed, ("key", "value", "_corrupt_record"), raw([b"?", b'{"a":1}'], [b"\xff", b"\xfe"]))
    assert rows[0]["_corrupt_record"]["key"] == b"\xff"
    assert rows[0]["_corrupt_record"]["value"] == b"?"
    assert rows[0]["_corrupt_record"]["reason"].startswith("key: no UTF-8")
    assert "; value: " in rows[0]["_corrupt_record"]["reason"]
    assert rows[1] == {"key": None, "value": {"a": 1}, "_corrupt_record": rows[1]["_corrupt_record"]}
    assert rows[1]["_corrupt_record"]["value"] is None


def test_without_tolerance_the_task_fails_with_the_place_and_the_reason() -> None:
    typed = fields_of(errors_tolerance="none")
    assert "_corrupt_record" not in typed.spark_fields()
    with pytest.raises(
        RecordFormatError, match=r"views-3@101: value: not JSON: Expecting value.*errors\.tolerance=all"
    ):
        decoded(typed, ("value",), raw([b'{"a":1}', b"?"]))


def test_a_column_that_nobody_reads_is_not_judged() -> None:
    unread = typed_fields(
        Options(JSON), lambda column, rows: [], StructType().add("key", "binary").add("offset", "long")
    )
    assert unread is None
    asked = typed_fields(
        Options(JSON | {"key.format": "string"}), lambda column, rows: [], StructType().add("key", "string")
    )
    assert asked is not None
    assert set(asked.readers) == {"key"}


def test_not_null_inside_a_given_type_is_refused() -> None:
    promised = StructType().add("value", StructType().add("a", LongType(), nullable=False))
    with pytest.raises(ConfigError, match="column value: values of a topic may contain nulls: remove NOT NULL"):
        typed_fields(Options(JSON), lambda column, rows: [], promised)


def test_the_column_has_the_name_that_was_asked_for() -> None:
    assert set(fields_of(columnNameOfCorruptRecord="bad").spark_fields()) == {"value", "bad"}


def test_a_dead_letter_topic_needs_all_of_the_record_and_no_column() -> None:
    typed = fields_of(errors_deadletterqueue_topic_name="dead")
    assert set(typed.spark_fields()) == {"value"}
    assert set(typed.raw_columns(("value",))) == {
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "headers",
    }


def test_how_to_write_dead_letters_is_checked_before_there_is_one() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.acks=0"):
        fields_of(errors_deadletterqueue_topic_name="dead", kafka_acks="0")


def test_misspelt_formats_and_tolerances_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected one of binary, string, json, avro, protobuf"):
        typed_fields(Options({"value.format": "jsn"}), lambda column, rows: [])
    with pytest.raises(ConfigError, match="expected one of all, none"):
        fields_of(errors_tolerance="some")


def test_raw_topics_need_no_format() -> None:
    assert typed_fields(Options({"value.format": "binary"}), lambda column, rows: []) is None


def test_formats_that_are_not_used_are_not_loaded() -> None:
    script = (
        "import sys\nfrom moldau.spark.source.typed_fields import typed_fields\n"
        "from moldau.spark.options import Options\n"
        "typed_fields(Options({'value.format': 'string'}), lambda column, rows: [])\n"
        "assert not {'fastavro', 'google.protobuf', 'pyarrow.json'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_skipped_records_are_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        typed = fields_of(errors_tolerance="skip", errors_deadletterqueue_topic_name="bad")
        assert "_corrupt_record" not in typed.spark_fields()
        rows = decoded(typed, ("offset", "rawValue", "value"), raw([b'{"a":1}', b"?", b'{"a": 2}']))
    assert rows == [
        {"offset": 100, "rawValue": b'{"a":1}', "value": {"a": 1}},
        {"offset": 102, "rawValue": b'{"a": 2}', "value": {"a": 2}},
    ]
    assert "1 record could not be decoded and is left out; the first: views-3@101" in caplog.text


def test_further_headers_of_dead_letters_are_json() -> None:
    with pytest.raises(ConfigError, match=r"errors.deadletterqueue.headers=x: expected JSON like"):
        fields_of(errors_deadletterqueue_headers="x")
