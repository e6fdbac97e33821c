"""Made-up rows at a steady rate, for demos, first steps and load: a schema, and hints for columns that need some.

A row depends only on the seed and its number, so a batch that is repeated after a failure has the same rows. Timestamps
follow the clock: the checkpoint has the time of each batch, so they are repeated, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from moldau.pipelines.connectors.base import Connector, ReadRequest
from moldau.pipelines.model.kinds import DURATION, MAPPING, NUMBER, Kind, has_reference, whole
from moldau.pipelines.model.options import Given, Option, OptionTable, options_hint
from moldau.pipelines.model.places import Problem, place_of
from moldau.pipelines.model.schemas import schema_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A column's list of values is sent to every task.
_CHOICES_MAX = 100_000
# Much more than one machine generates; it keeps row numbers far from 64 bits.
_RATE_MAX = 1e9


def _rate(value: object) -> float:
    rate: float = NUMBER.convert(value)
    if not 0 < rate <= _RATE_MAX:
        raise ValueError(f"expected a number above 0, at most {_RATE_MAX:.0f}")
    return rate


def _share(value: object) -> float:
    share: float = NUMBER.convert(value)
    if not 0 <= share <= 1:
        raise ValueError("expected a number from 0 to 1")
    return share


def _choices(value: object) -> list[Any]:
    if not isinstance(value, list | tuple) or not 0 < len(value) <= _CHOICES_MAX:
        raise ValueError(f"expected a list of values, at most {_CHOICES_MAX}")
    return list(value)


def _weights(value: object) -> list[float]:
    if not isinstance(value, list | tuple) or not all(type(weight) in (int, float) and weight >= 0 for weight in value):
        raise ValueError("expected a list of numbers, 0 or more")
    if not sum(value) > 0:
        raise ValueError("expected at least one number above 0")
    return list(value)


def _limit(value: object) -> int | float:
    if isinstance(value, int) and not isinstance(value, bool):
        return value  # a double would round large ones
    limit: float = NUMBER.convert(value)
    return limit


_LIMIT = Kind("number", _limit, {"type": "number"})
_RATE = Kind("number", _rate, {"type": ["number", "string"]})
_SHARE = Kind("number from 0 to 1", _share, {"type": "number"})

HINTS = OptionTable.of(
    Option("choices", "The values to choose from.", Kind("list", _choices, {"type": "array"}), example="[/, /cart]"),
    Option("weights", "How often each choice comes, relative to the others.", Kind("list", _weights)),
    Option("min", "Least number.", _LIMIT),
    Option("max", "Largest number.", _LIMIT),
    Option("sequence", "Row numbers, counted from this one.", whole(0)),
    Option("pattern", "Text: `#` becomes a digit, `@` a letter, `%` a hexadecimal digit.", example="user-####"),
    Option("share", "Booleans: how many are true, from 0 to 1.", _SHARE),
    Option("late", "Timestamps: up to this much before the clock.", DURATION, example="10 seconds"),
    Option("nulls", "How many values are null, from 0 to 1.", _SHARE),
    Option("fields", "Structs: hints for their fields.", MAPPING),
    Option("items", "Arrays: hints for their items.", MAPPING),
    Option("size", "Arrays: most items.", whole(0)),
)


class GeneratorConnector(Connector):
    name = "generator"
    summary = "Made-up rows at a steady rate."
    source_options = OptionTable.of(
        Option("rows per second", "How many rows to make each second.", _RATE, default=1.0),
        Option("rows", "Stop after this many rows.", whole(1)),
        Option(
            "fields",
            f"Hints for columns, by name; each has some of {', '.join(HINTS.names)}.",
            MAPPING,
            example="{page: {choices: [/, /cart], weights: [9, 1]}, ms: {min: 1, max: 900}, user: {pattern: user-###}}",
        ),
        Option("seed", "Another seed makes other rows.", whole(0), default=0),
        Option("numPartitions", "Tasks of a batch; by default one for each 100,000 rows.", whole(1)),
    )
    source_example = (
        "schema: page STRING, user STRING, ms INT, at TIMESTAMP\n"
        "rows per second: 100\n"
        "fields:\n"
        "  page: {choices: [/, /cart, /checkout], weights: [80, 15, 5]}\n"
        "  user: {pattern: user-###}\n"
        "  ms: {min: 1, max: 900}"
    )

    def check(self, options: Mapping[str, Given], *, is_source: bool) -> Iterable[Problem]:
        if "schema" not in options:
            yield Problem("a generator needs a schema, such as `schema: page STRING, ms INT, at TIMESTAMP`")
        fields = options.get("fields")
        if fields is not None and isinstance(fields.value, Mapping):
            yield from _check_names(fields, options.get("schema"))
            yield from _check_hints(fields.value, fields, "")

    def read(self, request: ReadRequest) -> DataFrame:
        from moldau.pipelines.connectors.readers.generator import GeneratorSource

        options = {name: value for name, value in request.options.items() if name in self.source_options.names}
        loader = request.loader(GeneratorSource).schema(request.options["schema"])
        return loader.options(spec=json.dumps(options | {"schema": request.options["schema"]})).load()


def _check_names(fields: Given, schema: Given | None) -> Iterable[Problem]:
    try:
        names = tuple(column.name for column in schema_columns(schema.value)) if schema else ()
    except (TypeError, ValueError):
        return  # reported elsewhere, or a reference
    for name in fields.value:
        if names and name.lower() not in map(str.lower, names):
            hint = options_hint(name, names, "Its columns are")
            yield Problem(
                f"fields: the schema has no column '{name}'{hint}", place_of(fields.value, name, fields.place)
            )


def _check_hints(fields: Mapping[str, Any], given: Given, owner: str) -> Iterable[Problem]:
    for name, hints in fields.items():
        column = f"{owner}{name}"
        if has_reference(hints):
            continue
        if not isinstance(hints, Mapping):
            yield Problem(f"fields: {column}: expected hints, such as `{{min: 1, max: 900}}`", given.place)
            continue
        known = {hint: Given(value, place_of(hints, hint, given.place)) for hint, value in hints.items()}
        yield from HINTS.check(known, f"fields: {column}", given.place)
        choices, weights = hints.get("choices"), hints.get("weights")
        if isinstance(weights, list) and len(weights) != (len(choices) if isinstance(choices, list) else 0):
            yield Problem(f"fields: {column}: there must be as many weights as choices", given.place)
        if isinstance(hints.get("fields"), Mapping):
            yield from _check_hints(hints["fields"], given, f"{column}.")
        if isinstance(hints.get("items"), Mapping):
            yield from _check_hints({"items": hints["items"]}, given, f"{column}.")
