"""Pipelines in Python, for notebooks and scripts: the same model as the file, and the same engine.

    from moldau.pipelines import Pipeline, topic

    counts = (
        Pipeline("page-counts")
        .source(topic("clicks", format="json", schema="page STRING, at TIMESTAMP", watermark="at 1 minute"))
        .step("SELECT window.start, page, count(*) AS views FROM clicks GROUP BY window(at, '1 minute'), page")
        .to(topic("page-counts", key="page"))
    )
    counts.run()

A pipeline is immutable: each method returns a new one. Options have the names of the file; where these have spaces or
dots, write underscores (`dead_letters=…`, `kafka_bootstrap_servers=…`).
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from moldau.errors import CommandError, ConfigError, InvalidPipelineError
from moldau.pipelines.connectors.registry import connector as find_connector
from moldau.pipelines.doors.calls import explained
from moldau.pipelines.doors.graph import text_graph
from moldau.pipelines.model.check import check
from moldau.pipelines.model.common_options import AVAILABLE_NOW, SETTINGS, SINK_OPTIONS, SOURCE_OPTIONS
from moldau.pipelines.model.options import Given, OptionTable
from moldau.pipelines.model.pipeline import Action, Case, Expectation, Sink, Source, Step
from moldau.pipelines.model.pipeline import Pipeline as Model
from moldau.pipelines.model.places import Severity
from moldau.pipelines.model.sql_names import views_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from moldau.pipelines.engine.run import Run
    from moldau.pipelines.engine.supervisor import State

_SQL_NAME = re.compile(r"\W+", re.ASCII)


@dataclass(frozen=True)
class Part:
    """A connector with its options, to read from or to write to. Made by `topic(…)`, `lines(…)`, `connector(…)`."""

    connector: str
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""


@explained('connector("my_module:Orders", zone="UTC")')
def connector(connector: str, /, *, name: str = "", **options: Any) -> Part:
    """Any connector, also your own: `connector("my_module:Orders", zone="UTC")`."""
    return Part(connector, options, name or _sql_name(connector.rpartition(":")[2]))


@explained('topic("clicks", format="json", schema="page STRING")')
def topic(topic: str, /, *, name: str = "", **options: Any) -> Part:
    """A topic of any Kafka."""
    return Part("topic", {"topic": topic, **options}, name or _sql_name(topic))


@explained('lines("/var/log/app.log", format="json", schema="level STRING")')
def lines(path: str | Path, /, *, name: str = "", **options: Any) -> Part:
    """Lines of a file: tailed as a source, appended to as a sink."""
    return Part("lines", {"path": str(path), **options}, name or _sql_name(Path(path).stem))


@explained('directory("incoming", format="csv", schema="id BIGINT")')
def directory(path: str | Path, /, *, name: str = "", **options: Any) -> Part:
    """Files in a directory."""
    return Part("directory", {"path": str(path), **options}, name or _sql_name(Path(path).name))


@explained('generator("id BIGINT, at TIMESTAMP", rows_per_second=10)')
def generator(schema: str, /, *, name: str = "", **options: Any) -> Part:
    """Made-up rows with these columns."""
    return Part("generator", {"schema": schema, **options}, name or "generator")


@explained("console(rows=5)")
def console(*, name: str = "", **options: Any) -> Part:
    """Rows on the screen."""
    return Part("console", options, name or "console")


@explained('python_function(fetch, schema="id BIGINT")')
def python_function(function: str | Callable[..., Any], /, *, name: str = "", **options: Any) -> Part:
    """A Python function, or `module:function`, that makes rows or gets those of each micro-batch."""
    own = function.rpartition(":")[2] if isinstance(function, str) else getattr(function, "__name__", "python")
    return Part("python", {"function": function, **options}, name or _sql_name(own))


@explained('spark_format("delta", path="orders")')
def spark_format(format_name: str, /, *, name: str = "", **options: Any) -> Part:
    """Any format that Spark knows, with its own options."""
    return Part("spark", {"spark.format": format_name, **options}, name or _sql_name(format_name))


class Pipeline:
    """Sources → steps → sinks. `model` is what the engine runs."""

    @explained('Pipeline("page-counts", folder="pipelines")')
    def __init__(self, name: str, *, folder: str | Path = ".") -> None:
        """Relative paths and checkpoints are in `folder`, by default the current one."""
        if not isinstance(name, str):
            raise ConfigError(f'the name of a pipeline is text, such as Pipeline("page-counts"), not {name!r}')
        self.model = Model(name, folder=Path(folder).resolve())

    @classmethod
    def load(cls, path: str | Path) -> Pipeline:
        """The pipeline of a YAML file."""
        from moldau.pipelines.doors.yaml_file import load_pipeline

        pipeline = cls("")
        pipeline.model = load_pipeline(path)
        return pipeline

    @explained('.source(topic("clicks", format="json", schema="page STRING"), name="clicks")')
    def source(self, part: Part, name: str = "") -> Pipeline:
        """Read from it. Steps see it as a view with this name."""
        _check_part(part, "source")
        table = find_connector(part.connector, self.model.folder).source_options
        options = _given(part.options, (table or OptionTable()) + SOURCE_OPTIONS)
        source = Source(name or part.name, part.connector, options)
        return self._with(sources=(*self.model.sources, source))

    @explained('.step("SELECT page FROM clicks", name="pages")')
    def step(self, query: str | Callable[..., DataFrame], name: str = "") -> Pipeline:
        """A view made by SQL, or by a function from DataFrames to a DataFrame.

        The parameters of a function are names of views (or `spark`). The only one may have any name: it gets the
        previous view.
        """
        number = len(self.model.steps) + 1
        if isinstance(query, str):
            step = Step(name or f"step_{number}", sql=query, inputs=views_read(query, self.model.views))
        elif callable(query):
            own = _sql_name(getattr(query, "__name__", ""))
            step = Step(
                name or (own if own not in ("", "lambda") else f"step_{number}"),
                python=query,
                inputs=self._parameters_of(query),
            )
        else:
            raise ConfigError(f"a step is SQL or a function from DataFrames to a DataFrame, not {type(query).__name__}")
        return self._with(steps=(*self.model.steps, step))

    @explained('.expect("page IS NOT NULL", view="clicks", action="drop", name="has_page")')
    def expect(self, condition: str, *, view: str = "", action: str = "warn", name: str = "") -> Pipeline:
        """What rows of a view (by default the last one) should meet; `action`: warn, drop, dead-letter or fail."""
        if not isinstance(condition, str):
            raise ConfigError(f'a condition is SQL, such as "page IS NOT NULL", not {type(condition).__name__}')
        actions = {each.value: each for each in Action}
        if action not in actions:
            raise ConfigError(f"expectation {condition!r}: action '{action}': expected {', '.join(actions)}")
        name = name or _free_name(_sql_name(condition), (each.name for each in self.model.expectations))
        expectation = Expectation(name, view or self._last_view(), condition, actions[action])
        return self._with(expectations=(*self.model.expectations, expectation))

    @explained('.to(topic("counts", key="page"), view="counts", mode="update")')
    def to(self, part: Part, *, view: str = "", mode: str = "append", name: str = "") -> Pipeline:
        """Write a view (by default the last one) to it; `mode`: append, update or complete."""
        _check_part(part, "to")
        table = find_connector(part.connector, self.model.folder).sink_options
        options = _given(part.options, (table or OptionTable()) + SINK_OPTIONS)
        free = name or _free_name(part.name, (sink.name for sink in self.model.sinks))
        sink = Sink(free, view or self._last_view(), part.connector, mode, options)
        return self._with(sinks=(*self.model.sinks, sink))

    @explained('.settings(trigger="1 second", dead_letters="bad")')
    def settings(self, options: Mapping[str, Any] | None = None, /, **more: Any) -> Pipeline:
        """As in the file: `settings(trigger="1 second", dead_letters="bad")`, or with a mapping of names to values."""
        return self._with(settings={**self.model.settings, **_given({**(options or {}), **more}, SETTINGS)})

    @explained('.test("one click", given={"clicks": [{"page": "/"}]}, expect={"counts": [{"views": 1}]})')
    def test(self, name: str, *, given: Mapping[str, Sequence[Any]], expect: Mapping[str, Sequence[Any]]) -> Pipeline:
        """Rows that sources deliver, and rows that views or sinks then have. A list of lists: several micro-batches."""
        batches = {source: _batches(rows, f"test '{name}': given: {source}") for source, rows in given.items()}
        rows = {view: _rows(rows, f"test '{name}': expect: {view}") for view, rows in expect.items()}
        case = Case(name, batches, rows)
        return self._with(tests=(*self.model.tests, case))

    def check(self) -> None:
        """Raises InvalidPipelineError with everything that is wrong, as far as it shows without Spark."""
        problems = check(self.model, partial(find_connector, folder=self.model.folder))
        errors = [problem for problem in problems if problem.severity is Severity.ERROR]
        if errors:
            raise InvalidPipelineError(errors)

    def start(self, spark: SparkSession | None = None) -> Handle:
        """Start it in the background, in this Spark session or in one made for it. Prints nothing."""
        handle = self._prepared(spark)
        handle._run.start()
        return handle

    def run(self, spark: SparkSession | None = None, *, available_now: bool = False, quiet: bool = False) -> None:
        """Run it until it is stopped, or until `available now` is done. Ctrl-C ends it after the micro-batch.

        Shows what `moldau pipeline run` shows, a live table in a terminal and plain lines elsewhere, or nothing if
        `quiet`. Raises CommandError if a query failed for good.
        """
        from moldau.pipelines.engine.watching.live_view import open_view

        pipeline = self.settings(trigger=AVAILABLE_NOW) if available_now else self
        handle = pipeline._prepared(spark)
        with nullcontext() if quiet else open_view(sys.stdout) as view:
            if view is not None:
                handle._run.observer.add_show(view.show)
            handle._run.start()
            try:
                handle.wait()
            except KeyboardInterrupt:
                handle.stop()
        handle.raise_if_failed()

    def run_tests(self, spark: SparkSession | None = None) -> None:
        """Run its tests, without a broker. Raises AssertionError with each row that differs."""
        from moldau.pipelines.engine.cases import run_cases
        from moldau.pipelines.engine.session import silence_query_errors
        from moldau.spark import session

        self.check()
        if not self.model.tests:
            raise ConfigError(f"pipeline {self.model.name} has no tests: add one with .test(…)")
        silence_query_errors()
        results = run_cases(
            spark or session("moldau-tests", short_job=True), [(self.model, case) for case in self.model.tests]
        )
        failures = [f"{result.case.name}: {failure}" for result in results for failure in result.failures]
        if failures:
            raise AssertionError("\n".join(failures))

    def _prepared(self, spark: SparkSession | None) -> Handle:
        from pyspark import SparkContext

        from moldau.pipelines.engine.run import Run
        from moldau.pipelines.engine.session import silence, silence_query_errors

        self.check()
        silence_query_errors()
        is_ours = spark is None and SparkContext._active_spark_context is None
        run = Run([self.model], spark=spark)
        if is_ours:  # else its log is the program's affair
            silence(run.spark)
        return Handle(run)

    def _with(self, **changes: Any) -> Pipeline:
        changed = Pipeline.__new__(Pipeline)
        changed.model = replace(self.model, **changes)
        return changed

    def _last_view(self) -> str:
        if not self.model.views:
            raise ConfigError(f"pipeline {self.model.name} has no view yet: begin with .source(…)")
        return list(self.model.views)[-1]

    def _parameters_of(self, function: Callable[..., Any]) -> tuple[str, ...]:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [
            parameter.name
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind in kinds and parameter.default is inspect.Parameter.empty
        ]
        known = {*self.model.views, "spark"}
        views = [name for name in names if name != "spark"]
        if len(views) == 1 and views[0] not in known:
            return tuple(self._last_view() if name == views[0] else name for name in names)
        return tuple(names)

    def __str__(self) -> str:
        return text_graph(self.model)

    def __repr__(self) -> str:
        return f"<Pipeline {self.model.name}: {' → '.join([*self.model.views, *(s.name for s in self.model.sinks)])}>"


class Handle:
    """A pipeline that was started: `with pipeline.start() as handle:` stops it at the end."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def state(self) -> State:
        """The worst of its queries': STARTING, RUNNING, RETRYING, FAILED, STOPPED or FINISHED."""
        return self._run.state

    def status(self) -> list[dict[str, Any]]:
        """Each query with its state and the reason for it, as `moldau pipeline status --json` has them."""
        return [self._run.facts(query) for query in self._run.queries]

    def stop(self, *, now: bool = False, timeout_s: float | None = None) -> None:
        """End after the running micro-batch, or at once, and wait for that."""
        self._run.stop(now=now)
        self._run.wait(timeout_s)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until it has ended. False if it has not when the time is up."""
        return self._run.wait(timeout_s)

    def raise_if_failed(self) -> None:
        from moldau.pipelines.engine.supervisor import State

        failed = [query for query in self._run.queries if query.state is State.FAILED]
        if failed:
            raise CommandError("; ".join(f"query {query.name} failed: {query.reason}" for query in failed))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _given(options: Mapping[str, Any], table: OptionTable) -> dict[str, Given]:
    return {_option_name(name, table): Given(value) for name, value in options.items()}


def _option_name(name: str, table: OptionTable) -> str:
    """`partition_by` is the option `partition by`, `key_format` is `key.format`."""
    spellings = (name, name.replace("_", " "), name.replace("_", "."))
    exact = [spelling for spelling in spellings if spelling in table.names]
    known = [spelling for spelling in spellings if table.find(spelling) is not None]  # by a pattern, such as `kafka.*`
    return next(iter(exact + known), name)


def _batches(rows: object, owner: str) -> tuple[tuple[Any, ...], ...]:
    if isinstance(rows, list | tuple) and any(isinstance(row, list | tuple) for row in rows):
        return tuple(_rows(batch, owner) for batch in rows)
    return (_rows(rows, owner),)


def _rows(rows: object, owner: str) -> tuple[Any, ...]:
    if not isinstance(rows, list | tuple):
        raise ConfigError(f"{owner}: expected a list of rows, not {rows!r}")
    for row in rows:
        if not isinstance(row, Mapping):
            raise ConfigError(f"{owner}: a row is a dictionary of columns to values, not {row!r}")
    return tuple(rows)


def _check_part(part: object, method: str) -> None:
    if not isinstance(part, Part):
        example = f'topic("{part}")' if isinstance(part, str) else 'topic("clicks")'
        raise ConfigError(f".{method}(…) takes a connector, such as {example}, not {part!r}")


def _sql_name(text: str) -> str:
    name = _SQL_NAME.sub("_", text).strip("_")
    return f"_{name}" if name[:1].isdigit() else name


def _free_name(name: str, taken: Iterable[str]) -> str:
    """The name, or with a number behind it if there is one like it."""
    used, number, free = set(taken), 1, name
    while free in used:
        number += 1
        free = f"{name}_{number}"
    return free
