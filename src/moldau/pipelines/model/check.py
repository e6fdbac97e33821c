"""What is wrong with a pipeline, as far as it shows without Spark and without a broker: the rules of lint.

They are the same whichever door the pipeline came through. A rule takes the pipeline and yields problems. Connectors
are looked up by a function, because the model knows none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from moldau.config.keys import nearest
from moldau.errors import ConfigError
from moldau.pipelines.model.check_warnings import SERVERS, WARNINGS
from moldau.pipelines.model.checked import Checked, Lookup, Rule
from moldau.pipelines.model.common_options import DEAD_LETTERS, SETTINGS, SINK_OPTIONS, SOURCE_OPTIONS
from moldau.pipelines.model.file_parts import MODES, SINK, SOURCE
from moldau.pipelines.model.kinds import has_reference
from moldau.pipelines.model.options import Given, options_hint
from moldau.pipelines.model.pipeline import Action, Case, Pipeline, Sink, Source, Step
from moldau.pipelines.model.places import Place, Problem, place_of
from moldau.pipelines.model.references import reference_mistake
from moldau.pipelines.model.schemas import schema_columns
from moldau.pipelines.model.sql_names import (
    aggregates,
    expression_mistake,
    groups,
    missing_from,
    query_mistake,
    sets_watermark,
    table_names,
)
from moldau.pipelines.model.watermark import Watermark

PARTS_MAX = 500  # Spark plans a view as often as it is used; people's pipelines have ten
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PIPELINE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")  # names folders, consumer groups and queries
_RESERVED = frozenset(
    # `spark` is the session in Python steps; the others are no tables after FROM.
    ["spark", "select", "from", "join", "table", "values", "lateral", "where", "group", "order", "on", "using", "union"]
)


def check(pipeline: Pipeline, connector_lookup: Lookup) -> list[Problem]:
    """All problems. Rules that would report the consequences of other mistakes wait until those are mended."""
    checked = Checked(pipeline, connector_lookup)
    wrong_names = list(_names(checked))
    problems = wrong_names + _found(_RULES, checked)
    if not wrong_names:
        problems += _found(_RULES_OF_NAMES, checked)
    return problems or _found(_RULES_OF_QUERIES, checked) or _found(WARNINGS, checked)


def _found(rules: tuple[Rule, ...], checked: Checked) -> list[Problem]:
    return list(dict.fromkeys(problem for rule in rules for problem in rule(checked)))


def check_together(pipelines: Iterable[tuple[Pipeline, Lookup]]) -> list[Problem]:
    """What is wrong with pipelines that run side by side: a name is that of checkpoints, groups and metrics."""
    problems = []
    seen: dict[str, Pipeline] = {}
    files: dict[Path, Pipeline] = {}
    for pipeline, lookup in pipelines:
        first = seen.setdefault(pipeline.name, pipeline)
        if first is not pipeline:
            message = f"there is another pipeline '{pipeline.name}', in {first.file}: set another `name`"
            problems.append(Problem(message, pipeline.place))
        for sink, path, place in _files_written_alone(pipeline, lookup):
            first = files.setdefault(path, pipeline)
            if first is not pipeline:
                message = f"sink {sink.name}: path: pipeline {first.name} writes to this file, too: use another file"
                problems.append(Problem(message, place))
    return problems


def _names(checked: Checked) -> Iterator[Problem]:
    pipeline = checked.pipeline
    if not _PIPELINE_NAME.fullmatch(pipeline.name):
        yield Problem(
            f"the name of the pipeline, '{pipeline.name}', may have letters, digits, '.', '_' and '-', up to 100 of "
            "them. Set it with `name`.",
            pipeline.place,
        )
    if not pipeline.views:
        yield Problem("the pipeline has no sources", pipeline.place)
    if len(pipeline.views) + len(pipeline.sinks) > PARTS_MAX:
        yield Problem(f"the pipeline has more than {PARTS_MAX} sources, steps and sinks: split it", pipeline.place)
    seen: dict[str, str] = {}
    parts: tuple[tuple[str, Iterable[Source | Step | Sink]], ...] = (
        ("source", pipeline.sources),
        ("step", pipeline.steps),
        ("sink", pipeline.sinks),
    )
    for kind, entries in parts:
        seen = {} if kind == "sink" else seen  # a sink may have the name of its view
        for entry in entries:
            lowered = entry.name.lower()
            if not _NAME.fullmatch(entry.name):
                fixed = re.sub(r"\W", "_", entry.name, flags=re.ASCII)
                hint = f": write {fixed}" if _NAME.fullmatch(fixed) else ""
                message = (
                    f"{kind} '{entry.name}': a name has letters, digits and '_', and does not start with a digit{hint}"
                )
                yield Problem(message, entry.place)
            elif lowered in _RESERVED and kind != "sink":
                yield Problem(f"{kind} '{entry.name}': the word is reserved, choose another name", entry.place)
            elif lowered in seen:
                yield Problem(f"{kind} {entry.name} has the same name as {seen[lowered]}: choose another", entry.place)
            seen[lowered] = f"{kind} {entry.name}"


def _connectors(checked: Checked) -> Iterator[Problem]:
    for source in checked.pipeline.sources:
        yield from _part(checked, source, f"source {source.name}", is_source=True)
    for sink in checked.pipeline.sinks:
        yield from _part(checked, sink, f"sink {sink.name}", is_source=False)


def _part(checked: Checked, part: Source | Sink, owner: str, *, is_source: bool) -> Iterator[Problem]:
    if not part.connector:  # the door has said so
        return
    place = part.places.get("connector", part.place)
    try:
        connector = checked.lookup(part.connector)
    except ConfigError as error:
        yield Problem(f"{owner}: {error}", place)
        return
    table = connector.source_options if is_source else connector.sink_options
    if table is None:
        yield Problem(f"{owner}: connector {part.connector} cannot be a {'source' if is_source else 'sink'}", place)
        return
    table += SOURCE_OPTIONS if is_source else SINK_OPTIONS
    own = (SOURCE if is_source else SINK).names
    wrong = [*_references(part.options, owner), *table.check(part.options, owner, part.place, also=own)]
    yield from wrong
    if not wrong:  # connectors may rely on their tables
        for problem in connector.check(part.options, is_source=is_source) or ():
            _refuse_other_than_problems(problem, part.connector)
            yield replace(problem, message=f"{owner}: {problem.message}", place=problem.place or part.place)


def _refuse_other_than_problems(found: object, connector: str) -> None:
    """Connectors are also written by others, and nothing checks the types of their code."""
    if not isinstance(found, Problem):
        wrong = f"{found!r}, which is not a Problem"
    elif not isinstance(found.place, Place | None):
        wrong = f"a Problem whose place is {found.place!r}"
    else:
        return
    raise ConfigError(
        f"connector {connector}: its `check` yields {wrong}: "
        'yield Problem("what is wrong", options["name"].place), with the name of an option'
    )


def _references(options: Mapping[str, Given], owner: str) -> Iterator[Problem]:
    for name, given in options.items():
        if (mistake := reference_mistake(given.value)) is not None:
            yield Problem(f"{owner}: {name}: {mistake}", given.place)


def _schemas(checked: Checked) -> Iterator[Problem]:
    for source in checked.pipeline.sources:
        schema = source.options.get("schema")
        if schema is not None and _has_ddl(source):
            try:
                schema_columns(schema.value)
            except ValueError as error:
                yield Problem(f"source {source.name}: schema: {error}", schema.place)
                continue
        columns, watermark = checked.columns(source.name), _watermark(source)
        if columns is None or watermark is None:
            continue
        place = source.options["watermark"].place
        types = {column.name.lower(): column.type for column in columns}
        found = types.get(watermark.column.partition(".")[0].lower())
        if found is None:
            hint = options_hint(watermark.column, tuple(column.name for column in columns), "Its columns are")
            yield Problem(f"source {source.name}: watermark: there is no column '{watermark.column}'{hint}", place)
        elif "." not in watermark.column and not found.startswith("timestamp"):
            message = f"column {watermark.column} is {found.upper()}: event time must be a TIMESTAMP"
            yield Problem(f"source {source.name}: watermark: {message}", place)


def _steps(checked: Checked) -> Iterator[Problem]:
    known = {name.lower(): name for name in checked.view_names}
    before = {source.name.lower() for source in checked.pipeline.sources}
    for step in checked.pipeline.steps:
        for name, place in _reads(step):
            found = known.get(name.lower())
            if found is None or (step.sql is None and found != name):  # Python's names have a case
                others = tuple(view for view in checked.view_names if view != step.name)
                hint = _hint_of(name, others)
                own = f" Write a table of Spark's catalog with its database: default.{name}." if step.sql else ""
                yield Problem(f"step {step.name} reads '{name}', which is not a source or step{hint}{own}", place)
            elif found.lower() not in before:
                yield Problem(_too_early(checked.pipeline, step.name, found), place)
        if step.sql is not None and (mistake := query_mistake(step.sql) or missing_from(step.sql)) is not None:
            yield Problem(f"step {step.name}: {mistake.message}", step.place_in_text(mistake.position))
        before.add(step.name.lower())


def _reads(step: Step) -> Iterator[tuple[str, Place | None]]:
    """The views that a step names, each once, and where."""
    if step.sql is None:
        yield from ((name, step.text_place or step.place) for name in step.inputs if name != "spark")
        return
    seen = set()
    for table in table_names(step.sql):
        if not table.is_qualified and table.name.lower() not in seen:
            seen.add(table.name.lower())
            yield table.name, step.place_in_text(table.position)


def _too_early(pipeline: Pipeline, step: str, view: str) -> str:
    if step == view:
        return f"step {step} reads itself"
    if step in pipeline.needed_by(view):
        return f"steps {step} and {view} depend on each other: one of them must not read the other"
    return f"step {step} reads step {view}, which comes after it: move {view} up"


def _sinks(checked: Checked) -> Iterator[Problem]:
    for sink in checked.pipeline.sinks:
        place = sink.places.get("from", sink.place)
        if not sink.view:
            views = ", ".join(checked.view_names)
            yield Problem(
                f"sink {sink.name} needs `from`: the view that it writes{views and f', one of {views}'}", place
            )
        elif sink.view not in checked.view_names:
            hint = _hint_of(sink.view, checked.view_names)
            yield Problem(f"sink {sink.name}: from '{sink.view}' is not a source or step{hint}", place)
        if sink.mode not in MODES:
            hint = options_hint(sink.mode, MODES, "Modes are")
            yield Problem(f"sink {sink.name} has no mode '{sink.mode}'{hint}", sink.places.get("mode", sink.place))
            continue
        modes = checked.modes(sink)
        if sink.mode not in modes:
            message = f"sink {sink.name}: connector {sink.connector} has no mode {sink.mode}: use {' or '.join(modes)}"
            yield Problem(message, sink.places.get("mode", sink.place))


def _modes(checked: Checked) -> Iterator[Problem]:
    for sink in checked.pipeline.sinks:
        yield from _mode(checked.pipeline, sink)


def _mode(pipeline: Pipeline, sink: Sink) -> Iterator[Problem]:
    """What Spark would refuse when the query starts. Python steps may do anything, so nothing is said about them."""
    needed = pipeline.needed_by(sink.view)
    steps = [step for step in pipeline.steps if step.name in needed]
    if any(step.sql is None for step in steps):
        return
    if not pipeline.sources_of(sink.view) and steps and not table_names(steps[0].sql or ""):
        message = f"step {steps[0].name} reads no source or step: a sink cannot write what is no stream"
        yield Problem(message, steps[0].text_place or steps[0].place)
        return
    if not any(map(_is_stream, pipeline.sources_of(sink.view))):
        message = f"sink {sink.name}: '{sink.view}' is not a stream: at least one of its sources must not be static"
        yield Problem(message, sink.places.get("from", sink.place))
        return
    queries = {step.name: step.sql for step in steps if step.sql is not None}
    place = sink.places.get("mode", sink.place)
    if sink.mode == "complete" and not any(map(aggregates, queries.values())):
        yield Problem(
            f"sink {sink.name}: mode complete writes all groups in each batch, but no step groups rows. "
            "Use append or update.",
            place,
        )
    if sink.mode != "append" or any(map(sets_watermark, queries.values())):
        return
    for name, sql in queries.items():
        sources = [source for source in pipeline.sources_of(name) if _is_stream(source)]
        if groups(sql) and sources and not any("watermark" in source.options for source in sources):
            names = " or ".join(source.name for source in sources)
            yield Problem(
                f"sink {sink.name}: in mode append, the groups of step {name} are written when their time is over, "
                f"and without a watermark it never is. Add `watermark` to source {names}, or use mode update.",
                place,
            )
            return


def _is_stream(source: Source) -> bool:
    return not source.is_static


def _dead_letter_loops(checked: Checked) -> Iterator[Problem]:
    """One bad record is enough to fill the topic."""
    given = checked.pipeline.settings.get(DEAD_LETTERS)
    if given is None:
        return
    for source in checked.pipeline.sources:
        topic = source.options.get("topic") if source.connector == "topic" else None
        if topic is not None and topic.value == given.value and SERVERS not in source.options:
            yield Problem(
                f"settings: {DEAD_LETTERS}: source {source.name} reads the topic '{given.value}', so each dead letter "
                "would be a bad record again, without end: name another topic",
                given.place,
            )


def _shared_files(checked: Checked) -> Iterator[Problem]:
    seen: dict[Path, str] = {}
    for sink, path, place in _files_written_alone(checked.pipeline, checked.lookup):
        first = seen.setdefault(path, sink.name)
        if first != sink.name:
            message = f"sink {sink.name}: path: sink {first} writes to this file, too: give each a file of its own"
            yield Problem(message, place)


def _files_written_alone(pipeline: Pipeline, lookup: Lookup) -> Iterator[tuple[Sink, Path, Place | None]]:
    """Sinks that must be the only ones to write to their file, and where it is named."""
    for sink in pipeline.sinks:
        given = sink.options.get("path")
        if sink.connector and given is not None and not has_reference(given.value):
            try:
                is_alone = lookup(sink.connector).writes_alone
            except ConfigError:  # reported by another rule
                continue
            if is_alone:
                yield sink, Path(os.path.abspath(pipeline.folder / str(given.value))), given.place


def _expectations(checked: Checked) -> Iterator[Problem]:
    for expectation in checked.pipeline.expectations:
        owner, places = f"expectation {expectation.name}", expectation.places
        if expectation.view and expectation.view not in checked.view_names:
            hint = _hint_of(expectation.view, checked.view_names)
            where = places.get("view", expectation.place)
            yield Problem(f"{owner}: view '{expectation.view}' is not a source or step{hint}", where)
        if (mistake := expression_mistake(expectation.condition)) is not None:
            yield Problem(f"{owner}: condition: {mistake.message}", places.get("condition", expectation.place))
        if expectation.action is Action.DEAD_LETTER and nearest(DEAD_LETTERS, checked.pipeline.settings) is None:
            yield Problem(
                f"{owner}: action dead-letter needs a topic: set `{DEAD_LETTERS}` in the settings",
                places.get("action", expectation.place),
            )


def _tests(checked: Checked) -> Iterator[Problem]:
    sources = tuple(source.name for source in checked.pipeline.sources)
    results = (*checked.view_names, *(sink.name for sink in checked.pipeline.sinks))
    names: set[str] = set()
    for case in checked.pipeline.tests:
        if case.name in names:
            yield Problem(f"there are two tests '{case.name}': give one another name", case.place)
        names.add(case.name)
        for name in case.given:
            if name not in sources:
                is_step = name in checked.view_names
                what = "is a step: give rows to sources" if is_step else f"is not a source{_hint_of(name, sources)}"
                yield Problem(f"test '{case.name}': given: {name} {what}", place_of(case.given, name, case.place))
        for name in case.expect:
            if name not in results:
                message = f"test '{case.name}': expect: {name} is not a source, step or sink{_hint_of(name, results)}"
                yield Problem(message, place_of(case.expect, name, case.place))
        yield from _test_columns(checked, case)


def _test_columns(checked: Checked, case: Case) -> Iterator[Problem]:
    tables = [("given", name, [row for batch in batches for row in batch]) for name, batches in case.given.items()]
    tables += [("expect", name, list(rows)) for name, rows in case.expect.items()]
    for part, name, rows in tables:
        columns = checked.columns(name)
        if columns is None:
            continue
        known = tuple(column.name for column in columns)
        lowered = {column.lower() for column in known}
        for row in rows:
            for column in row:
                if column.lower() not in lowered:
                    hint = options_hint(column, known, "Its columns are")
                    message = f"test '{case.name}': {part}: {name} has no column '{column}'{hint}"
                    yield Problem(message, place_of(row, column, case.place))


def _hint_of(name: str, known: tuple[str, ...]) -> str:
    return options_hint(name, known, "There are")


def _settings(checked: Checked) -> Iterator[Problem]:
    settings = checked.pipeline.settings
    yield from _references(settings, "settings")
    yield from SETTINGS.check(settings, "settings", None)


def _has_ddl(source: Source) -> bool:
    """Schemas of Avro and Protobuf have languages of their own; a reference is unknown until the start."""
    schema = source.options["schema"].value
    formats = source.options.get("format", Given("")).value
    return (
        isinstance(schema, str) and formats not in ("avro", "protobuf") and not schema.lstrip().startswith(("{", "$"))
    )


def _watermark(source: Source) -> Watermark | None:
    try:
        return Watermark.parse(source.options["watermark"].value) if "watermark" in source.options else None
    except ValueError:
        return None


_RULES: tuple[Rule, ...] = (_connectors, _schemas, _settings)
_RULES_OF_NAMES: tuple[Rule, ...] = (_steps, _sinks, _expectations, _tests)  # they look up views by name
_RULES_OF_QUERIES: tuple[Rule, ...] = (_modes, _dead_letter_loops, _shared_files)  # what would fail when it runs
