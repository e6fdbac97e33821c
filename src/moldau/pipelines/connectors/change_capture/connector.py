"""`cdc`: the changes of PostgreSQL's tables, as they are committed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from moldau.pipelines.connectors.base import Connector, ReadRequest
from moldau.pipelines.model.kinds import DURATION, NAMES, Kind, choice, has_reference, whole
from moldau.pipelines.model.options import Given, Option, OptionTable, Value
from moldau.pipelines.model.places import Problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from moldau.pipelines.connectors.change_capture.forms import Form

_MIB = 1024 * 1024
_PLAIN_NAME = re.compile(r"[\w$]+(\\?\.[\w$]+)?")
_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")
_NAME_LENGTH_MAX = 63  # PostgreSQL's


def _slot(value: object) -> str:
    if not isinstance(value, str) or not _SLOT_NAME.fullmatch(value):
        raise ValueError("expected up to 63 lower-case letters, digits and underscores")
    return value


def _expressions(value: object) -> tuple[str, ...]:
    names: tuple[str, ...] = NAMES.convert(value)
    for name in names:
        try:
            re.compile(name)
        except re.error as error:
            raise ValueError(f"'{name}' is no regular expression: {error}") from error
    return names


def _form(value: object) -> object:
    if not hasattr(value, "batch"):
        raise ValueError("expected an object with `columns` and `batch`, from Python")
    return value


_EXPRESSIONS = Kind("names", _expressions, {"type": ["string", "array"], "items": {"type": "string"}})


class ChangeCaptureConnector(Connector):
    name = "cdc"
    summary = "Changes of PostgreSQL's tables, as they are committed, after a snapshot of their rows."
    identity = ("slot",)
    source_options = OptionTable.of(
        Option(
            "url",
            "The database. It needs `wal_level = logical`.",
            required=True,
            example="postgresql://db:5432/shop",
        ),
        Option("user", "A user that may use replication slots (ALTER ROLE … REPLICATION) and read the tables."),
        Option("password", "Its password.", secret=True),
        Option(
            "tables",
            "Tables, as `schema.table`, or regular expressions that match such a name as a whole; without a schema it "
            "is `public`. Of one table, `key`, `before` and `after` are structs with its columns; of several, JSON. "
            "A table that is added later gets its snapshot then.",
            _EXPRESSIONS,
            required=True,
            example="public.orders",
        ),
        Option(
            "snapshot",
            "initial: each row of a table first comes with `op` r, then what changes; never: only changes; only: only "
            "the rows.",
            choice("initial", "never", "only"),
            default="initial",
        ),
        Option(
            "exclude columns",
            "Regular expressions of columns to leave out, as `schema.table.column`. Keys always come.",
            _EXPRESSIONS,
        ),
        Option(
            "slot",
            "The replication slot. Each query needs its own: by default it is named after the pipeline, the source and "
            "the query. Drop it when the pipeline is not used anymore: a slot that nobody reads keeps PostgreSQL's log "
            "on disk.",
            Kind("name of a slot", _slot, {"type": "string"}),
        ),
        Option("publication", "The publication. By default it is named after the pipeline and the source."),
        Option(
            "publication mode",
            "filtered: the publication is made for the tables, and they are added to it; all tables: it is made for "
            "all of the database; disabled: it must be there.",
            choice("filtered", "all tables", "disabled"),
            default="filtered",
        ),
        Option(
            "maxBytesPerTrigger",
            "About how much of PostgreSQL's log to read in a micro-batch. A transaction is not divided.",
            whole(1),
            default=64 * _MIB,
        ),
        Option(
            "heartbeat",
            "How often the slot moves on while the tables do not change, so that PostgreSQL can free its log.",
            DURATION,
            default=10_000,
        ),
        Option("heartbeat query", "SQL to run at each heartbeat."),
        Option("form", "From Python: an object that makes rows of changes in a form of your own.", Kind("form", _form)),
    )
    source_example = (
        "url: postgresql://db:5432/shop\nuser: ${env:PG_USER}\npassword: ${env:PG_PASSWORD}\ntables: public.orders"
    )

    def check(self, options: Mapping[str, Given], *, is_source: bool) -> Iterable[Problem]:
        tables = options.get("tables")
        if "schema" in options and tables and not has_reference(tables.value) and _single_table(tables.value) is None:
            yield Problem("schema is for one table: the rows of several are JSON", options["schema"].place)

    def columns(self, options: Mapping[str, Value]) -> str | None:
        from moldau.pipelines.connectors.change_capture.forms import JSON_COLUMNS

        return JSON_COLUMNS if "form" not in options and _single_table(options["tables"]) is None else None

    def read(self, request: ReadRequest) -> DataFrame:
        from moldau.pipelines.connectors.change_capture.database import conninfo_of
        from moldau.pipelines.connectors.change_capture.source import CaptureSource, CaptureSpec, pickled

        options = request.options
        conninfo = conninfo_of(options["url"], options.get("user"), options.get("password"))
        spec = CaptureSpec(
            tables=[_full_name(table) for table in options["tables"]],
            slot=options.get("slot") or slot_name("moldau", request.pipeline, request.name, request.query),
            publication=options.get("publication") or slot_name("moldau", request.pipeline, request.name),
            publication_mode=options["publication mode"],
            snapshot=options["snapshot"],
            excluded=list(options.get("exclude columns", ())),
            batch_bytes_max=options["maxBytesPerTrigger"],
            heartbeat_ms=options["heartbeat"],
            heartbeat_query=options.get("heartbeat query", ""),
            form=pickled(_rows(options, conninfo)),
        )
        # Spark hides options with "secret" in their name in what it prints.
        secret = {"secret.conninfo": conninfo}
        return request.loader(CaptureSource).options(spec=json.dumps(asdict(spec)), **secret).load()


def slot_name(*parts: str) -> str:
    """A name for PostgreSQL that no other parts make."""
    text = "_".join(part for part in parts if part)
    name = re.sub(r"[^a-z0-9_]", "_", text.lower())
    if name == text and len(name) <= _NAME_LENGTH_MAX:
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{name[: _NAME_LENGTH_MAX - len(digest) - 1]}_{digest}"


def _single_table(tables: object) -> str | None:
    """The name of the table, if there is only one."""
    names = NAMES.convert(tables)
    return _full_name(names[0]) if len(names) == 1 and _PLAIN_NAME.fullmatch(names[0]) else None


def _full_name(table: str) -> str:
    """An expression for `schema.table`."""
    if not _PLAIN_NAME.fullmatch(table):
        return table
    schema, _, name = table.replace("\\", "").rpartition(".")
    return re.escape(f"{schema or 'public'}.{name}")


def _rows(options: Mapping[str, Value], conninfo: str) -> Form:
    """How changes become rows. The columns of one table are its own, as they are now, unless a schema is given."""
    from pyspark.sql.types import StructType

    from moldau.pipelines.connectors.change_capture.changes import Shape
    from moldau.pipelines.connectors.change_capture.database import Database
    from moldau.pipelines.connectors.change_capture.forms import JsonForm, TypedForm, spark_columns

    if "form" in options:
        form: Form = options["form"]
        return form
    table = _single_table(options["tables"])
    if table is None:
        return JsonForm()
    database = Database(conninfo)
    (found,) = database.tables_of([table]).values()
    database.close()
    excluded = [re.compile(column) for column in options.get("exclude columns", ())]
    shape = Shape.of(found.schema, found.name, found.columns, excluded)
    row = StructType.fromDDL(options.get("schema") or spark_columns(shape.columns))
    assert isinstance(row, StructType)
    return TypedForm(row, [shape.columns[number].name for number in shape.key])
