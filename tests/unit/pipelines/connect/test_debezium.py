"""Debezium's configuration and events, without a database."""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from moldau.pipelines.connectors.change_capture.changes import Change, Shape
from moldau.pipelines.connectors.change_capture.pgoutput import UNCHANGED, Column, Values
from moldau.pipelines.doors.connect.classes.debezium import OPTIONS, PLUGINS, tables_expression
from moldau.pipelines.doors.connect.classes.debezium_envelope import EnvelopeForm, Handling
from moldau.pipelines.doors.connect.plugins import ConnectorConfig
from moldau.pipelines.model.options import Given
from moldau.pipelines.model.pipeline import Source

_COMMITTED = datetime(2026, 11, 18, 1, 2, 3, 456789, tzinfo=UTC)


def _shape(*columns: tuple[str, int, int]) -> Shape:
    kinds = [Column(name, oid, modifier, name == "id") for name, oid, modifier in columns]
    return Shape.of("public", "orders", kinds, ())


_ORDERS = _shape(("id", 23, -1), ("name", 25, -1))


def _change(op: str, before: Values | None, after: Values | None, shape: Shape = _ORDERS) -> Change:
    return Change(op, shape, before, after, 500, 0, 490, 750, _COMMITTED)


def _events(*changes: Change, **handling: Any) -> list[dict[str, Any]]:
    form = EnvelopeForm(Handling("shop", "shopdb", **handling))
    rows: list[dict[str, Any]] = form.batch(changes).to_pylist()
    return rows


def test_an_event_has_debeziums_envelope() -> None:
    (row,) = _events(_change("u", None, ("1", "a")))
    value = json.loads(row["value"])
    assert (row["topic"], json.loads(row["key"])) == ("shop.public.orders", {"id": 1})
    assert (value["before"], value["after"], value["op"]) == (None, {"id": 1, "name": "a"}, "u")
    source = value["source"]
    assert source["connector"] == "postgresql"
    assert (source["name"], source["db"], source["schema"], source["table"]) == ("shop", "shopdb", "public", "orders")
    assert (source["txId"], source["lsn"], source["snapshot"]) == (750, 490, "false")
    assert source["ts_ms"] == int(_COMMITTED.timestamp() * 1000)
    assert json.loads(source["sequence"]) == ["500", "490"]


def test_an_event_and_its_schema_have_the_same_fields() -> None:
    (row,) = _events(_change("c", None, ("1", "a")))
    schema, value = json.loads(row["value_schema"]), json.loads(row["value"])
    fields = {field["field"]: field for field in schema["fields"]}
    assert list(fields) == list(value)
    assert {field["field"] for field in fields["source"]["fields"]} == set(value["source"])
    assert (schema["name"], fields["after"]["name"]) == ("shop.public.orders.Envelope", "shop.public.orders.Value")
    assert json.loads(row["key_schema"])["name"] == "shop.public.orders.Key"


def test_a_delete_is_followed_by_a_tombstone_unless_that_is_switched_off() -> None:
    delete = _change("d", ("1", None), None)
    event, tombstone = _events(delete)
    assert (event["key"], tombstone["key"], tombstone["value"]) == ('{"id":1}', '{"id":1}', None)
    assert json.loads(event["value"])["after"] is None
    assert len(_events(delete, has_tombstones=False)) == 1


def test_truncates_are_skipped_by_default() -> None:
    truncate = _change("t", None, None)
    assert _events(truncate) == []
    (event,) = _events(truncate, skipped=())
    assert json.loads(event["value"])["op"] == "t"


def test_one_row_of_a_table_brings_the_schemas() -> None:
    altered = _shape(("id", 23, -1), ("name", 25, -1), ("more", 25, -1))
    changes = [_change("c", None, (str(number), "a")) for number in range(3)]
    rows = _events(*changes, _change("c", None, ("9", "a", "b"), altered))
    assert [row["value_schema"] is not None for row in rows] == [True, False, False, True]


def _unscaled(text: str) -> int:
    return int.from_bytes(base64.b64decode(text), signed=True)


_NUMERIC_10_2 = ((10 << 16) | 2) + 4


