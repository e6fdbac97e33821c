"""Predicates as conditions on the columns of records. None of them is ever null."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.pipelines.doors.connect.transforms.fields import Values
from moldau.pipelines.doors.connect.transforms.records import Predicate
from moldau.pipelines.doors.connect.transforms.routing import whole

if TYPE_CHECKING:
    from pyspark.sql import Column


def topic_name_matches(values: Values) -> Predicate:
    def condition() -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        return F.coalesce(F.col("topic").rlike(whole(values["pattern"])), F.lit(False))

    return condition


def has_header_key(values: Values) -> Predicate:
    def condition() -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        return F.coalesce(F.exists("headers", lambda header: header["key"] == values["name"]), F.lit(False))

    return condition


def record_is_tombstone(_: Values) -> Predicate:
    def condition() -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        return F.col("value").isNull()

    return condition
