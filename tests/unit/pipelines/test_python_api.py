"""Pipelines in Python make the same model as files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import moldau.pipelines
from moldau.errors import ConfigError, InvalidPipelineError
from moldau.pipelines import Pipeline, connector, generator, lines, python_function, spark_format, topic
from moldau.pipelines.doors.yaml_file import load_pipeline
from moldau.pipelines.model.pipeline import Pipeline as Model

FILE = """
name: page-counts
sources:
  clicks:
    connector: topic
    topic: clicks
    format: json
    schema: page STRING, at TIMESTAMP
    watermark: at 1 minute
steps:
  counts:
    sql: SELECT window.start AS minute, page, count(*) AS views FROM clicks GROUP BY window(at, '1 minute'), page
sinks:
  page_counts:
    from: counts
    connector: topic
    topic: page-counts
    key: page
    mode: update
    topic.creation.default.partitions: 3
expect:
  has_page:
    view: clicks
    condition: page IS NOT NULL
    action: drop
tests:
  - name: one click
    given: {clicks: [{page: /a, at: "2026-01-01 00:00:10"}]}
    expect: {counts: [{page: /a, views: 1}]}
settings:
  trigger: 1 second
  dead letters: bad
  kafka.bootstrap.servers: kafka:9092
"""
IN_PYTHON = (
    Pipeline("page-counts")
    .source(topic("clicks", format="json", schema="page STRING, at TIMESTAMP", watermark="at 1 minute"))
    .expect("page IS NOT NULL", action="drop", name="has_page")
    .step(
        "SELECT window.start AS minute, page, count(*) AS views FROM clicks GROUP BY window(at, '1 minute'), page",
        name="counts",
    )
    .to(topic("page-counts", key="page", topic_creation_default_partitions=3), mode="update")
    .settings({"dead letters": "bad"}, trigger="1 second", kafka_bootstrap_servers="kafka:9092")
    .test(
        "one click",
        given={"clicks": [{"page": "/a", "at": "2026-01-01 00:00:10"}]},
        expect={"counts": [{"page": "/a", "views": 1}]},
    )
)


def without_places(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_places(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(without_places(each) for each in value)
    names = ("place", "places", "text_place", "key_place")
    if hasattr(value, "__dataclass_fields__"):
        found = {name: getattr(value, name) for name in value.__dataclass_fields__ if name not in names}
        return type(value).__name__, {name: without_places(each) for name, each in found.items()}
    return value


def test_the_model_is_that_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "counts.yaml").write_text(FILE)
    of_file = replace(load_pipeline(tmp_path / "counts.yaml"), folder=IN_PYTHON.model.folder, file=None)
    assert without_places(IN_PYTHON.model) == without_places(of_file)
    IN_PYTHON.check()
    assert Pipeline.load(tmp_path / "counts.yaml").model.name == "page-counts"


def test_each_method_returns_a_new_pipeline() -> None:
    empty = Pipeline("p")
    assert empty.source(topic("a")).model.sources
    assert empty.model == Model("p", folder=empty.model.folder)


def mark(clicks: Any, spark: Any, factor: int = 2) -> Any:
    raise AssertionError("it is not called before the pipeline starts")


def test_names_and_inputs_have_sensible_defaults() -> None:
    pipeline = (
        Pipeline("p")
        .source(topic("clicks"))
        .source(lines("/var/log/my app.log"))
        .source(topic("2026-orders"))
        .source(generator("id BIGINT"), "made_up")
        .step(mark)
        .step(lambda rows: rows)
        .step("SELECT * FROM Clicks JOIN my_app USING (x)")
        .to(topic("out"))
        .to(topic("out", key="x"), view="clicks")
        .expect("id > 0 AND x")
    ).model
    assert list(pipeline.views) == ["clicks", "my_app", "_2026_orders", "made_up", "mark", "step_2", "step_3"]
    assert [step.inputs for step in pipeline.steps] == [("clicks", "spark"), ("mark",), ("clicks", "my_app")]
    assert [(sink.name, sink.view) for sink in pipeline.sinks] == [("out", "step_3"), ("out_2", "clicks")]
    assert [(each.name, each.view) for each in pipeline.expectations] == [("id_0_AND_x", "step_3")]


def test_what_is_wrong_is_told_before_anything_starts() -> None:
    with pytest.raises(InvalidPipelineError, match="source clicks has no option 'formt': did you mean 'format'"):
        Pipeline("p").source(topic("clicks", formt="json")).to(topic("out")).start()
    with pytest.raises(ConfigError, match="unknown connector 'topik': did you mean 'topic'"):
        Pipeline("p").source(connector("topik"))
    with pytest.raises(ConfigError, match=r"has no view yet: begin with \.source"):
        Pipeline("p").to(topic("out"))
    with pytest.raises(ConfigError, match="action 'dorp': expected warn, drop, dead-letter, fail"):
        Pipeline("p").source(topic("clicks")).expect("x > 1", action="dorp")
    with pytest.raises(ConfigError, match="a step is SQL or a function from DataFrames to a DataFrame, not int"):
        Pipeline("p").source(topic("clicks")).step(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda p: p.expect("sane_ms", "clicks", "ms > 0"),
            r"expect: too many positional arguments\. For example: \.expect\(\"page IS NOT NULL\", view=\"clicks\"",
        ),
        (
            lambda p: p.to(topic("out"), veiw="clicks"),
            r"unexpected keyword argument 'veiw': did you mean 'view'\? For example: \.to\(topic\(",
        ),
        (lambda p: p.source("clicks"), r"\.source\(…\) takes a connector, such as topic\(\"clicks\"\), not 'clicks'"),
        (lambda p: p.to(topic), r"\.to\(…\) takes a connector, such as topic\(\"clicks\"\), not <function topic"),
        (
            lambda p: topic(*["clicks", "json"]),
            r"topic: too many positional arguments\. For example: topic\(\"clicks\", f",
        ),
        (lambda p: p.expect(p), 'a condition is SQL, such as "page IS NOT NULL", not Pipeline'),
        (
            lambda p: p.test("t", given={"clicks": {"page": "/"}}, expect={}),
            "test 't': given: clicks: expected a list of rows, not {'page': '/'}",
        ),
        (
            lambda p: p.test("t", given={"clicks": [["/"]]}, expect={}),
            "test 't': given: clicks: a row is a dictionary of columns to values, not '/'",
        ),
        (lambda p: p.test("t", {}), r"test: too many positional arguments\. For example: \.test\("),
        (lambda p: Pipeline(7), r"the name of a pipeline is text, such as Pipeline\(\"page-counts\"\), not 7"),  # type: ignore[arg-type]
        (lambda p: p.run(), r"pipeline p has no sinks, so it would write nothing: add one with \.to\(…\)"),
        (lambda p: p.run_tests(), r"pipeline p has no tests: add one with \.test\(…\)"),
    ],
)
def test_a_wrong_call_says_what_is_right(call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises((TypeError, ConfigError), match=message):
        call(Pipeline("p").source(topic("clicks")))


def test_names_of_the_package_are_completed() -> None:
    assert {"Pipeline", "topic", "directory", "Connector"} <= set(dir(moldau.pipelines))


def test_several_micro_batches_are_lists_of_lists() -> None:
    case = Pipeline("p").test("t", given={"a": [[{"x": 1}], [{"x": 2}]]}, expect={"a": []}).model.tests[0]
    assert case.given == {"a": (({"x": 1},), ({"x": 2},))}


def test_importing_pipelines_loads_neither_spark_nor_yaml() -> None:
    code = (
        "import sys, moldau.pipelines\n"
        "from moldau.pipelines import Pipeline, topic\n"
        "Pipeline('p').source(topic('a')).to(topic('b')).check()\n"
        "assert not {'pyspark', 'pyarrow', 'yaml'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_options_of_every_connector_may_be_written_with_underscores() -> None:
    pipeline = (
        Pipeline("p")
        .source(python_function("orders:fetch", schema="id BIGINT"))
        .to(spark_format("delta", path="out", partition_by="id", mergeSchema=True))
        .to(topic("out", kafka_security_protocol="SSL"))
    )
    assert pipeline.model.sources[0].name == "fetch"
    assert set(pipeline.model.sinks[0].options) == {"spark.format", "path", "partition by", "mergeSchema"}
    assert set(pipeline.model.sinks[1].options) == {"topic", "kafka.security.protocol"}


def test_a_function_has_the_same_name_in_every_process() -> None:
    def fetch(cursor: object) -> None: ...

    text = str(Pipeline("p").source(python_function(fetch, schema="id BIGINT")).to(topic("out")))
    assert text.endswith(f"python {__name__}:{fetch.__qualname__}")


def test_it_prints_as_a_graph() -> None:
    assert str(IN_PYTHON).startswith("page-counts\n")
    assert repr(IN_PYTHON) == "<Pipeline page-counts: clicks → counts → page_counts>"
