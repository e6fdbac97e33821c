"""The JDBC connectors of Confluent and Aiven: their keys become options of the pipelines' databases."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import DecimalType, LongType

from moldau.errors import ConfigError
from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.doors.connect.catalog import find_plugin
from moldau.pipelines.doors.connect.classes.jdbc import mapped_type
from moldau.pipelines.doors.connect.plugins import ConnectorConfig, PluginKind, SinkParts, SourceParts
from moldau.pipelines.model.options import Given

SOURCE = find_plugin("io.confluent.connect.jdbc.JdbcSourceConnector", PluginKind.SOURCE)
SINK = find_plugin("io.aiven.connect.jdbc.JdbcSinkConnector", PluginKind.SINK)
CONNECTION = {"connection.url": "jdbc:postgresql://db/shop", "connection.user": "ann"}
TABLES = CONNECTION | {"mode": "bulk", "topic.prefix": "shop-", "table.whitelist": "orders, sales.items"}


def built(plugin: Any, config: Mapping[str, str]) -> Any:
    given = {key: Given(value) for key, value in config.items()}
    for problem in plugin.options.check(given, "connector c", None):
        raise ConfigError(problem.message)
    for key, message in plugin.check(config):
        raise ConfigError(f"{key}: {message}")
    return plugin.build(ConnectorConfig("c", config, plugin.options.values(given)))


def plain(options: Mapping[str, Given]) -> dict[str, Any]:
    return {name: given.value for name, given in options.items()}


def test_a_source_connector_has_a_source_for_each_table() -> None:
    parts = built(SOURCE, TABLES | {"connection.password": "${file:secrets:db}"})
    assert isinstance(parts, SourceParts)
    assert [source.name for source in parts.sources] == ["table_orders", "table_items"]
    assert {source.connector for source in parts.sources} == {"postgres"}
    assert plain(parts.sources[1].options) == {
        "url": "jdbc:postgresql://db/shop",
        "user": "ann",
        "password": "${file:secrets:db}",  # resolved when the query starts
        "table": "sales.items",
        "mode": "bulk",
        "poll": "5000 ms",
        "safety lag": "1000 ms",
        "time zone": "UTC",
    }
    assert isinstance(parts.records, Mapping)
    assert [records.keywords["topic"] for records in parts.records.values()] == [  # type: ignore[attr-defined]
        "shop-orders",
        "shop-items",
    ]


def test_modes_columns_and_delays_are_carried_over() -> None:
    config = TABLES | {
        "mode": "timestamp+incrementing",
        "incrementing.column.name": "id",
        "timestamp.column.name": "changed,created",
        "timestamp.initial": "1769860801000",
        "timestamp.delay.interval.ms": "2500",
        "poll.interval.ms": "100",
        "db.timezone": "Europe/Prague",
    }
    (source, _) = built(SOURCE, config).sources
    options = plain(source.options)
    assert options["incrementing column"] == "id"
    assert options["timestamp column"] == ("changed", "created")
    assert options["timestamp initial"] == "2026-01-31 13:00:01.000"
    assert (options["safety lag"], options["poll"]) == ("2500 ms", "100 ms")
    assert list(connector("postgres").check(source.options, is_source=True)) == []


def test_without_a_list_all_tables_of_the_database_are_read(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as database:
        for table in ("orders", "items", "audit", "moldau_batches"):
            database.execute(f"CREATE TABLE {table} (id INTEGER)")
    config = {"connection.url": f"jdbc:sqlite:{path}", "mode": "bulk", "topic.prefix": ""}
    for more, expected in (
        ({}, ["audit", "items", "orders"]),
        ({"table.blacklist": "audit"}, ["items", "orders"]),
        ({"table.include.list": ".*it.*"}, ["audit", "items"]),
        ({"table.include.list": ".*it.*", "table.exclude.list": "a.*"}, ["items"]),
    ):
        parts = built(SOURCE, config | more)
        assert [plain(source.options)["table"] for source in parts.sources] == expected


def test_a_query_has_the_prefix_as_its_topic() -> None:
    config = {key: value for key, value in TABLES.items() if key != "table.whitelist"}
    parts = built(SOURCE, config | {"query": "SELECT 1 AS one", "topic.prefix": "ones"})
    assert [plain(source.options)["query"] for source in parts.sources] == ["SELECT 1 AS one"]
    assert [records.keywords["topic"] for records in parts.records.values()] == ["ones"]


@pytest.mark.parametrize(
    ("plugin", "more", "message"),
    [
        (SOURCE, {"mode": "incrementing"}, "incrementing.column.name: mode incrementing needs it"),
        (SOURCE, {"query": "SELECT 1"}, "table.whitelist: cannot be combined with query"),
        (SOURCE, {"connection.url": "jdbc:mysql://db/shop"}, "connection.url: jdbc:mysql: only postgresql and sqlite"),
        (SINK, {"insert.mode": "upsert"}, "pk.mode: insert.mode upsert needs a key"),
        (SINK, {"delete.enabled": "true", "pk.mode": "record_value"}, "delete.enabled: needs pk.mode=record_key"),
        (SINK, {"pk.mode": "kafka", "pk.fields": "a,b"}, "pk.fields: with pk.mode=kafka these are three names"),
        (SINK, {"connection.url": "jdbc:mysql://db/shop"}, "connection.url: jdbc:mysql: only postgresql and sqlite"),
    ],
)
def test_mistakes_are_found_before_the_start(plugin: Any, more: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        built(plugin, (TABLES if plugin is SOURCE else CONNECTION) | more)


def test_a_sink_connector_writes_to_a_table_for_each_topic() -> None:
    parts = built(SINK, CONNECTION | {"insert.mode": "upsert", "pk.mode": "record_key", "delete.enabled": "true"})
    assert isinstance(parts, SinkParts)
    assert parts.connector == "postgres"
    options = plain(parts.options)
    assert options["insert mode"] == "upsert"
    assert (options["table column"], options["exclude"], options["delete"]) == (
        "__moldau_table",
        ["__moldau_deleted"],
        "__moldau_deleted",
    )
    table = connector("postgres").sink_options
    assert table is not None
    assert list(table.check(parts.options, "sink", None)) == []
    assert list(connector("postgres").check(parts.options, is_source=False)) == []


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        ("none", [DecimalType(9, 0), DecimalType(18, 0), DecimalType(30, 0), DecimalType(9, 2), DecimalType(30, 2)]),
        ("precision_only", ["int", "bigint", DecimalType(30, 0), DecimalType(9, 2), DecimalType(30, 2)]),
        ("best_fit", ["int", "bigint", DecimalType(30, 0), "double", DecimalType(30, 2)]),
        ("best_fit_eager_double", ["int", "bigint", DecimalType(30, 0), "double", "double"]),
    ],
)
def test_decimals_are_mapped_as_asked(mapping: str, expected: list[Any]) -> None:
    sizes = ((9, 0), (18, 0), (30, 0), (9, 2), (30, 2))
    assert [mapped_type(DecimalType(*size), mapping) for size in sizes] == expected
    assert mapped_type(LongType(), mapping) == LongType()
