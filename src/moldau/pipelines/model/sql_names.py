"""What a SQL text says without Spark: which tables it reads, whether it groups, quotes and parentheses left open.

Spark checks the text when the pipeline is built. This is for lint and the graph, which start no Spark, so it only has
to know comments, quotes and where names of tables stand: after FROM and JOIN, if they are not its own CTEs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from moldau.config.keys import nearest

_TOKEN = re.compile(
    r"""
    (?P<skip>--[^\n]*|/\*.*?\*/|[rR](?:'[^']*'|"[^"]*")|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*"|\s+)
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
    ]
)
# `extract(YEAR FROM at)`: no table follows.
_FUNCTIONS_WITH_FROM = frozenset(["extract", "trim", "substring", "substr", "overlay", "position"])


_QUERIES = ("select", "with", "from", "values")
_PAIRS = {")": "(", "]": "["}
_AGGREGATES = frozenset(
    [
        *("count", "count_if", "sum", "avg", "mean", "min", "max", "min_by", "max_by", "first", "last", "any_value"),
        *("collect_list", "collect_set", "array_agg", "listagg", "string_agg", "stddev", "variance", "median"),
        *("approx_count_distinct", "approx_percentile", "percentile", "bool_and", "bool_or", "every", "some", "mode"),
    ]
)


class Mistake(NamedTuple):
    message: str
    position: int  # in the text


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


def views_read(sql: str, views: Iterable[str]) -> tuple[str, ...]:
    """Those of these views that a text reads, each once. Names in SQL have no case."""
    known = {name.lower(): name for name in views}
    names = [known.get(table.name.lower()) for table in table_names(sql) if not table.is_qualified]
    return tuple(dict.fromkeys(name for name in names if name is not None))


def groups(sql: str) -> bool:
    """Whether it has a GROUP BY."""
    return ("group", "by") in _pairs(sql)


def aggregates(sql: str) -> bool:
    """Whether rows are grouped or aggregated. An aggregate function over a window of rows (OVER) looks the same."""
    return groups(sql) or any(word in _AGGREGATES and after == "(" for word, after in _pairs(sql))


def _pairs(sql: str) -> list[tuple[str, str]]:
    return list(itertools.pairwise(token.word for token in _tokens(sql)))


def sets_watermark(sql: str) -> bool:
    """Spark's SQL has a WATERMARK clause."""
    return any(token.word == "watermark" for token in _tokens(sql))


def query_mistake(sql: str) -> Mistake | None:
    """Why this cannot be a query, as far as it shows without Spark."""
    first = next(_tokens(sql), None)
    if first is None:
        return Mistake("the query is empty", 0)
    if first.word not in (*_QUERIES, "("):
        meant = nearest(first.word, _QUERIES)
        hint = f": did you mean {meant.upper()}?" if meant else ": it begins with SELECT, WITH, FROM or VALUES"
        return Mistake(f"'{first.text}' does not begin a query{hint}", first.position)
    return expression_mistake(sql)


def missing_from(sql: str) -> Mistake | None:
    """A misspelt FROM (`SELECT * FORM clicks`): there is none, and a word much like it stands before a name."""
    tokens = list(_tokens(sql))
    if {"from", "values", "table"} & {token.word for token in tokens}:
        return None
    for token, after in itertools.pairwise(tokens):
        is_like = sorted(token.word) == sorted("from") or nearest(token.word, ["from"]) is not None
        if token.is_name and after.is_name and after.word not in _END_OF_LIST and is_like:
            return Mistake(f"reads no source or step: '{token.text}': did you mean FROM?", token.position)
    return None


def expression_mistake(sql: str) -> Mistake | None:
    """A quote or parenthesis that is not closed, or closed without being open."""
    opened: list[_Token] = []
    for token in _tokens(sql):
        if token.text in ("'", '"', "`"):
            return Mistake(f"the quote {token.text} is never closed", token.position)
        if token.text in _PAIRS.values():
            opened.append(token)
        elif token.text in _PAIRS and (not opened or opened.pop().text != _PAIRS[token.text]):
            return Mistake(f"there is no '{_PAIRS[token.text]}' for this '{token.text}'", token.position)
    return Mistake(f"the '{opened[-1].text}' is never closed", opened[-1].position) if opened else None


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
            is_table = level.is_table_next and (at + 1 >= len(tokens) or tokens[at + 1].word not in _QUERIES)
            level.is_table_next = False
            levels.append(_Level(tokens[at - 1].word if at else "", is_table, is_table))
        elif token.text == ")":
            del levels[max(len(levels) - 1, 1) :]
        elif token.word in ("from", "join"):
            before = tokens[at - 1].word if at else ""
            if before != "distinct" and level.function not in _FUNCTIONS_WITH_FROM:
                level.is_in_list = level.is_table_next = True
        elif token.text == ",":
            level.is_table_next = level.is_in_list
        elif level.is_table_next and token.is_name and not _precedes_table(tokens, at):
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


def _precedes_table(tokens: list[_Token], at: int) -> bool:
    """LATERAL, and STREAM before a name: `FROM STREAM clicks`, `FROM STREAM(clicks)`."""
    if tokens[at].word != "stream" or at + 1 == len(tokens):
        return tokens[at].word == "lateral"
    after = tokens[at + 1]
    return after.text == "(" or (after.is_name and after.word not in _END_OF_LIST and after.word != "as")


def _tokens(sql: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(sql):
        if match.lastgroup != "skip":
            yield _Token(match[0], match.start(), match.lastgroup == "name")
