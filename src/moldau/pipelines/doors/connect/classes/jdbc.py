"""The JDBC connectors of Confluent and Aiven, on the pipelines' databases.

A source connector has a source for each table, with the topic `<topic.prefix><table>`. Its records have no key, and the
row as their value. A sink connector writes the records of each topic to a table.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from moldau.errors import ConfigError, MoldauError
from moldau.pipelines.connectors.database.dialects import table_parts
from moldau.pipelines.connectors.database.sink_sql import INSERT, INSERT_MODES, KEY_METADATA, MARKED_KEYS, UPSERT
from moldau.pipelines.connectors.database.source_sql import BULK, INCREMENTING, MODES, TIMESTAMP
from moldau.pipelines.connectors.database.urls import database, dialect_of
from moldau.pipelines.doors.connect.plugins import (
    SCHEMA_NAME,
    ConnectorConfig,
    Plugin,
    PluginKind,
    SinkParts,
    SourceParts,
)
from moldau.pipelines.model.kinds import BOOLEAN, NAMES, Kind, choice, has_reference, whole
from moldau.pipelines.model.options import Given, Option, OptionTable, Value
from moldau.pipelines.model.pipeline import Source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_PK_MODES = ("none", "kafka", "record_key", "record_value")
_KAFKA_KEY = {"__connect_topic": "topic", "__connect_partition": "partition", "__connect_offset": "offset"}
_TOPIC = "${topic}"
_TABLE, _DELETED = "__moldau_table", "__moldau_deleted"  # columns that are not written
_INTEGER_DIGITS = {2: "tinyint", 4: "smallint", 9: "int", 18: "bigint"}  # up to so many fit
_DOUBLE_DIGITS_MAX = 18


def _milliseconds(value: object) -> int:
    return -1 if str(value).strip() == "-1" else int(whole(0).convert(value))


_OPTIONAL_NAMES = Kind("names", lambda value: NAMES.convert(value) if value not in ("", ()) else (), NAMES.schema)
_WITHOUT_EFFECT = "Accepted, without effect: "

_CONNECTION = OptionTable.of(
    Option("connection.url", "jdbc:postgresql://host:port/database or jdbc:sqlite:file.", required=True),
    Option("connection.user", "The user."),
    Option("connection.password", "The password.", secret=True),
    Option("connection.attempts", f"{_WITHOUT_EFFECT}a failed query is restarted without end.", whole(1), default=3),
    Option("connection.backoff.ms", f"{_WITHOUT_EFFECT}pauses grow.", whole(0), default=10_000),
    Option("dialect.name", f"{_WITHOUT_EFFECT}the URL says it.", default=""),
    Option("db.timezone", "Time zone of timestamps that have none.", default="UTC"),
    Option("quote.sql.identifiers", f"{_WITHOUT_EFFECT}names are always quoted.", default="ALWAYS"),
)
_SOURCE = _CONNECTION + OptionTable.of(
    Option("mode", "How new rows are found.", choice(*MODES), required=True, example=BULK),
    Option("incrementing.column.name", "Column with an id that only grows.", default=""),
    Option("timestamp.column.name", "Columns with the time of the last change.", _OPTIONAL_NAMES, default=()),
    Option("timestamp.initial", "Where a new connector starts, in milliseconds; -1: now.", Kind("long", _milliseconds)),
    Option(
        "timestamp.delay.interval.ms",
        "Rows younger than this are read later, because others may still be committed before them.",
        whole(0),
        default=1_000,
    ),
    Option("table.whitelist", "Tables to read.", _OPTIONAL_NAMES, default=()),
    Option("table.blacklist", "Tables not to read, instead of table.whitelist.", _OPTIONAL_NAMES, default=()),
    Option("table.include.list", "Tables to read, as regular expressions.", _OPTIONAL_NAMES, default=()),
    Option("table.exclude.list", "Tables not to read, as regular expressions.", _OPTIONAL_NAMES, default=()),
    Option("query", "A SELECT to read instead of tables; topic.prefix is its topic.", default=""),
    Option("topic.prefix", "What the names of topics begin with.", required=True, example="shop-"),
    Option("poll.interval.ms", "How often to look for new rows.", whole(0), default=5_000),
    Option("batch.max.rows", f"{_WITHOUT_EFFECT}rows are read as a stream.", whole(1), default=100),
    Option(
        "numeric.mapping",
        "What DECIMAL becomes: itself, or an integer or a double where it fits.",
        choice("none", "precision_only", "best_fit", "best_fit_eager_double"),
        default="none",
    ),
    Option("query.suffix", f"{_WITHOUT_EFFECT}write it into query.", default=""),
    Option("schema.pattern", f"{_WITHOUT_EFFECT}name tables with their schema."),
    Option("catalog.pattern", f"{_WITHOUT_EFFECT}the URL names the database."),
    Option("table.types", f"{_WITHOUT_EFFECT}views can be named as tables.", NAMES, default=("TABLE",)),
    Option("table.poll.interval.ms", f"{_WITHOUT_EFFECT}restart for new tables.", whole(0), default=60_000),
    Option("validate.non.null", f"{_WITHOUT_EFFECT}rows without id are left out.", BOOLEAN, default=True),
)
_SINK = _CONNECTION + OptionTable.of(
    Option("insert.mode", "insert, upsert or update.", choice(*INSERT_MODES), default=INSERT),
    Option("pk.mode", "Where the primary key comes from.", choice(*_PK_MODES), default="none"),
    Option("pk.fields", "Fields of the primary key; by default all of the key.", _OPTIONAL_NAMES, default=()),
    Option("table.name.format", "Name of the table of a topic.", default=_TOPIC),
    Option("auto.create", "Create tables that do not exist.", BOOLEAN, default=False),
    Option("auto.evolve", "Add columns that a table does not have.", BOOLEAN, default=False),
    Option("delete.enabled", "Records without value delete; needs pk.mode=record_key.", BOOLEAN, default=False),
    Option("fields.whitelist", "Fields of the value to write; by default all.", _OPTIONAL_NAMES, default=()),
    Option("batch.size", f"{_WITHOUT_EFFECT}a micro-batch is one transaction.", whole(1), default=3_000),
    Option("max.retries", f"{_WITHOUT_EFFECT}a failed query is restarted without end.", whole(0), default=10),
    Option("retry.backoff.ms", f"{_WITHOUT_EFFECT}pauses grow.", whole(0), default=3_000),
)


def _check_source(given: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    yield from _check_url(given)
    mode = given.get("mode", "")
    for word in (INCREMENTING, TIMESTAMP):
        key = f"{word}.column.name"
        if word in mode and not given.get(key):
            yield key, f"mode {mode} needs it"
    lists = [key for key in ("query", *(f"table.{each}" for each in ("whitelist", "blacklist"))) if given.get(key)]
    if len(lists) > 1:
        yield lists[1], f"cannot be combined with {lists[0]}"


def _check_sink(given: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    yield from _check_url(given)
    pk_mode, fields = given.get("pk.mode", "none"), given.get("pk.fields")
    if given.get("insert.mode", INSERT) != INSERT and pk_mode == "none":
        yield "pk.mode", f"insert.mode {given['insert.mode']} needs a key: for example record_key"
    if given.get("delete.enabled", "").lower() == "true" and pk_mode != "record_key":
        yield "delete.enabled", "needs pk.mode=record_key"
    if pk_mode == "kafka" and fields and len(fields.split(",")) != len(_KAFKA_KEY):
        yield "pk.fields", "with pk.mode=kafka these are three names: for topic, partition and offset"


def _check_url(given: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    url = given.get("connection.url", "")
    if url and not has_reference(url):
        try:
            dialect_of(url)
        except ConfigError as error:
            yield "connection.url", str(error)


def _connection(config: ConnectorConfig) -> dict[str, Given]:
    names = {"connection.url": "url", "connection.user": "user", "connection.password": "password"}
    return {name: config.unresolved(key) for key, name in names.items() if key in config.given}


def _source(config: ConnectorConfig) -> SourceParts:
    values = config.values
    connector = dialect_of(values["connection.url"])
    common = {**_connection(config), **_source_options(values)}
    prefix = values["topic.prefix"]
    what = {"query": ""} if values["query"] else {table: _bare(table) for table in _tables(config)}
    if not what:
        raise ConfigError("the database has no table to read: see table.whitelist and table.blacklist")
    sources, records = [], {}
    for number, (table, suffix) in enumerate(what.items()):
        name = re.sub(r"\W", "_", f"table_{suffix or 'query'}", flags=re.ASCII)
        name = f"{name}_{number}" if name in records else name
        read = {"query": config.unresolved("query")} if values["query"] else {"table": Given(table)}
        sources.append(Source(name, connector, {**common, **read}))
        records[name] = partial(_records, topic=prefix + suffix, table=suffix, mapping=values["numeric.mapping"])
    return SourceParts(tuple(sources), records)


def _source_options(values: Mapping[str, Value]) -> dict[str, Given]:
    mode = values["mode"]
    options = {
        "mode": Given(mode),
        "poll": Given(f"{values['poll.interval.ms']} ms"),
        "safety lag": Given(f"{values['timestamp.delay.interval.ms']} ms"),
        "time zone": Given(values["db.timezone"]),
    }
    for word in (INCREMENTING, TIMESTAMP):
        if word in mode:
            options[f"{word} column"] = Given(values[f"{word}.column.name"])
    if TIMESTAMP in mode and "timestamp.initial" in values:
        options["timestamp initial"] = Given(_initial(values["timestamp.initial"], values["db.timezone"]))
    return options


def _initial(milliseconds: int, zone: str) -> str:
    if milliseconds < 0:
        return "now"
    moment = datetime.datetime.fromtimestamp(milliseconds / 1000, ZoneInfo(zone)).replace(tzinfo=None)
    return moment.isoformat(" ", "milliseconds")


def _tables(config: ConnectorConfig) -> list[str]:
    """Those that are named, or else those that the database has."""
    values = config.values
    if values["table.whitelist"]:
        return list(values["table.whitelist"])
    from moldau.pipelines.connectors.database.sessions import opened

    where = database(values["connection.url"], values.get("connection.user"), values.get("connection.password"))
    with opened(where) as session:
        found = [table for table in session.tables() if not _bare(table).startswith("moldau_")]
    included, excluded = values["table.include.list"], values["table.exclude.list"]
    return [
        table
        for table in found
        if (not included or _matches(table, included))
        and not _matches(table, excluded)
        and not {table, _bare(table)} & {*values["table.blacklist"]}
    ]


def _matches(table: str, patterns: Iterable[str]) -> bool:
    names = (".".join(table_parts(table)), _bare(table))
    return any(re.fullmatch(pattern, name) for pattern in patterns for name in names)


def _bare(table: str) -> str:
    """The name of a table without its schema."""
    return table_parts(table)[-1]


def _records(rows: DataFrame, topic: str, table: str, mapping: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    columns = [
        _field(field.name).cast(mapped_type(field.dataType, mapping)).alias(field.name) for field in rows.schema.fields
    ]
    value = F.struct(*columns)
    return rows.select(
        F.lit(topic).alias("topic"),
        value.alias("value", metadata={SCHEMA_NAME: table}) if table else value.alias("value"),
    )


def mapped_type(kind: DataType, mapping: str) -> DataType | str:
    """What `numeric.mapping` makes of a type."""
    from pyspark.sql.types import DecimalType

    if mapping == "none" or not isinstance(kind, DecimalType):
        return kind
    if kind.scale == 0:
        return next((name for digits, name in _INTEGER_DIGITS.items() if kind.precision <= digits), kind)
    is_double = mapping == "best_fit_eager_double" or (mapping == "best_fit" and kind.precision <= _DOUBLE_DIGITS_MAX)
    return "double" if is_double else kind


def _sink(config: ConnectorConfig) -> SinkParts:
    values = config.values
    deletes = values["delete.enabled"]
    options = {
        **_connection(config),
        "table column": Given(_TABLE),
        # A key that comes again after its deletion in the same batch has to be one statement.
        "insert mode": Given(UPSERT if deletes and values["insert.mode"] == INSERT else values["insert.mode"]),
        "exclude": Given([_DELETED]),
        "auto create": Given(values["auto.create"]),
        "auto evolve": Given(values["auto.evolve"]),
    }
    if values["pk.mode"] != "none":
        options["key"] = Given(MARKED_KEYS)
    if deletes:
        options["delete"] = Given(_DELETED)
    return SinkParts(dialect_of(values["connection.url"]), options, partial(_rows, values=values))


def _rows(records: DataFrame, values: Mapping[str, Value]) -> DataFrame:
    """A record as a row: the columns of its key, the fields of its value, its table and whether it deletes."""
    from pyspark.sql import functions as F  # noqa: N812

    fields = _value_fields(records)
    keys = _KEYS[values["pk.mode"]](records, values["pk.fields"])
    wanted = values["fields.whitelist"] or fields
    has_value = F.col("value").isNotNull()
    table = F.replace(F.lit(values["table.name.format"]), F.lit(_TOPIC), F.col("topic"))
    if not values["delete.enabled"]:
        refused = F.concat(F.lit("a record without value, in topic "), "topic", F.lit(": see delete.enabled"))
        table = F.when(has_value, table).otherwise(F.raise_error(refused).cast("string"))
    return records.select(
        *(column.alias(name, metadata=KEY_METADATA) for name, column in keys.items()),
        *(F.col("value").getField(name).alias(name) for name in fields if name in wanted and name not in keys),
        table.alias(_TABLE),
        (~has_value).alias(_DELETED),
    )


def _kafka_key(records: DataFrame, names: Sequence[str]) -> dict[str, Column]:
    return {name: records[column] for name, column in zip(names or _KAFKA_KEY, _KAFKA_KEY.values(), strict=True)}


def _record_key(records: DataFrame, names: Sequence[str]) -> dict[str, Column]:
    kind = records.schema["key"].dataType
    if hasattr(kind, "fieldNames"):
        return {name: records["key"].getField(name) for name in names or kind.fieldNames()}
    if len(names) != 1:
        raise MoldauError(f"keys are {kind.simpleString()}, without fields: name their column with pk.fields")
    return {names[0]: records["key"]}


def _record_value(records: DataFrame, names: Sequence[str]) -> dict[str, Column]:
    return {name: records["value"].getField(name) for name in names or _value_fields(records)}


_KEYS: Mapping[str, Callable[[DataFrame, Sequence[str]], dict[str, Column]]] = {
    "none": lambda *_: {},
    "kafka": _kafka_key,
    "record_key": _record_key,
    "record_value": _record_value,
}


def _value_fields(records: DataFrame) -> list[str]:
    kind = records.schema["value"].dataType
    if hasattr(kind, "fieldNames"):
        return list(kind.fieldNames())
    if not records.where("value IS NOT NULL").isEmpty():
        raise MoldauError(
            f"values are {kind.simpleString()}, without fields, which a table needs: use for example "
            "value.converter=org.apache.kafka.connect.json.JsonConverter"
        )
    return []


def _field(name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(f"`{name.replace('`', '``')}`")


def _names(kind: str) -> tuple[str, str]:
    return f"io.confluent.connect.jdbc.{kind}", f"io.aiven.connect.jdbc.{kind}"


PLUGINS = (
    Plugin(_names("JdbcSourceConnector"), PluginKind.SOURCE, _SOURCE, _source, _check_source),
    Plugin(_names("JdbcSinkConnector"), PluginKind.SINK, _SINK, _sink, _check_sink),
)
