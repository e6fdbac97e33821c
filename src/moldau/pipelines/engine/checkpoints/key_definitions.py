"""What a column of a plan is computed from: `u` is `upper(clicks.user)`, however it is called on the way.

Keys of a stateful operator are compared by this, because Spark compares only their types. Names of columns, the ids
that Spark gives them, filters and columns that are not keys make no difference. A key that comes from a union has one
definition for each of its branches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice, product
from typing import Any

from moldau.pipelines.engine.internals import items

_ID = re.compile(r"#(\d+)L?")
# What is another with each start: ids of columns, addresses of objects, the time zone of the machine, seeds.
_PASSING = re.compile(r"#\d+L?(-T\d+ms)?|@[0-9a-f]{5,8}\b|,? ?Some\([^()]*\)")
_SEED = re.compile(r"-?\d{10,}")
_CLOCK = re.compile(r"\b(?:current_date|current_timestamp|current_time|localtimestamp|now|unix_timestamp)\(")
_NUMBERS = re.compile(r"\d[\d:.\- ]*")  # among them what Spark has made of the time
_SOURCE = re.compile(r'name="([^"]+)"')
_ALTERNATIVES_MAX = 64  # of the branches of unions that meet in one expression

_TIME = r"precisetimestampconversion\((?P<at>(?:(?!precisetimestampconversion).)+?), Timestamp\w*, LongType\)"
_WINDOW = re.compile(
    rf"named_struct\(start, .*?\({_TIME} - (?P<offset>-?\d+)\) % (?P<slide>\d+)\).*"
    r"\+ (?P<length>\d+)\), LongType, Timestamp\w*\)+"
)
_SESSION = re.compile(
    rf"named_struct\(start, precisetimestampconversion\({_TIME}.*?(?P=at) \+ (?P<gap>.+?)"
    r", Timestamp\w*, LongType\), LongType, Timestamp\w*\)+"
)


class KeyDefinitions:
    """Of the columns of one query."""

    def __init__(self, analyzed: Any) -> None:
        # Only the analyzed plan knows the names of sources. If one is read twice, the query runs without their names.
        leaves = list(_sources(_Node(analyzed)))
        are_named = len({leaf.source for leaf in leaves}) == len(leaves)
        self._sources = {column: leaf.source for leaf in leaves if are_named for column in leaf.columns}
        self._has_clock = _CLOCK.search(analyzed.toString()) is not None

    def of(self, key: Any, operator: Any) -> tuple[str, ...]:
        """What an expression of this operator is; several definitions only if there is a union below it."""
        return tuple(
            sorted({_shown(text, has_clock=self._has_clock) for text in self._expand(key, _Node(operator).children)})
        )

    def _expand(self, expression: Any, below: tuple[_Node, ...]) -> set[str]:
        found = [(str(each.toString()), self._define(each, below)) for each in items(expression.references())]
        found.sort(key=lambda pair: -len(pair[0]))  # `a#12` before `a#1`
        text, names = str(expression.toString()), [name for name, _ in found]
        if not expression.deterministic():
            text = _SEED.sub("", text)
        combined = islice(product(*(sorted(definitions) for _, definitions in found)), _ALTERNATIVES_MAX)
        return {_replaced(text, names, definitions) for definitions in combined}

    def _define(self, attribute: Any, below: tuple[_Node, ...]) -> set[str]:
        column, name = int(attribute.exprId().id()), str(attribute.name())
        node = next((node for node in below if column in node.columns), None)
        return {name} if node is None else self._define_in(node, column, name)

    def _define_in(self, node: _Node, column: int, name: str) -> set[str]:
        if node.kind == "UnionExec":
            at = node.columns.index(column)
            return set().union(*(self._define_in(child, child.columns[at], name) for child in node.children))
        for child in node.children:
            if column in child.columns:
                return self._define_in(child, column, name)
        expression = node.definition(column)
        if expression is not None:
            return self._expand(expression, node.children)
        source = self._sources.get(column)
        return {f"{source}.{name}" if source else name}


class _Node:
    """Of a plan. A call of Spark's JVM takes a while, so what it answers is kept."""

    def __init__(self, plan: Any) -> None:
        self._plan = plan

    @cached_property
    def kind(self) -> str:
        return str(self._plan.getClass().getSimpleName())

    @cached_property
    def columns(self) -> list[int]:
        """Their ids."""
        return _ids(self._plan.output())

    @cached_property
    def children(self) -> tuple[_Node, ...]:
        return tuple(_Node(child) for child in items(self._plan.children()))

    @cached_property
    def source(self) -> str:
        """The name of the source, if this is one."""
        found = _SOURCE.search(self._plan.simpleString(1000)) if not self.children else None
        return found[1] if found else ""

    def definition(self, column: int) -> Any:
        """The expression that makes the column; None if it is not made of others in a way that can be told."""
        if self.kind == "ExpandExec":  # sliding windows: one projection for each
            return self._plan.projections().head().apply(self.columns.index(column))
        if self.kind == "GenerateExec":
            return self._plan.generator()
        if self.kind in ("BatchEvalPythonExec", "ArrowEvalPythonExec"):
            return self._plan.udfs().apply(_ids(self._plan.resultAttrs()).index(column))
        for expression in items(self._plan.expressions()):
            if expression.getClass().getSimpleName() == "Alias" and int(expression.exprId().id()) == column:
                return expression.child()
        return None


def _sources(node: _Node) -> Iterator[_Node]:
    for child in node.children:
        yield from _sources(child)
    if node.source:
        yield node


def _ids(columns: Any) -> list[int]:
    return [int(found) for found in _ID.findall(columns.mkString("\n"))]


def _replaced(text: str, names: list[str], definitions: tuple[str, ...]) -> str:
    for name, definition in zip(names, definitions, strict=True):
        text = text.replace(name, definition)
    return _PASSING.sub("", text)


def _shown(text: str, *, has_clock: bool) -> str:
    """Windows as in SQL. The fields of a topic's records are columns to their readers."""
    text = text.replace(".value.", ".")
    if match := _WINDOW.fullmatch(text):
        slide = f", sliding by {_duration(match['slide'])}" if match["slide"] != match["length"] else ""
        offset = f", offset {_duration(match['offset'])}" if match["offset"] != "0" else ""
        return f"window({match['at']}, {_duration(match['length'])}{slide}{offset})"
    if match := _SESSION.fullmatch(text):
        return f"session_window({match['at']}, {match['gap']})"
    return _NUMBERS.sub("…", text) if has_clock else text


def _duration(micros: str) -> str:
    value = int(micros)
    return f"{value // 1_000_000} s" if value % 1_000_000 == 0 else f"{value / 1000:g} ms"


def without_sources(text: str, names: Iterable[str]) -> str:
    """A definition without the names of these sources, for those that were renamed."""
    pattern = "|".join(map(re.escape, names))
    return re.sub(rf"\b(?:{pattern})\.", "", text) if pattern else text
