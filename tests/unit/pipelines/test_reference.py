"""The JSON Schema and the reference page come from the option tables, and examples agree with both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moldau.cli.pipelines import init
from moldau.pipelines import reference
from moldau.pipelines.connectors.registry import BUILT_IN, connector
from moldau.pipelines.doors.yaml_file import read_pipeline
from moldau.pipelines.doors.yaml_nodes import read_nodes
from tests.unit.pipelines.json_schema import Validator

ROOT = Path(__file__).parents[3]
GOOD = Path(__file__).parent / "bad_files" / "good.yaml"
EXAMPLES = [GOOD, Path(init.__file__).with_name("example.yaml"), *sorted((ROOT / "examples").rglob("*.yaml"))]

# Mistakes that an editor can show while somebody types.
SEEN_BY_EDITORS = [
    ("sources:", "souces:"),
    ("topic: clicks", "topik: clicks"),
    ("format: json", "format: jsn"),
    ("mode: append", "mode: upsert"),
    ("action: dead-letter", "action: ignore"),
    ("connector: generator", "connector: generater"),
    ("  visits:\n    sql", "  all-visits:\n    sql"),
    ("    view: clicks\n", ""),
    ("python: my_steps:mark", "python: my_steps:mark\n    sql: SELECT 1"),
    ("trigger: 1 second", "triger: 1 second"),
    ("spark: {spark.sql.shuffle.partitions: 4}", "spark: 4"),
    ("- {user: user-1, country: CZ}", "- user-1"),
]


def schema_errors(path: Path) -> list[str]:
    root, _ = read_nodes(path)
    return list(Validator(reference.schema()).errors(root.plain()))


def test_the_published_schema_and_page_are_current() -> None:
    schema = json.loads((ROOT / "docs" / "pipeline.schema.json").read_text("utf-8"))
    assert schema == json.loads(json.dumps(reference.schema())), "run: make docs"
    assert (ROOT / "docs" / "pipelines-reference.md").read_text("utf-8") == reference.page(), "run: make docs"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_passes_lint_and_fits_the_schema(path: Path) -> None:
    assert [str(problem) for problem in read_pipeline(path)[1]] == []
    assert schema_errors(path) == []


@pytest.mark.parametrize(("old", "new"), SEEN_BY_EDITORS)
def test_the_schema_refuses_what_lint_refuses(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD.read_text("utf-8").replace(old, new, 1), "utf-8")
    assert schema_errors(path)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_examples_of_a_connector_pass_lint(tmp_path: Path, name: str) -> None:
    one = connector(name)
    source = one.source_example if one.source_options is not None else "topic: a"
    sink = one.sink_example if one.sink_options is not None else "topic: b"
    lines = [
        "sources:\n  my_source:",
        f"    connector: {name if one.source_options is not None else 'topic'}",
        *(f"    {line}" for line in source.splitlines()),
        "sinks:\n  my_sink:",
        f"    connector: {name if one.sink_options is not None else 'topic'}",
        *(f"    {line}" for line in sink.splitlines()),
    ]
    path = tmp_path / "example.yaml"
    path.write_text("\n".join(lines), "utf-8")
    assert [str(problem) for problem in read_pipeline(path)[1]] == []
    assert schema_errors(path) == []


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_option_is_described_in_a_sentence_and_its_default_is_right(name: str) -> None:
    one = connector(name)
    for option in [*(one.source_options or ()), *(one.sink_options or ())]:
        assert option.doc.endswith("."), option
        assert option.default is None or option.kind.wrong(reference.as_written(option)) is None, option
