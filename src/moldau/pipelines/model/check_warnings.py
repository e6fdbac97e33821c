"""What is probably not meant, in a pipeline that can run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from moldau.pipelines.model.checked import Checked, Rule
from moldau.pipelines.model.common_options import SETTINGS
from moldau.pipelines.model.kinds import has_reference
from moldau.pipelines.model.options import Given, OptionTable, is_secret
from moldau.pipelines.model.pipeline import Action, Sink, Source
from moldau.pipelines.model.places import Place, Problem, Severity, place_of

SERVERS = "kafka.bootstrap.servers"
# At the end of a name: `….credentials.provider` and `….tokenSecret.name` are not secret.
_SPARK_SECRET = re.compile(r"(password|secret\.?key|token)$", re.IGNORECASE)


def _unused(checked: Checked) -> Iterator[Problem]:
    pipeline = checked.pipeline
    if not pipeline.sinks:
        yield Problem("the pipeline has no sinks: it writes nothing", pipeline.place, Severity.WARNING)
        return
    ends = {sink.view for sink in pipeline.sinks}
    ends |= {each.view for each in pipeline.expectations if each.action is Action.DEAD_LETTER}  # has a query of its own
    used = set[str]().union(*map(pipeline.needed_by, ends))
    for name, view in pipeline.views.items():
        if name not in used:
            kind = "source" if isinstance(view, Source) else "step"
            yield Problem(f"{kind} {name} is not used by any sink", view.place, Severity.WARNING)


def _open_secrets(checked: Checked) -> Iterator[Problem]:
    pipeline = checked.pipeline
    yield from _secrets(pipeline.settings, SETTINGS, "settings")
    spark = pipeline.settings.get("spark", Given(None))
    for name, value in spark.value.items() if isinstance(spark.value, Mapping) else ():
        if _SPARK_SECRET.search(name) and not has_reference(value):
            yield _open_secret(f"settings: spark: {name}", place_of(spark.value, name, spark.place))
    for source in pipeline.sources:
        if source.connector:
            table = checked.lookup(source.connector).source_options or OptionTable()
            yield from _secrets(source.options, table, f"source {source.name}")
    for sink in pipeline.sinks:
        if sink.connector:
            table = checked.lookup(sink.connector).sink_options or OptionTable()
            yield from _secrets(sink.options, table, f"sink {sink.name}")


def _secrets(options: Mapping[str, Given], table: OptionTable, owner: str) -> Iterator[Problem]:
    for name, given in options.items():
        option = table.find(name)
        if (is_secret(name) or (option is not None and option.secret)) and not has_reference(given.value):
            yield _open_secret(f"{owner}: {name}", given.place)


def _open_secret(what: str, place: Place | None) -> Problem:
    return Problem(f"{what} is a secret: write a reference, such as ${{env:PASSWORD}}", place, Severity.WARNING)


def _spark_names(checked: Checked) -> Iterator[Problem]:
    given = checked.pipeline.settings.get("spark", Given(None))
    for name in given.value if isinstance(given.value, Mapping) else ():
        if not name.startswith("spark."):
            message = f"settings: spark: '{name}' is not a Spark setting: did you mean 'spark.{name}'?"
            yield Problem(message, place_of(given.value, name, given.place), Severity.WARNING)


def _loops(checked: Checked) -> Iterator[Problem]:
    for sink in checked.pipeline.sinks:
        for source in checked.pipeline.sources_of(sink.view):
            if sink.connector and sink.connector == source.connector and _is_same(checked, source, sink):
                message = f"sink {sink.name} writes what source {source.name} reads: the pipeline reads its own output"
                yield Problem(message, sink.place, Severity.WARNING)


def _is_same(checked: Checked, source: Source, sink: Sink) -> bool:
    identity = checked.lookup(sink.connector).identity

    def facts(part: Source | Sink) -> dict[str, object]:
        return {name: part.options[name].value for name in (*identity, SERVERS) if name in part.options}

    return facts(source) == facts(sink) and any(name in source.options for name in identity)


def _idle_watermarks(checked: Checked) -> Iterator[Problem]:
    for source in checked.pipeline.sources:
        if source.is_static and "watermark" in source.options:
            given = source.options["watermark"]
            message = f"source {source.name}: a watermark has no effect on a static source: remove it"
            yield Problem(message, given.key_place or given.place, Severity.WARNING)


WARNINGS: tuple[Rule, ...] = (
    _unused,
    _open_secrets,
    _spark_names,
    _loops,
    _idle_watermarks,
)
