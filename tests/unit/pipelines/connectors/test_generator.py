"""Made-up rows: the same for the same seed and row number, whatever task makes them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from moldau.errors import ConfigError
from moldau.pipelines.connectors.generator import GeneratorConnector
from moldau.pipelines.connectors.readers.generator import Generator
from moldau.pipelines.model.options import Given
from moldau.spark.formats.ddl import parse_type

SCHEMA = (
    "page STRING, user STRING, ms INT, price DECIMAL(10, 2), ok BOOLEAN, tags ARRAY<STRING>, ratio FLOAT, id BIGINT, "
    "place STRUCT<x: DOUBLE, day: DATE>, raw BINARY, at TIMESTAMP"
)
FIELDS = {
    "page": {"choices": ["/", "/cart"], "weights": [9, 1]},
    "user": {"pattern": "usér-##@%", "nulls": 0.1},
    "ms": {"min": -5, "max": 900},
    "price": {"min": 0.5, "max": 19.99},
    "ok": {"share": 0.9},
    "tags": {"items": {"pattern": "t@"}, "size": 2},
    "id": {"sequence": 100},
    "place": {"fields": {"x": {"min": 7, "max": 8}}},
    "at": {"late": "10 seconds"},
}
HOUR_US = 3_600_000_000


def generator(schema: str = SCHEMA, fields: dict[str, Any] | None = None, **more: Any) -> Generator:
    parsed = parse_type(schema)
    assert isinstance(parsed, StructType)
    return Generator({"rows per second": 10.0, "seed": 1, "fields": fields or {}, **more}, parsed)


def rows(made: Generator, first: int, last: int) -> pa.Table:
    parts = made.parts(first, last, first * HOUR_US, last * HOUR_US)
    return pa.Table.from_batches([batch for part in parts for batch in made.read(part)])


def test_rows_are_the_same_in_one_task_and_in_many() -> None:
    one, many = generator(fields=FIELDS), generator(fields=FIELDS, numPartitions=7)
    assert len(many.parts(0, 5000, 0, 1)) == 7
    assert rows(one, 0, 5000).equals(rows(many, 0, 5000))
    assert rows(one, 0, 5000).slice(1000, 500).drop(["at", "place"]).equals(rows(one, 1000, 1500).drop(["at", "place"]))


def test_another_seed_makes_other_rows_and_a_new_column_changes_no_other() -> None:
    assert not rows(generator(), 0, 100)["ms"].equals(rows(generator(seed=2), 0, 100)["ms"])
    assert rows(generator("ms INT"), 0, 100)["ms"].equals(rows(generator("new INT, ms INT"), 0, 100)["ms"])


def test_hints_are_kept_to() -> None:
    made = rows(generator(fields=FIELDS), 0, 10_000).to_pydict()
    assert 800 < made["page"].count("/cart") < 1200
    assert 800 < made["user"].count(None) < 1200
    assert all(len(user) == 9 and user.startswith("usér-") and user[5:7].isdigit() for user in made["user"] if user)
    assert (min(made["ms"]), max(made["ms"])) == (-5, 900)
    assert 0.5 <= min(made["price"]) < max(made["price"]) <= 20
    assert 8800 < made["ok"].count(True) < 9200
    assert {len(tags) for tags in made["tags"]} == {0, 1, 2}
    assert made["id"] == list(range(100, 10_100))
    assert all(7 <= place["x"] < 8 for place in made["place"])


@pytest.mark.parametrize(
    ("schema", "fields", "message"),
    [
        ("page STRING", {"pages": {"pattern": "#"}}, "no column 'pages': did you mean 'page'"),
        ("page STRING", {"page": {"min": 1}}, "page is string: 'min' does not apply"),
        ("ms TINYINT", {"ms": {"max": 900}}, "expected -128 <= min <= max <= 127"),
        ("ms INT", {"ms": {"choices": ["a"]}}, "ms .int.*a"),
        ("ms INT", {"ms": {"squence": 1}}, "did you mean 'sequence'"),
        ("m MAP<STRING, INT>", {}, "cannot make map<string,int>"),
        ("tags ARRAY<INT>", {"tags": {"size": 10_000}}, "at most 1000"),
    ],
)
def test_hints_that_do_not_fit_are_refused(schema: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        generator(schema, fields)


def test_lint_checks_hints_without_a_schema_being_parsed() -> None:
    wrong = {"page": {"choice": ["/"]}, "ms": {"weights": [1]}, "place": {"fields": {"x": {"nulls": 2}}}, "id": 1}
    found = "\n".join(map(str, GeneratorConnector().check({"fields": Given(wrong)}, is_source=True)))
    for words in ("needs a schema", "did you mean 'choices'", "as many weights", "place.x", "id: expected hints"):
        assert words in found
