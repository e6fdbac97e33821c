"""Values that are JSON, for sources other than topics: decoded in bulk, bad ones by the rules of the source."""

from __future__ import annotations

from collections.abc import Mapping

from moldau.spark.formats import json as json_format
from moldau.spark.formats.columns import ColumnOptions
from moldau.spark.options import Options
from moldau.spark.source.dead_letters import ErrorPolicy
from moldau.spark.source.typed_fields import TypedFields


def json_values(schema: str | None, errors: Mapping[str, str]) -> TypedFields:
    """The field `value` with this schema; `errors` are the options `errors.*` of the source."""
    options = Options({"value.schema": schema or "", **errors})
    reader = json_format.reader(ColumnOptions(options, "value"), lambda _, __: (), None)
    return TypedFields({"value": reader}, ErrorPolicy.from_options(options))
