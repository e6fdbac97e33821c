"""The transforms of topics and headers, and Filter."""

from __future__ import annotations

import re
from decimal import Decimal

from moldau.pipelines.doors.connect.transforms.casts import header_text
from moldau.pipelines.doors.connect.transforms.fields import Values
from moldau.pipelines.doors.connect.transforms.records import (
    Change,
    New,
    Part,
    Records,
    Transform,
    header,
    in_map,
    with_headers,
)


def whole(regex: str) -> str:
    """A Java pattern that finds what `regex` matches as a whole."""
    return rf"\A(?:{regex})\z"


def regex_router(values: Values, _: str) -> Transform:
    def transform(_: Records) -> Change:
        from pyspark.sql import functions as F  # noqa: N812

        topic = F.col("topic")
        # The whole name has to match; then Java replaces what the pattern finds first, which may be less of it.
        replaced = F.regexp_replace(topic, rf"\A(?:{values['regex']})", F.lit(values["replacement"]))
        return Change({"topic": New(F.when(topic.rlike(whole(values["regex"])), replaced).otherwise(topic))})

    return transform


def drop_records(_values: Values, _: str) -> Transform:
    def transform(_: Records) -> Change:
        from pyspark.sql import functions as F  # noqa: N812

        return Change(keep=F.lit(False))

    return transform


def drop_headers(values: Values, _: str) -> Transform:
    def transform(_: Records) -> Change:
        from pyspark.sql import functions as F  # noqa: N812

        return Change({"headers": New(F.filter("headers", lambda each: ~each["key"].isin(*values["headers"])))})

    return transform


def literal_text(literal: str) -> str | None:
    """A literal as Connect writes it after it has found its type: whole numbers without a fraction, `null` as none."""
    if literal == "null":
        return None
    if not re.fullmatch(r"[+-]?\d+(\.\d*)?", literal):
        return literal
    number = Decimal(literal)
    return str(int(number)) if number == int(number) and abs(number) < 2**63 else literal


def insert_header(values: Values, _: str) -> Transform:
    def transform(_: Records) -> Change:
        from pyspark.sql import functions as F  # noqa: N812

        value = F.lit(literal_text(values["value.literal"]))
        return Change({"headers": New(with_headers([header(values["header"], value)]))})

    return transform


def header_from(values: Values, on: str) -> Transform:
    fields: tuple[str, ...] = values["fields"]
    is_move = values["operation"] == "move"
    purpose = f"header {values['operation']}"

    def found(part: Part, name: str) -> Part | None:
        return in_map(part, name) if part.is_map else part.fields.get(name)

    def transform(records: Records) -> Change:
        from pyspark.sql import functions as F  # noqa: N812

        part = records.part(on)
        unknown = next((name for name in fields if found(part, name) is None), None)
        if not part.is_struct and not part.is_map:
            new = part.failing(part.wrong_type(purpose), "string" if part.is_void else None)
        elif unknown is not None and not part.is_schemaless:
            new = part.failing(f"Field does not exist: {unknown}")
        elif not is_move:
            new = part.column
        elif part.is_map:
            new = F.map_filter(part.column, lambda key, _: ~key.isin(*fields))
        else:
            new = part.of_struct(each.kept() for each in part.fields.values() if each.name not in fields)
        added = [
            header(name, header_text(value) if (value := found(part, each)) else F.lit(None).cast("string"))
            for each, name in zip(fields, values["headers"], strict=True)
        ]
        # As in Kafka, a null is wrong here: a predicate has to leave tombstones out.
        checked = part.unless_null(new, part.null_is_wrong(purpose))
        return Change({on: New(checked), "headers": New(with_headers(added))})

    return transform
