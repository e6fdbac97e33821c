"""Changes schemas so that fastavro reads and writes the same bytes with values in the shape that Arrow needs.

Avro encodes a record with one field like the field itself. So each branch of a union can be declared as a record with a
field `member0`, `member1`, …. Its value is then a row of the struct that Spark uses for such a union.

fastavro reads decimals of any length, in time that grows with the square of the length: minutes for a megabyte. They
therefore get their own logical type, which has a limit.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any

from fastavro.read import LOGICAL_READERS
from fastavro.write import LOGICAL_WRITERS

from moldau.spark.formats.avro_schema import Schema, union_members

_DECIMAL = "moldau-decimal"
# The 38 digits of Spark's decimals fit into 16 bytes. Fixed ones can be longer because of padding.
_DECIMAL_BYTES_MAX = 64


def shaped(schema: Schema, *, unions: bool = True) -> Schema:
    """Return the changed schema. `unions=False` leaves unions unchanged, because schemas are matched by their types."""
    return _Shapes(unions).of(schema)


class _Shapes:
    def __init__(self, unions: bool) -> None:
        self._unions = unions
        self._numbers = count()

    def of(self, schema: Schema) -> Schema:
        if isinstance(schema, list):
            return self._union(schema)
        if not isinstance(schema, dict):
            return schema
        parts = {name: self.of(schema[name]) for name in ("type", "items", "values") if name in schema}
        if "fields" in schema:
            parts["fields"] = [self.of(field) for field in schema["fields"]]
        if schema.get("logicalType") == "decimal":
            parts["logicalType"] = _DECIMAL
        return schema | parts

    def _union(self, branches: list[Schema]) -> Schema:
        inner = [self.of(branch) for branch in branches]
        if not self._unions or not union_members(branches):
            return inner
        members = count()
        return [branch if branch == "null" else self._record(f"member{next(members)}", branch) for branch in inner]

    def _record(self, field: str, schema: Schema) -> Schema:
        name = f"moldau_{field}_{next(self._numbers)}"
        return {"type": "record", "name": name, "fields": [{"name": field, "type": schema}]}


def _read_decimal(read: Any, data: bytes, *schemas: Any) -> Any:
    if len(data) > _DECIMAL_BYTES_MAX:
        raise ValueError(f"a decimal of {len(data)} bytes")
    return read(data, *schemas)


for _kind in ("bytes", "fixed"):
    LOGICAL_READERS[f"{_kind}-{_DECIMAL}"] = partial(_read_decimal, LOGICAL_READERS[f"{_kind}-decimal"])
    LOGICAL_WRITERS[f"{_kind}-{_DECIMAL}"] = LOGICAL_WRITERS[f"{_kind}-decimal"]
