"""What Spark says about wrong SQL, as a problem of the pipeline: whose it is, where in the file, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from moldau.config.keys import nearest
from moldau.errors import ConfigError, InvalidPipelineError
from moldau.pipelines.engine.reasons import reason_of
from moldau.pipelines.model.options import meant_word
from moldau.pipelines.model.pipeline import Expectation, Sink, Step
from moldau.pipelines.model.places import Place, Problem

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession

    from moldau.pipelines.connectors.base import Connector
    from moldau.pipelines.model.options import Value

_POSITION = re.compile(r"\s*\(line (\d+), pos (\d+)\)")
_NAME_PART = re.compile(r"`((?:[^`]|``)*)`")
_WORD = re.compile(r"[A-Za-z_]\w*")
_INTERNAL = "__"  # columns that the engine adds begin with it
_KEYWORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "DISTINCT", "VALUES", "WITH", "WINDOW", "OVER"),
    *("JOIN", "INNER", "OUTER", "LEFT", "RIGHT", "FULL", "CROSS", "SEMI", "ANTI", "USING", "LATERAL", "VIEW"),
    *("UNION", "INTERSECT", "EXCEPT", "AND", "NOT", "NULL", "LIKE", "BETWEEN", "CASE", "WHEN", "THEN", "ELSE", "END"),
    *("INTERVAL", "PARTITION", "EXISTS"),
)
_TWO_WORDS = {"GROUP": "GROUP BY", "ORDER": "ORDER BY", "PARTITION": "PARTITION BY"}


@contextmanager
def placed_errors(
    spark: SparkSession, owner: str, text: str, place_at: Callable[[int | None], Place | None]
) -> Iterator[None]:
    """Errors of Spark about this SQL become problems with a place. `owner` says whose SQL it is.

    `place_at` tells where a position in the text is in the file; for None, where the text is.
    """
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        position = _position(error, text)
        words, moved = _words(spark, error, text, position)
        message = reason_of(ConfigError(f"{owner}: {words}"))  # in one line, without secrets
        raise InvalidPipelineError([Problem(message, place_at(moved))]) from error


def step_errors(spark: SparkSession, step: Step) -> AbstractContextManager[None]:
    def place_at(position: int | None) -> Place | None:
        return step.place_in_text(position) if position is not None else step.text_place or step.place

    return placed_errors(spark, f"step {step.name}", step.sql or "", place_at)


def expectation_errors(spark: SparkSession, expectation: Expectation) -> AbstractContextManager[None]:
    place = expectation.places.get("condition", expectation.place)
    return placed_errors(spark, f"expectation {expectation.name}", expectation.condition, lambda _: place)


def check_sink_columns(frame: DataFrame, sink: Sink, connector: Connector, options: Mapping[str, Value]) -> None:
    """Expressions and columns among the options of a sink, before Spark sees them all at once. Raises ConfigError."""
    from pyspark.sql import functions as F  # noqa: N812

    if sink.batch_steps:  # the columns are known with each batch
        return
    for name in connector.sink_expressions:
        if name in options:
            owner, place = _option_of(sink, name)
            with placed_errors(frame.sparkSession, owner, options[name], partial(_always, place)):
                frame.select(F.expr(options[name]))
    known = {column.lower() for column in frame.columns}
    for name in connector.sink_columns:
        for column in options.get(name, ()):
            if column.lower() not in known:
                owner, place = _option_of(sink, name)
                raise InvalidPipelineError([Problem(f"{owner}: {_no_column(column, frame.columns)}", place)])


def _option_of(sink: Sink, name: str) -> tuple[str, Place | None]:
    given = sink.options.get(name)
    return f"sink {sink.name}: {name}", given.place if given is not None and given.place else sink.place


def _always(place: Place | None, _: int | None) -> Place | None:
    return place


def _words(spark: SparkSession, error: PySparkException, text: str, position: int | None) -> tuple[str, int | None]:
    """What is wrong, and the position of the word that is wrong."""
    condition, facts = error.getCondition() or "", error.getMessageParameters() or {}
    if condition.startswith("UNRESOLVED_COLUMN") and "objectName" in facts:
        return _no_column(facts["objectName"], _split(facts.get("proposal", ""))), position
    if condition == "UNRESOLVED_ROUTINE":
        name = facts["routineName"].replace("`", "")
        meant = _function_like(spark, name)
        return f"there is no function `{name}`" + (f": did you mean `{meant}`?" if meant else ""), position
    if condition == "PARSE_SYNTAX_ERROR" and position is not None and (slip := _misspelt(text, position)) is not None:
        return slip
    return _POSITION.sub("", reason_of(error)), position


def _no_column(name: str, columns: list[str]) -> str:
    """Names of Spark's may be qualified and quoted."""
    shown = [_plain(column) for column in columns if not _plain(column).startswith(_INTERNAL)]
    meant = meant_word(_plain(name), shown)
    hint = f": did you mean `{meant}`?" if meant else f". There are: {', '.join(shown)}." if shown else ""
    return f"column `{_plain(name)}` cannot be resolved{hint}"


def _plain(name: str) -> str:
    return ".".join(_NAME_PART.findall(name)[-1:]) or name


def _split(proposal: str) -> list[str]:
    return sorted(proposal.split(", ")) if proposal else []


def _function_like(spark: SparkSession, name: str) -> str | None:
    names = [row[0] for row in spark.sql("SHOW ALL FUNCTIONS").collect()]
    return nearest(name.lower(), names)


def _misspelt(text: str, position: int) -> tuple[str, int] | None:
    """A keyword with a slip is a name to Spark, which then stumbles over what follows."""
    words = [match for match in _WORD.finditer(text) if match.start() <= position][-2:]
    for word in words:
        if word[0].upper() not in _KEYWORDS and (meant := meant_word(word[0].upper(), _KEYWORDS)):
            near = " ".join(text[word.start() : _end_of_next(text, word.end())].split())
            return f"syntax error near '{near}': did you mean {_TWO_WORDS.get(meant, meant)}?", word.start()
    return None


def _end_of_next(text: str, after: int) -> int:
    following = _WORD.search(text, after)
    return following.end() if following and not text[after : following.start()].strip() else after


def _position(error: PySparkException, text: str) -> int | None:
    """Where in the text Spark found the error."""
    if match := _POSITION.search(str(error)):
        return sum(len(line) + 1 for line in text.split("\n")[: int(match[1]) - 1]) + int(match[2])
    for context in error.getQueryContext() or ():
        start = context.startIndex() if context.contextType().name == "SQL" else -1
        if start >= 0 and context.objectType() != "VIEW":
            return start
    return None
