"""What a query is, as far as its checkpoint depends on it: sources, stateful operators, sinks, output mode.

It is kept beside Spark's checkpoint, in `moldau.json`, and compared with the pipeline at each start (`changes`). Of a
value that came from a reference (`${env:…}`) only a hash is kept, which takes a while to compute and has a salt of the
checkpoint's own, so that a weak secret is not guessed from it. Of what else may change, such as the SQL of a step,
there is a hash, too: it is only said that it has changed.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.engine.checkpoints.key_definitions import KeyDefinitions
from moldau.pipelines.engine.internals import items
from moldau.pipelines.model.kinds import has_reference
from moldau.pipelines.model.options import is_secret, value_text
from moldau.pipelines.model.pipeline import Expectation, Sink, Source
from moldau.pipelines.model.references import resolve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from moldau.pipelines.engine.queries import QueryPlan

# Stateful operators of Spark's physical plan: what users call them, and where their keys and values are.
_OPERATORS: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "StateStoreSaveExec": ("aggregation", ("keyExpressions",), ("child",)),
    "SessionWindowStateStoreSaveExec": ("session window", ("keyWithoutSessionExpressions",), ("child",)),
    "StreamingDeduplicateExec": ("deduplication", ("keyExpressions",), ()),
    "StreamingDeduplicateWithinWatermarkExec": ("deduplication within the watermark", ("keyExpressions",), ()),
    "StreamingSymmetricHashJoinExec": ("stream-stream join", ("leftKeys", "rightKeys"), ("left", "right")),
    "StreamingGlobalLimitExec": ("limit", (), ()),
    "FlatMapGroupsWithStateExec": ("stateful function", ("groupingAttributes",), ()),
    "FlatMapGroupsInPandasWithStateExec": ("stateful function in Python", ("groupingAttributes",), ()),
    "TransformWithStateExec": ("transformWithState", ("groupingAttributes",), ()),
    "TransformWithStateInPySparkExec": ("transformWithState in Python", ("groupingAttributes",), ()),
}
# What else decides what the state means, by the name of its getter.
_ESSENTIAL: Mapping[str, str] = {
    "StreamingSymmetricHashJoinExec": "joinType",
    "FlatMapGroupsWithStateExec": "timeoutConf",
    "FlatMapGroupsInPandasWithStateExec": "timeoutConf",
    "TransformWithStateExec": "timeMode",
    "TransformWithStateInPySparkExec": "timeMode",
}
_MAYBE_STATEFUL = re.compile(r"Aggregate|Deduplicate|Join|Distinct|Limit|WithState|Session|Except|Intersect")
_EXPRESSION_ID = re.compile(r"#\d+L?(-T\d+ms)?|plan_id=\d+|, state info \[[^\]]*\]")


@dataclass(frozen=True)
class Part:
    """A source or a sink."""

    connector: str
    options: Mapping[str, str] = field(default_factory=dict)  # those that say what is read or written
    watermark: str = ""


@dataclass(frozen=True)
class Operator:
    """A stateful operator. Spark accepts its state again if the types are the same, whatever the keys are."""

    kind: str
    keys: tuple[str, ...]  # types
    values: tuple[str, ...]
    detail: str  # as in Spark's plan
    definitions: tuple[tuple[str, ...], ...] = ()  # of each key, see `key_definitions`; none: not known
    essential: str = ""  # the kind of join or of time

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Operator:
        return cls(
            value["kind"],
            tuple(value["keys"]),
            tuple(value["values"]),
            value["detail"],
            tuple(tuple(each) for each in value.get("definitions", ())),
            value.get("essential", ""),
        )


@dataclass(frozen=True)
class Identity:
    pipeline: str
    query: str
    mode: str
    sources: Mapping[str, Part]
    sinks: Mapping[str, Part]
    operators: tuple[Operator, ...] = ()
    texts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # "step good" → what of it → hash

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Identity:
        return cls(
            value["pipeline"],
            value["query"],
            value["mode"],
            {name: Part(**part) for name, part in value["sources"].items()},
            {name: Part(**part) for name, part in value["sinks"].items()},
            tuple(Operator.from_json(operator) for operator in value["operators"]),
            value.get("texts", {}),
        )

    @classmethod
    def of(cls, plan: QueryPlan, operators: Iterable[Operator], salt: str) -> Identity:
        """Identities are only compared if they have the same salt."""
        return cls(
            plan.pipeline.name,
            plan.name,
            plan.mode,
            {source.name: _part(plan, source, salt) for source in plan.sources},
            {sink.name: _part(plan, sink, salt) for sink in plan.sinks},
            tuple(operators),
            {owner: {name: _hash(text, salt) for name, text in texts.items()} for owner, texts in _texts_of(plan)},
        )


def _texts_of(plan: QueryPlan) -> Iterator[tuple[str, Mapping[str, str]]]:
    """What may change without harm to the checkpoint."""
    pipeline = plan.pipeline
    needed = pipeline.needed_by(plan.view)
    for step in pipeline.steps:
        if step.name in needed:
            yield f"step {step.name}", {"": " ".join(step.sql.split()) if step.sql is not None else _code(step.python)}
    for expectation in pipeline.expectations:
        if expectation.view in needed:
            yield owner_of(expectation), {"": expectation.condition}
    parts: tuple[Source | Sink, ...] = (*plan.sources, *plan.sinks)
    for part in parts:
        known = (*connector(part.connector, pipeline.folder).identity, "watermark")
        options = {name: given for name, given in part.options.items() if name not in known and not is_secret(name)}
        kind = "source" if isinstance(part, Source) else "sink"
        yield f"{kind} {part.name}", {name: value_text(given.value) for name, given in options.items()}


def owner_of(expectation: Expectation) -> str:
    return f"expectation {expectation.name} ({expectation.action.value})"


def _code(function: object) -> str:
    """The source of a step in Python: of its whole module, which may have functions that it calls."""
    try:
        if isinstance(function, str):
            return inspect.getsource(sys.modules[function.partition(":")[0]])
        return inspect.getsource(function)  # type: ignore[arg-type]
    except (OSError, TypeError, KeyError):
        return value_text(function)


def _part(plan: QueryPlan, part: Source | Sink, salt: str) -> Part:
    pipeline = plan.pipeline
    found = connector(part.connector, pipeline.folder)
    names = [name for name in found.identity if name in part.options]
    values = resolve({name: part.options[name] for name in names}, pipeline.folder)
    options = {name: _text(part.options[name].value, values[name].value, salt) for name in names}
    watermark = part.options.get("watermark") if isinstance(part, Source) else None
    return Part(part.connector, options, str(watermark.value) if watermark else "")


def _text(given: object, resolved: object, salt: str) -> str:
    return f"(hash {_slow_hash(str(resolved), salt)})" if has_reference(given) else value_text(given)


@lru_cache(maxsize=1000)
def _slow_hash(text: str, salt: str) -> str:
    if not salt:  # the checkpoint is from before there was one
        return hashlib.sha256(text.encode()).hexdigest()[:12]
    return hashlib.scrypt(text.encode(), salt=salt.encode(), n=2**14, r=8, p=1, dklen=6).hex()


def _hash(text: str, salt: str) -> str:
    return hashlib.sha256(f"{salt} {text}".encode()).hexdigest()[:12]


def stateful_operators(frame: DataFrame) -> Iterator[Operator]:
    """From the sources to the sink."""
    # Spark explains a stream only if its plan is resolved, which the plan of a SQL text is not.
    execution: Any = frame.select("*")._jdf.queryExecution()
    if not _MAYBE_STATEFUL.search(execution.analyzed().toString()):
        return
    planned = execution.queryExecutionForExplain()
    definitions = KeyDefinitions(planned.analyzed())
    yield from (_operator(node, definitions) for node in _stateful(planned.sparkPlan()))


def _stateful(node: Any) -> Iterator[Any]:
    for child in items(node.children()):
        yield from _stateful(child)
    if node.getClass().getSimpleName() in _OPERATORS:
        yield node


def _operator(node: Any, definitions: KeyDefinitions) -> Operator:
    name = node.getClass().getSimpleName()
    kind, key_names, value_names = _OPERATORS[name]
    keys = [key for names in key_names for key in items(getattr(node, names)())]
    sessions = [node.sessionExpression()] if name == "SessionWindowStateStoreSaveExec" else []
    schemas = [json.loads(getattr(node, child)().schema().json()) for child in value_names]
    children = [child.simpleString(200) for child in items(node.children())]
    return Operator(
        kind,
        tuple(_type(key.dataType().json()) for key in keys),
        tuple(
            f"{_type(column['type'])}{'?' * column['nullable']}" for schema in schemas for column in schema["fields"]
        ),
        _EXPRESSION_ID.sub("", " <- ".join([node.simpleString(200), *children])),
        tuple(definitions.of(key, node) for key in (*keys, *sessions)),
        str(getattr(node, _ESSENTIAL[name])().toString()) if name in _ESSENTIAL else "",
    )


def _type(value: Any) -> str:
    """Spark's JSON of a type, shorter and without metadata: struct<string,timestamp>."""
    value = json.loads(value) if isinstance(value, str) and value[:1] in ('"', "{") else value
    if isinstance(value, str):
        return value
    names = ("elementType", "keyType", "valueType")
    parts = [each["type"] for each in value.get("fields", ())] + [value[name] for name in names if name in value]
    return f"{value['type']}<{','.join(map(_type, parts))}>"
