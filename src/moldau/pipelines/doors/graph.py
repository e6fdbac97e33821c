"""A pipeline as a picture: a tree of text for each sink, or a flowchart for Mermaid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.model.common_options import DEAD_LETTERS
from moldau.pipelines.model.options import value_text
from moldau.pipelines.model.pipeline import Pipeline, Sink, Source, Step

_BRANCH, _LAST, _LINE, _GAP = "├── ", "└── ", "│   ", "    "


def text_graph(pipeline: Pipeline) -> str:
    """Each sink with the views it is made of below it. A view that was shown before is not shown again."""
    lines = [pipeline.name]
    shown: set[str] = set()
    for sink in pipeline.sinks:
        lines += ["", _sink_text(pipeline, sink), *_tree(pipeline, [sink.view], shown, "")]
    if loose := _unread(pipeline):
        lines += ["", "not written anywhere", *_tree(pipeline, loose, shown, "")]
    if DEAD_LETTERS in pipeline.settings:
        lines += ["", f"dead letters → topic {pipeline.settings[DEAD_LETTERS].value}"]
    return "\n".join(lines)


def mermaid_graph(pipelines: Sequence[Pipeline]) -> str:
    """One flowchart; each of several pipelines has a box of its own."""
    lines = ["flowchart LR"]
    for number, pipeline in enumerate(pipelines, 1):
        inside = list(_mermaid(pipeline, f"p{number}_" if len(pipelines) > 1 else ""))
        if len(pipelines) > 1:
            inside = [f'subgraph p{number}["{_escaped(pipeline.name)}"]', *(f"  {line}" for line in inside), "end"]
        lines += [f"  {line}" for line in inside]
    return "\n".join(lines)


def _tree(pipeline: Pipeline, views: Sequence[str], shown: set[str], indent: str) -> Iterator[str]:
    for number, name in enumerate(views, 1):
        is_last = number == len(views)
        view = pipeline.views[name]
        inputs = _inputs(pipeline, view)
        start = f"{indent}{_LAST if is_last else _BRANCH}{name}"
        if name in shown and inputs:
            yield f"{start}  (see above)"
            continue
        shown.add(name)
        facts = ", ".join(_facts(pipeline, view))
        yield f"{start}  {facts}" if facts else start
        yield from _tree(pipeline, inputs, shown, indent + (_GAP if is_last else _LINE))


def _mermaid(pipeline: Pipeline, prefix: str) -> Iterator[str]:
    for source in pipeline.sources:
        label = _label(source.name, _counterpart(pipeline, source))
        yield f'{prefix}view_{source.name}[("{label}")]'
    for step in pipeline.steps:
        yield f'{prefix}view_{step.name}["{_label(step.name, step_kind(step))}"]'
    for sink in pipeline.sinks:
        label = _label(sink.name, _counterpart(pipeline, sink))
        yield f'{prefix}sink_{sink.name}[/"{label}"/]'
    for step in pipeline.steps:
        for name in _inputs(pipeline, step):
            yield f"{prefix}view_{name} --> {prefix}view_{step.name}"
    for sink in pipeline.sinks:
        yield f"{prefix}view_{sink.view} --> {prefix}sink_{sink.name}"


def _facts(pipeline: Pipeline, view: Source | Step) -> Iterator[str]:
    if isinstance(view, Source):
        yield f"← {_counterpart(pipeline, view)}"
        if "watermark" in view.options:
            value = view.options["watermark"].value
            yield f"watermark {value if isinstance(value, str) else value['column']}"
    else:
        yield step_kind(view)
    for expectation in pipeline.expectations_of(view.name):
        yield f"expect {expectation.name} or {expectation.action.value}"


def step_kind(step: Step) -> str:
    """How a step is written, in a word or two."""
    if step.sql is not None:
        return "SQL"
    return f"Python {step.python if isinstance(step.python, str) else getattr(step.python, '__name__', '')}".rstrip()


def _sink_text(pipeline: Pipeline, sink: Sink) -> str:
    chosen = sink.options.get("processing.guarantee")
    guarantee = str(chosen.value) if chosen else connector(sink.connector, pipeline.folder).guarantee.value
    return f"{sink.name} → {_counterpart(pipeline, sink)}, {sink.mode}, {guarantee.replace('_', ' ')}"


def _counterpart(pipeline: Pipeline, part: Source | Sink) -> str:
    """The connector and what it reads or writes: "topic clicks". References stay as they are."""
    names = [name for name in connector(part.connector, pipeline.folder).identity if name in part.options]
    return " ".join([part.connector, *(value_text(part.options[name].value) for name in names)])


def _inputs(pipeline: Pipeline, view: Source | Step) -> list[str]:
    return [name for name in view.inputs if name in pipeline.views] if isinstance(view, Step) else []


def _unread(pipeline: Pipeline) -> list[str]:
    """Views that neither a sink nor another view needs."""
    read: set[str] = {sink.view for sink in pipeline.sinks}
    read.update(name for step in pipeline.steps for name in step.inputs)
    return [name for name in pipeline.views if name not in read]


def _label(name: str, text: str) -> str:
    return f"{_escaped(name)}<br/>{_escaped(text)}"


def _escaped(text: str) -> str:
    replaced: Iterable[tuple[str, str]] = (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;"))
    for character, code in replaced:
        text = text.replace(character, code)
    return text
