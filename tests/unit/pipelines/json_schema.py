"""As much of JSON Schema as the schema of pipelines uses; a keyword that is not here fails the test."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
NOTES = {"$schema", "title", "description", "default", "examples", "definitions"}
Schema = Mapping[str, Any]


class Validator:
    def __init__(self, root: Schema) -> None:
        self.root = root

    def errors(self, value: Any, schema: Schema | bool | None = None, where: str = "") -> Iterator[str]:
        schema = self.root if schema is None else schema
        if isinstance(schema, bool):
            if not schema:
                yield f"{where}: not allowed"
            return
        for keyword, wanted in schema.items():
            if keyword not in NOTES:
                check = getattr(self, "_" + keyword.removeprefix("$"))
                yield from check(value, wanted, schema, where)

    def is_valid(self, value: Any, schema: Schema) -> bool:
        return not any(self.errors(value, schema))

    def _ref(self, value: Any, wanted: str, _schema: Schema, where: str) -> Iterator[str]:
        yield from self.errors(value, self.root["definitions"][wanted.rpartition("/")[2]], where)

    def _type(self, value: Any, wanted: Any, _schema: Schema, where: str) -> Iterator[str]:
        names = [wanted] if isinstance(wanted, str) else wanted
        fits = [name for name in names if isinstance(value, TYPES[name])]
        if not fits or (isinstance(value, bool) and "boolean" not in names):
            yield f"{where}: {value!r} is not {names}"

    def _enum(self, value: Any, wanted: list[Any], _schema: Schema, where: str) -> Iterator[str]:
        if value not in wanted:
            yield f"{where}: {value!r} is not one of {wanted}"

    def _const(self, value: Any, wanted: Any, _schema: Schema, where: str) -> Iterator[str]:
        yield from self._enum(value, [wanted], _schema, where)

    def _pattern(self, value: Any, wanted: str, _schema: Schema, where: str) -> Iterator[str]:
        if isinstance(value, str) and not re.search(wanted, value):
            yield f"{where}: {value!r} does not match {wanted}"

    def _items(self, value: Any, wanted: Schema, _schema: Schema, where: str) -> Iterator[str]:
        for number, item in enumerate(value if isinstance(value, list) else ()):
            yield from self.errors(item, wanted, f"{where}[{number}]")

    def _properties(self, value: Any, wanted: Schema, _schema: Schema, where: str) -> Iterator[str]:
        for name in wanted.keys() & value.keys() if isinstance(value, dict) else ():
            yield from self.errors(value[name], wanted[name], f"{where}.{name}")

    def _patternProperties(self, value: Any, wanted: Schema, _schema: Schema, where: str) -> Iterator[str]:
        for name in value if isinstance(value, dict) else ():
            for pattern in wanted:
                if re.search(pattern, name):
                    yield from self.errors(value[name], wanted[pattern], f"{where}.{name}")

    def _additionalProperties(self, value: Any, wanted: Schema | bool, schema: Schema, where: str) -> Iterator[str]:
        for name in value if isinstance(value, dict) else ():
            is_known = name in schema.get("properties", {})
            if not is_known and not any(re.search(pattern, name) for pattern in schema.get("patternProperties", ())):
                yield from self.errors(value[name], wanted, f"{where}.{name}")

    def _propertyNames(self, value: Any, wanted: Schema, _schema: Schema, where: str) -> Iterator[str]:
        for name in value if isinstance(value, dict) else ():
            yield from self.errors(name, wanted, f"{where}.{name}")

    def _required(self, value: Any, wanted: list[str], _schema: Schema, where: str) -> Iterator[str]:
        yield from (f"{where}: {name} is missing" for name in wanted if isinstance(value, dict) and name not in value)

    def _minProperties(self, value: Any, wanted: int, _schema: Schema, where: str) -> Iterator[str]:
        if len(value) < wanted:
            yield f"{where}: too few"

    def _maxProperties(self, value: Any, wanted: int, _schema: Schema, where: str) -> Iterator[str]:
        if len(value) > wanted:
            yield f"{where}: too many"

    def _anyOf(self, value: Any, wanted: list[Schema], _schema: Schema, where: str) -> Iterator[str]:
        if not any(self.is_valid(value, each) for each in wanted):
            yield f"{where}: {value!r} fits none of {wanted}"

    def _allOf(self, value: Any, wanted: list[Schema], _schema: Schema, where: str) -> Iterator[str]:
        for each in wanted:
            yield from self.errors(value, each, where)

    def _if(self, value: Any, wanted: Schema, schema: Schema, where: str) -> Iterator[str]:
        if self.is_valid(value, wanted):
            yield from self.errors(value, schema["then"], where)

    def _then(self, *_: object) -> Iterator[str]:
        return iter(())