@pytest.mark.parametrize(
    ("oid", "modifier", "text", "handling", "name", "value"),
    [
        (1082, -1, "1970-01-11", {}, "io.debezium.time.Date", 10),
        (1082, -1, "infinity", {}, "io.debezium.time.Date", None),
        (1114, -1, "1970-01-01 00:00:01.5", {}, "io.debezium.time.MicroTimestamp", 1_500_000),
        (1114, 3, "1970-01-01 00:00:01.5", {}, "io.debezium.time.Timestamp", 1_500),
        (1114, -1, "1970-01-01 00:00:01.5", {"times": "connect"}, "org.apache.kafka.connect.data.Timestamp", 1_500),
        (1083, -1, "00:00:01.5", {}, "io.debezium.time.MicroTime", 1_500_000),
        (1083, 0, "24:00:00", {}, "io.debezium.time.Time", 86_400_000),
        (1184, -1, "2026-11-18 01:02:03.4+00", {}, "io.debezium.time.ZonedTimestamp", "2026-11-18T01:02:03.4Z"),
        (2950, -1, "f6d1bd1e", {}, "io.debezium.data.Uuid", "f6d1bd1e"),
        (3802, -1, '{"a": 1}', {}, "io.debezium.data.Json", '{"a": 1}'),
        (1700, _NUMERIC_10_2, "12.50", {"decimals": "string"}, None, "12.50"),
        (1700, _NUMERIC_10_2, "12.50", {"decimals": "double"}, None, 12.5),
        (701, -1, "NaN", {}, None, None),
        (17, -1, "\\x00ff", {}, None, "AP8="),
        (16, -1, "f", {}, None, False),
    ],
)
def test_values_are_written_as_debezium_does(
    *, oid: int, modifier: int, text: str, handling: dict[str, str], name: str | None, value: object
) -> None:
    (row,) = _events(_change("c", None, ("1", text), _shape(("id", 23, -1), ("v", oid, modifier))), **handling)
    field = json.loads(row["value_schema"])["fields"][1]["fields"][1]
    assert (field.get("name"), json.loads(row["value"])["after"]["v"]) == (name, value)


@pytest.mark.parametrize(
    ("text", "unscaled"), [("12.50", 1250), ("-0.01", -1), ("-1.28", -128), ("1.28", 128), ("0.00", 0)]
)
def test_precise_decimals_are_the_bytes_of_their_unscaled_number(text: str, unscaled: int) -> None:
    (row,) = _events(_change("c", None, ("1", text), _shape(("id", 23, -1), ("v", 1700, _NUMERIC_10_2))))
    assert _unscaled(json.loads(row["value"])["after"]["v"]) == unscaled


def test_decimals_without_limits_bring_their_scale() -> None:
    (row,) = _events(_change("c", None, ("1", "3.14159"), _shape(("id", 23, -1), ("v", 1700, -1))))
    value = json.loads(row["value"])["after"]["v"]
    assert (value["scale"], _unscaled(value["value"])) == (5, 314159)


def test_a_large_value_that_did_not_change_has_debeziums_placeholder() -> None:
    (row,) = _events(_change("u", None, ("1", UNCHANGED)))
    assert json.loads(row["value"])["after"]["name"] == "__debezium_unavailable_value"


@pytest.mark.parametrize(
    ("lists", "captured"),
    [
        ({}, {"public.a", "public.b", "other.a"}),
        ({"table.include.list": ("public.a", r"other\..*")}, {"public.a", "other.a"}),
        ({"schema.include.list": ("public",)}, {"public.a", "public.b"}),
        ({"schema.exclude.list": ("public",)}, {"other.a"}),
        ({"table.exclude.list": ("public.a",)}, {"public.b", "other.a"}),
        ({"schema.include.list": ("public",), "table.include.list": (r".*\.a",)}, {"public.a"}),
    ],
)
def test_the_lists_say_which_tables_are_captured(lists: dict[str, tuple[str, ...]], captured: set[str]) -> None:
    expression = re.compile(tables_expression(lists))
    assert {name for name in ("public.a", "public.b", "other.a") if expression.fullmatch(name)} == captured


def test_secrets_stay_references_in_the_pipeline() -> None:
    given = {
        "database.hostname": "db",
        "database.user": "${env:PG_USER}",
        "database.password": "${file:/run/secrets:password}",
        "database.dbname": "shopdb",
        "topic.prefix": "shop",
        "snapshot.mode": "no_data",
    }
    values = OPTIONS.values({key: Given(value) for key, value in given.items()})
    (plugin,) = PLUGINS
    parts = plugin.build(ConnectorConfig("c", given, values))
    (source,) = parts.sources
    assert isinstance(source, Source)
    options = {name: entry.value for name, entry in source.options.items()}
    assert (options["user"], options["password"]) == ("${env:PG_USER}", "${file:/run/secrets:password}")
    assert (options["url"], options["snapshot"]) == ("postgresql://db:5432/shopdb?sslmode=prefer", "never")
    assert (options["slot"], options["publication"]) == ("debezium", "dbz_publication")
