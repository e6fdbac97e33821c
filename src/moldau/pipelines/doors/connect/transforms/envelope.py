"""Debezium's ExtractNewRecordState: the row after a change instead of the envelope around it.

The records of one batch have one schema, so dropping fields by a list in each record's header
(`drop.fields.header.name`) is not supported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.pipelines.doors.connect.plugins import SCHEMA_NAME
from moldau.pipelines.doors.connect.transforms.casts import header_text
from moldau.pipelines.doors.connect.transforms.fields import Values
from moldau.pipelines.doors.connect.transforms.records import (
    Change,
    New,
    Part,
    Records,
    Transform,
    conformed,
    header,
    named,
    union,
    with_headers,
)

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class Handling:
    """What becomes of a delete (`drop`, `tombstone`, `rewrite`), and whether tombstones after it stay."""

    deletes: str
    keeps_tombstones: bool = False


MODES = {
    "drop": Handling("drop"),
    "tombstone": Handling("tombstone"),
    "rewrite": Handling("rewrite"),
    "rewrite-with-tombstone": Handling("rewrite", keeps_tombstones=True),
    "delete-to-tombstone": Handling("tombstone"),
}
OLD_MODES = {"drop": "drop", "none": "tombstone", "rewrite": "rewrite"}


def handling(values: Values) -> Handling:
    mode, old = values.get("delete.tombstone.handling.mode"), values.get("delete.handling.mode")
    drops_tombstones = values.get("drop.tombstones")
    if mode is not None or (old is None and drops_tombstones is None):
        return MODES[mode or "tombstone"]
    return Handling(OLD_MODES[old or "drop"], keeps_tombstones=drops_tombstones is False)


_PLACES = {
    **dict.fromkeys(("op", "ts_ms", "ts_us", "ts_ns"), ""),
    **dict.fromkeys(("id", "total_order", "data_collection_order"), "transaction"),
}
"""Where Debezium looks for fields without a struct's name; all others are in `source`."""


@dataclass(frozen=True)
class Added:
    """A field of the envelope that is added to the value or the headers: `op`, `source.ts_ms`, `table:origin`."""

    struct: str
    field: str
    name: str

    @classmethod
    def of(cls, spec: str, prefix: str) -> Added:
        path, _, alias = spec.partition(":")
        struct, dot, field = path.rpartition(".")
        name = alias or (f"{struct}_{field}" if dot else field)
        return cls(struct if dot else _PLACES.get(field, "source"), field, prefix + name)

    def found(self, envelope: Part) -> Part | None:
        parent = envelope.fields.get(self.struct) if self.struct else envelope
        inner = parent.fields.get(self.field) if parent else None
        return inner or envelope.fields.get(self.field)


def is_envelope(part: Part) -> bool:
    name = part.schema.metadata.get(SCHEMA_NAME)
    return {"op", "after"} <= {*part.fields} and (name is None or name.endswith(".Envelope"))


def extract_new_record_state(values: Values, _: str) -> Transform:
    mode = handling(values)
    fields = [Added.of(each, values["add.fields.prefix"]) for each in values["add.fields"]]
    headers = [Added.of(each, values["add.headers.prefix"]) for each in values["add.headers"]]

    def transform(records: Records) -> Change:
        from pyspark.sql import functions as F  # noqa: N812

        envelope = records.part("value")
        if not is_envelope(envelope):
            return Change(keep=envelope.column.isNotNull() | F.lit(mode.keeps_tombstones))
        row = _row(envelope)
        after = envelope.fields["after"]
        columns = {"value": New(_value(envelope, row, mode, fields), after.schema.metadata)}
        if headers:
            columns["headers"] = New(_headers(envelope, headers))
        if values["route.by.field"]:
            field = row.column.getField(values["route.by.field"]).cast("string")
            columns["topic"] = New(F.when(F.trim(field) != "", field).otherwise(F.col("topic")))
        return Change(columns, keep=_kept(envelope, row, mode))

    return transform


@dataclass(frozen=True)
class _Row:
    """The row of a change: after it, or before it was deleted; null when a table was truncated."""

    part: Part
    column: Column


def _row(envelope: Part) -> _Row:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StructField

    after, before = envelope.fields["after"], envelope.fields.get("before")
    both = union(after.type, before.type) if before and not before.is_void else after.type
    if before is None or both is None or before.is_void:
        return _Row(after, after.column)
    columns = (conformed(each.column, each.type, both) for each in (after, before))
    return _Row(Part("after", StructField("after", both), envelope), F.coalesce(*columns))


def _kept(envelope: Part, row: _Row, mode: Handling) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    is_delete = envelope.fields["after"].column.isNull()
    return (
        F.when(envelope.column.isNull(), mode.keeps_tombstones)
        .when(row.column.isNull(), False)
        .otherwise(~is_delete | F.lit(mode.deletes != "drop"))
    )


def _value(envelope: Part, row: _Row, mode: Handling, added: list[Added]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    is_delete, is_rewrite = envelope.fields["after"].column.isNull(), mode.deletes == "rewrite"

    def fields() -> Iterator[Column]:
        for each in row.part.fields.values():
            value = row.column.getField(each.name)
            # A deleted row may have its key only, so its other fields are optional.
            yield named(value if is_rewrite else each.required(value), each.name, each.schema.metadata)
        if is_rewrite:
            yield F.when(is_delete, "true").otherwise("false").alias("__deleted")
        for reference in added:
            found = reference.found(envelope)
            if found is not None:
                yield named(found.column, reference.name, found.schema.metadata)

    has_value = row.column.isNotNull() if is_rewrite else ~is_delete
    return F.when(has_value, F.struct(*fields()))


def _headers(envelope: Part, added: list[Added]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    found = [(each.name, part) for each in added if (part := each.found(envelope))]
    of_change = with_headers([header(name, header_text(part)) for name, part in found])
    of_tombstone = with_headers([header(each.name, F.lit("d")) for each in added if each.field == "op"])
    return F.when(envelope.column.isNull(), of_tombstone).otherwise(of_change)
