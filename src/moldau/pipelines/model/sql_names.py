"""Which tables a SQL text reads, found without Spark: the names after FROM and JOIN that are not its own CTEs.

Spark checks the text when the pipeline is built. This is for lint and the graph, which start no Spark, so it only has
to know comments, quotes and where names of tables stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

_TOKEN = re.compile(
    r"""
    (?P<skip>--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*"|\s+)
  | (?P<name>`(?:[^`]|``)*`|[A-Za-z_][\w]*)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_END_OF_LIST = frozenset(
    [
        "where",
        "group",
        "order",
        "having",
        "limit",
        "union",
        "intersect",
        "except",
        "on",
        "using",
        "join",
        "inner",
        "left",
        "right",
        "full",
        "cross",
        "lateral",
        "natural",
        "window",
        "sort",
        "distribute",
        "cluster",
        "select",
        "semi",
        "anti",
        "tablesample",
        "pivot",
        "unpivot",
    ]
)
# `extract(YEAR FROM at)`: no table follows.
_FUNCTIONS_WITH_FROM = frozenset(["extract", "trim", "substring", "substr", "overlay", "position"])


class TableName(NamedTuple):
    name: str
    position: int  # in the text
    is_qualified: bool = False  # `catalog.table`: a table of Spark's, not a view of the pipeline


class _Token(NamedTuple):
    text: str
    position: int
    is_name: bool

    @property
    def word(self) -> str:
        return self.text.lower() if self.is_name and not self.text.startswith("`") else self.text


def table_names(sql: str) -> tuple[TableName, ...]:
    """Tables in the order of the text, without its common table expressions."""
    tokens = list(_tokens(sql))
    ctes = {
        tokens[at].text.strip("`").lower()
        for at in range(len(tokens) - 2)
        if tokens[at].is_name and _opens_cte(tokens, at + 1)
    }
    return tuple(found for found in _tables(tokens) if found.is_qualified or found.name.lower() not in ctes)


def _opens_cte(tokens: list[_Token], at: int) -> bool:
    """`name AS (`, or `name (a, b) AS (`."""
    if tokens[at].text == "(":
        while at < len(tokens) and tokens[at].text != ")":
            at += 1
        at += 1
    words = [token.word for token in tokens[at : at + 3]]
    return words[:2] == ["as", "("] and words[2:] in (["select"], ["with"], ["values"], ["from"])


@dataclass(slots=True)
class _Level:
    """One level of parentheses."""

    function: str = ""  # the word before the parenthesis
    is_in_list: bool = False  # between FROM and the next clause: a comma begins another table
    is_table_next: bool = False


def _tables(tokens: list[_Token]) -> Iterator[TableName]:
    levels = [_Level()]
    at = 0
    while at < len(tokens):
        token, level = tokens[at], levels[-1]
        if token.text == "(":
            level.is_table_next = False
            levels.append(_Level(tokens[at - 1].word if at else ""))
        elif token.text == ")":
            del levels[max(len(levels) - 1, 1) :]
        elif token.word in ("from", "join"):
            before = tokens[at - 1].word if at else ""
            if before != "distinct" and level.function not in _FUNCTIONS_WITH_FROM:
                level.is_in_list = level.is_table_next = True
        elif token.text == ",":
            level.is_table_next = level.is_in_list
        elif level.is_table_next and token.is_name and token.word != "lateral":
            end = at
            while end + 2 < len(tokens) and tokens[end + 1].text == ".":
                end += 2
            is_call = end + 1 < len(tokens) and tokens[end + 1].text == "("
            if token.word != "values" and not is_call:
                name = ".".join(part.text.strip("`") for part in tokens[at : end + 1 : 2])
                yield TableName(name, token.position, end > at)
            level.is_table_next, at = False, end
        elif token.word in _END_OF_LIST:
            level.is_in_list = level.is_table_next = False
        at += 1


def _tokens(sql: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(sql):
        if match.lastgroup != "skip":
            yield _Token(match[0], match.start(), match.lastgroup == "name")
