"""MaskField: values replaced by the least of their type, or by one that the configuration gives."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from moldau.pipelines.doors.connect.transforms.fields import Values, of_part
from moldau.pipelines.doors.connect.transforms.records import New, Part, Records, Transform, in_map, named, put, zero

if TYPE_CHECKING:
    from pyspark.sql import Column

_PURPOSE = "mask fields"
_WHOLE = ("byte", "short", "integer", "long")
_NUMBERS = (*_WHOLE, "float", "double", "decimal")


def mask_field(values: Values, on: str) -> Transform:
    fields: tuple[str, ...] = values["fields"]
    replacement: str | None = values.get("replacement")

    def masked(part: Part) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        instead = zero(part.type) if replacement is None else _replacement(part, replacement)
        if instead is None:
            custom = "" if replacement is None else " with custom replacement"
            return part.failing(f"Cannot mask value of type: {part.type_name}{custom}")
        return F.when(part.column.isNotNull(), instead)

    def field(part: Part) -> Column:
        if part.name not in fields:
            return part.kept()
        return named(part.required(masked(part)), part.name, part.schema.metadata)

    def change(part: Part, _: Records) -> New:
        if part.is_struct:
            new = part.of_struct(map(field, part.fields.values()))
        elif part.is_map:
            new = put(part.column, {name: masked(in_map(part, name)) for name in fields})
        else:
            new = part.failing(part.wrong_type(_PURPOSE), "string" if part.is_void else None)
        # As in Kafka, a null is wrong here: a predicate has to leave tombstones out.
        return New(part.unless_null(new, part.null_is_wrong(_PURPOSE)))

    return of_part(on, change)


def _replacement(part: Part, text: str) -> Column | None:
    from pyspark.sql import functions as F  # noqa: N812

    kind = part.type_name
    if kind == "string":
        return F.lit(text)
    if kind not in _NUMBERS or part.is_time:
        return None
    try:
        number = Decimal(text)
    except InvalidOperation:
        return part.failing(f"Unable to convert {text} (class java.lang.String) to number")
    return F.lit(int(number) if kind in _WHOLE else number).cast(part.type)
