"""Debezium's connector for PostgreSQL, on the pipelines' change capture (`cdc`).

One source reads all tables, since a replication slot has one reader. Its rows are events as JSON, whose schemas differ
from table to table, so each micro-batch is split by topic before transforms and converters see typed records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import TYPE_CHECKING

from moldau.pipelines.doors.connect.classes.debezium_envelope import EnvelopeForm, Handling
from moldau.pipelines.doors.connect.plugins import ConnectorConfig, Plugin, PluginKind, SourceParts
from moldau.pipelines.doors.connect.schemas import Schema
from moldau.pipelines.model.kinds import BOOLEAN, NAMES, choice, whole
from moldau.pipelines.model.options import Given, Option, OptionTable
from moldau.pipelines.model.pipeline import Source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SOURCE = "changes"
_SNAPSHOTS = {"initial": "initial", "initial_only": "only", "no_data": "never", "never": "never"}
_PUBLICATIONS = {"all_tables": "all tables", "filtered": "filtered", "disabled": "disabled"}
_EVERYTHING = ".*"
_SCHEMAS = ("key_schema", "value_schema")  # columns that few rows have

OPTIONS = OptionTable.of(
    Option("database.hostname", "Host of the database.", required=True, example="localhost"),
    Option("database.port", "Its port.", whole(1), default=5432),
    Option("database.user", "A user that may use replication slots and read the tables.", required=True),
    Option("database.password", "Its password.", secret=True),
    Option("database.dbname", "The database.", required=True, example="shop"),
    Option("database.sslmode", "As of libpq: disable, prefer, require, verify-ca, verify-full.", default="prefer"),
    Option("topic.prefix", "Topics are <prefix>.<schema>.<table>.", required=True, example="shop"),
    Option("plugin.name", "The output plugin.", choice("pgoutput"), default="pgoutput"),
    Option("slot.name", "The replication slot. It is created if it does not exist.", default="debezium"),
    Option(
        "slot.drop.on.stop",
        "Only false: a slot that is dropped loses changes. Drop it with SELECT pg_drop_replication_slot(…).",
        choice("false"),
        default="false",
    ),
    Option("publication.name", "The publication.", default="dbz_publication"),
    Option(
        "publication.autocreate.mode",
        "Whether the publication is made if it does not exist, and of what.",
        choice(*_PUBLICATIONS),
        default="all_tables",
    ),
    Option("table.include.list", "Regular expressions of `schema.table`: which tables to capture.", NAMES),
    Option("table.exclude.list", "Regular expressions of `schema.table`: which tables not to capture.", NAMES),
    Option("schema.include.list", "Regular expressions of schemas to capture.", NAMES),
    Option("schema.exclude.list", "Regular expressions of schemas not to capture.", NAMES),
    Option("column.exclude.list", "Regular expressions of `schema.table.column`: which columns to leave out.", NAMES),
    Option(
        "snapshot.mode",
        "initial: rows first, then changes; initial_only: only rows; no_data, never: only changes.",
        choice(*_SNAPSHOTS),
        default="initial",
    ),
    Option(
        "heartbeat.interval.ms",
        "How often the slot moves on while no table changes; 0: every 10 seconds. No heartbeat records are written.",
        whole(0),
        default=0,
    ),
    Option("heartbeat.action.query", "SQL to run at each heartbeat."),
    Option("tombstones.on.delete", "Write a record without value after each delete.", BOOLEAN, default=True),
    Option(
        "decimal.handling.mode",
        "NUMERIC as Connect's Decimal, as text, or as double.",
        choice("precise", "string", "double"),
        default="precise",
    ),
    Option(
        "time.precision.mode",
        "Dates and times as precise as their columns, or as Connect's own types, in milliseconds.",
        choice("adaptive", "adaptive_time_microseconds", "connect"),
        default="adaptive",
    ),
    Option("skipped.operations", "Which of c, u, d, t are left out; none: no one.", NAMES, default=("t",)),
)


def _build(config: ConnectorConfig) -> SourceParts:
    values = config.values
    skipped = tuple(op for op in values["skipped.operations"] if op != "none")
    form = EnvelopeForm(
        Handling(
            values["topic.prefix"],
            values["database.dbname"],
            values["decimal.handling.mode"],
            values["time.precision.mode"],
            values["tombstones.on.delete"],
            skipped,
        )
    )
    options = {
        "url": Given(
            f"postgresql://{config.given['database.hostname']}:{config.given.get('database.port', 5432)}"
            f"/{config.given['database.dbname']}?sslmode={values['database.sslmode']}"
        ),
        "user": config.unresolved("database.user"),
        "tables": Given([tables_expression(values)]),
        "snapshot": Given(_SNAPSHOTS[values["snapshot.mode"]]),
        "slot": Given(values["slot.name"]),
        "publication": Given(values["publication.name"]),
        "publication mode": Given(_PUBLICATIONS[values["publication.autocreate.mode"]]),
        "heartbeat": Given(f"{values['heartbeat.interval.ms'] or 10_000} ms"),
        "form": Given(form),
    }
    if "database.password" in config.given:
        options["password"] = config.unresolved("database.password")
    if "column.exclude.list" in values:
        options["exclude columns"] = Given(list(values["column.exclude.list"]))
    if "heartbeat.action.query" in values:
        options["heartbeat query"] = Given(values["heartbeat.action.query"])
    return SourceParts((Source(SOURCE, "cdc", options),), records=lambda rows: rows, split=split)


def tables_expression(values: Mapping[str, object]) -> str:
    """One expression for `schema.table` that says what all the lists say."""

    def any_of(name: str) -> str | None:
        expressions = values.get(name)
        return "|".join(f"(?:{one})" for one in expressions) if isinstance(expressions, tuple) else None

    schemas, not_schemas = any_of("schema.include.list"), any_of("schema.exclude.list")
    not_tables = any_of("table.exclude.list")
    tests = [
        f"(?=(?:{schemas})\\.)" if schemas else "",
        f"(?!(?:{not_schemas})\\.)" if not_schemas else "",
        f"(?!(?:{not_tables})$)" if not_tables else "",
    ]
    return "".join(tests) + f"(?:{any_of('table.include.list') or _EVERYTHING})"


def split(batch: DataFrame) -> Iterator[DataFrame]:
    """The events of a micro-batch as typed records, one table at a time. `batch` is read several times."""
    from pyspark.sql import functions as F  # noqa: N812

    schemas: dict[str, tuple[set[str], set[str]]] = {}
    for topic, key, value in batch.where("value_schema IS NOT NULL").select("topic", *_SCHEMAS).collect():
        keys, values = schemas.setdefault(topic, (set(), set()))
        keys |= {key} - {None}
        values.add(value)
    for topic, (keys, values) in sorted(schemas.items()):
        records = batch.where(F.col("topic") == topic)
        yield records.select("topic", _typed("key", keys), _typed("value", values), "timestamp")


def _typed(column: str, texts: Iterable[str]) -> Column:
    """A table that was altered in between has several schemas: the columns of all."""
    from pyspark.sql import functions as F  # noqa: N812

    from moldau.pipelines.doors.connect.json_columns import from_json_value
    from moldau.pipelines.doors.connect.schemas import json_type, merged, metadata_of

    schemas: list[Schema] = [json.loads(text) for text in sorted(texts)]
    if not schemas:
        return F.lit(None).cast("string").alias(column)
    schema = reduce(merged, schemas)
    parsed = F.from_json(F.col(column), json_type(schema))  # type: ignore[arg-type]
    return from_json_value(parsed, schema, is_numeric=False).alias(column, metadata=metadata_of(schema))


PLUGINS: tuple[Plugin, ...] = (
    Plugin(("io.debezium.connector.postgresql.PostgresConnector",), PluginKind.SOURCE, OPTIONS, _build),
)
