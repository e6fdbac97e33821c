"""Values of unions with several types, as structs of `member0`, `member1`, …: which member a value belongs to.

The reader names records, enums and fixed in such a union; other values tell their branch by their Python type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moldau.spark.formats.avro_schema import Schema, type_name, union_members

Shape = Callable[[Any], Any]
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (float,),
    "double": (float,),
    "string": (str,),
    "bytes": (bytes,),
    "array": (list,),
    "map": (dict,),
}


def shape_of(schema: Schema) -> Shape | None:
    """What to do with a value read by this schema; None where no such union is in it."""
    return _Shapes().of(schema)


class _Shapes:
    def __init__(self) -> None:
        self._named: dict[str, Shape | None] = {}

    def of(self, schema: Schema) -> Shape | None:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return self._named.get(schema) or self._named.get(schema.rpartition(".")[2])
        kind = schema["type"]
        if kind in ("record", "error"):
            shape = self._record(schema)
            self._named[schema["name"].rpartition(".")[2]] = shape
            return shape
        if kind in ("array", "map"):
            inner = self.of(schema["items" if kind == "array" else "values"])
            return None if inner is None else (_list_of(inner) if kind == "array" else _map_of(inner))
        return self.of(kind)

    def _record(self, schema: Schema) -> Shape | None:
        shapes = [(field["name"], self.of(field["type"])) for field in schema["fields"]]
        needed = [(name, shape) for name, shape in shapes if shape is not None]
        if not needed:
            return None
        return lambda value: value | {name: shape(value[name]) for name, shape in needed}

    def _union(self, branches: list[Schema]) -> Shape | None:
        shapes = [(branch, self.of(branch)) for branch in branches if branch != "null"]
        if union_members(branches):
            return _member(shapes)
        inner = shapes[0][1] if shapes else None
        return None if inner is None else (lambda value: None if value is None else inner(value))


def _list_of(inner: Shape) -> Shape:
    return lambda values: [inner(value) for value in values]


def _map_of(inner: Shape) -> Shape:
    return lambda values: {name: inner(value) for name, value in values.items()}


def _member(branches: list[tuple[Schema, Shape | None]]) -> Shape:
    named = {}
    typed = []
    for index, (branch, shape) in enumerate(branches):
        kind = type_name(branch)
        if kind in _PYTHON_TYPES:
            typed.append((_PYTHON_TYPES[kind], index, shape))
        else:
            full = branch["name"] if isinstance(branch, dict) else branch
            named[full.rpartition(".")[2]] = (index, shape)

    def shaped(value: Any) -> dict[str, Any] | None:
        if value is None:
            return None
        if isinstance(value, tuple):
            (index, shape), value = named[value[0].rpartition(".")[2]], value[1]
        else:
            index, shape = next((index, shape) for kinds, index, shape in typed if type(value) in kinds)
        return {f"member{index}": value if shape is None else shape(value)}

    return shaped
