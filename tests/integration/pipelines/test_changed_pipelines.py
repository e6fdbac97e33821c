"""A pipeline is changed between two runs: what of its checkpoint is kept, and what is refused."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from moldau.pipelines.engine.checkpoints.identity import stateful_operators
from tests.integration.pipelines.changing import JOIN, UNION, WINDOWS, Changing
from tests.integration.pipelines.files import Output


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the engine said about the last start."""
    caplog.set_level(logging.WARNING, "moldau.pipelines.engine.checkpoints.checkpoint")

    def read() -> list[str]:
        messages = [record.getMessage().partition(": ")[2] for record in caplog.records]
        caplog.clear()
        return messages

    return read


def test_without_state_sources_come_and_go_and_each_record_is_read_once(
    changing: Changing, told: Callable[[], list[str]]
) -> None:
    output, other = (Output(changing.bootstrap, changing.topics[name]) for name in ("out", "other"))
    changing.send("1", 0, "a", "b", "c")
    changing.run(UNION)
    output.wait_for(*_pages("11"))
    assert told() == []
    changing.send("2", 1, "a", "b", "c")
    # Other order, a filter, and a source more, which starts with its first record.
    sql = "SELECT page FROM c UNION ALL SELECT page FROM b WHERE k > 0 UNION ALL SELECT page FROM a"
    changing.run(sql, "c b a")
    output.wait_for(*_pages("111222"))
    assert [text.partition(":")[0] for text in told()] == [
        "source c is new",
        "step s has changed, from the next record on",
    ]
    changing.send("3", 2, "a", "b", "c")
    changing.run("SELECT page FROM a UNION ALL SELECT page FROM c", "a c", sink="other")
    other.wait_for(*_pages("33"))
    gone, moved, _ = told()
    assert gone == "source b is gone: its offsets are forgotten"
    assert re.fullmatch(r"sink sink wrote to topic .* and now writes to topic .*, from the next batch on", moved)
    changing.send("4", 3, "a", "c")
    changing.run("SELECT page FROM a UNION ALL SELECT page FROM c", "a c", sink="other")
    other.wait_for(*_pages("3344"))
    assert told() == []
    changing.refuses("SELECT page FROM a UNION ALL SELECT page FROM c", "a c=b", "its offsets are not valid there")
    changing.refuses("SELECT DISTINCT page FROM a", "a", "kept state for nothing and now needs it for aggregation")
    assert output.read() == output.rows[:6]
    output.close()
    other.close()


def test_state_is_kept_while_its_types_are_the_same(changing: Changing, told: Callable[[], list[str]]) -> None:
    output = Output(changing.bootstrap, changing.topics["out"])
    changing.send("/1", 0, "a")
    changing.run(WINDOWS, "a")
    changing.send("/1", 0, "a", "b")
    changing.send("/2", 9, "a", "b")
    both = "SELECT page, count(*) AS n FROM (SELECT * FROM a WHERE k > 0 UNION ALL SELECT * FROM b)"
    both += " GROUP BY window(at, '1 minute'), page"
    changing.run(both, "a b", watermark="at 2 minutes", partitions=3)
    output.wait_for({"page": "/1", "n": 3})
    said = " ".join(told())
    for words in ("source b is new", "'at 1 minute' and is now 'at 2 minutes'", "spark.sql.shuffle.partitions stays 1"):
        assert words in said
    changing.send("/2", 9, "a")
    changing.run(both, "a b", mode="update")
    output.wait_for({"page": "/1", "n": 3}, {"page": "/2", "n": 3})
    assert any(text.startswith("the output mode was append and is now update") for text in told())
    for sql, words in {
        "SELECT page FROM a": "kept state for aggregation and now needs it for nothing",
        WINDOWS.replace("page", "k"): "the keys were .*a.page or b.page and are now .*a.k",
        WINDOWS.replace("count(*)", "count(*) AS x, max(k)"): "the types of the columns in the state were",
        WINDOWS.replace("window(", "session_window("): "now needs it for session window",
        "SELECT DISTINCT page, at FROM a": "now needs it for|the keys were",
    }.items():
        changing.refuses(sql, "a", words)
    output.close()


def test_other_keys_of_the_same_type_are_refused_and_equivalent_ones_are_not(
    changing: Changing, told: Callable[[], list[str]]
) -> None:
    """Spark would write old groups under the new name."""
    changing.send("/1", 0, "a")
    changing.run(WINDOWS, "a")
    assert told() == []
    for sql, words in {
        WINDOWS.replace("page", "user"): "the keys were .*a.page and are now .*a.user",
        WINDOWS.replace(", page", ", upper(page)").replace("page, c", "1, c"): "are now .*upper.a.page.",
        WINDOWS.replace(
            "window(at", "window(since"
        ): "window.a.at, 60 s., a.page and are now window.a.since, 60 s., a.page",
        WINDOWS.replace("1 minute", "2 minutes"): "are now window.a.at, 120 s., a.page",
        WINDOWS.replace("'1 minute'", "'1 minute', '20 seconds'"): "are now window.a.at, 60 s, sliding by 20 s.",
    }.items():
        changing.refuses(sql, "a", words)
    told()
    inner = "(SELECT at AS t, k, page AS p, user FROM a WHERE k > 0)"
    for sql in (
        f"SELECT p AS page, count(*) AS n FROM {inner} GROUP BY window(t, '1 minute'), p HAVING n > 0",
        "WITH x AS (SELECT * FROM a) " + WINDOWS.replace("FROM a", "FROM x"),
        WINDOWS.replace("FROM a", "FROM (SELECT * FROM b UNION ALL SELECT * FROM a)"),
    ):
        changing.run(sql, "a b" if "FROM b" in sql else "a")
    changing.run(WINDOWS.replace("FROM a", "FROM renamed"), "renamed=a")
    said = " ".join(told())
    assert "Groups that are open now mix old and new results" in said
    assert "source renamed is new" in said


def test_other_keys_of_sessions_are_refused(changing: Changing) -> None:
    sessions = "SELECT page, count(*) AS n FROM a GROUP BY session_window(at, '1 minute'), page"
    changing.send("/1", 0, "a")
    changing.run(sessions, "a")
    changing.refuses(sessions.replace("1 minute", "2 minutes"), "a", "are now a.page, session_window.a.at, 2 minutes.")
    changing.refuses(sessions.replace("page", "user"), "a", "are now a.user, session")


class Silence(StatefulProcessor):
    """Has no state and says nothing."""

    def init(self, handle: StatefulProcessorHandle) -> None: ...

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        return iter(())

    def close(self) -> None: ...


def test_the_keys_of_each_stateful_operator_are_known(spark: SparkSession) -> None:
    def keyed(column: str, time: str) -> DataFrame:
        return frame.groupBy(column).transformWithState(Silence(), "x STRING", "Append", time)

    source = spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
    frame = source.selectExpr("timestamp AS at", "string(value) AS user", "string(value + 1) AS action")
    user, action = ("cast(value as string)",), ("cast((value + 1) as string)",)
    found = {
        frame.dropDuplicates(["user"]): (user, ""),
        frame.dropDuplicates(["action"]): (action, ""),
        frame.dropDuplicatesWithinWatermark(["action"]): (action, ""),
        keyed("user", "EventTime"): (user, "EventTime"),
        keyed("action", "ProcessingTime"): (action, "ProcessingTime"),
    }
    spread = (
        "SELECT count(*) FROM spread GROUP BY window(at, '1 minute'), int(4 * rand()), date_diff(current_date(), at)"
    )
    frame.createOrReplaceTempView("spread")
    first, second = (tuple(stateful_operators(spark.sql(spread))) for _ in range(2))
    assert first == second, "a seed or the time of day is no other key"
    for result, expected in found.items():
        (operator,) = stateful_operators(result)
        assert (*operator.definitions, operator.essential) == expected, operator


def test_the_state_of_a_join_depends_on_its_kind_and_its_columns(changing: Changing) -> None:
    changing.send("1", 0, "a", "b")
    changing.run(JOIN)
    changing.refuses(JOIN.replace("JOIN", "LEFT JOIN"), "a b", "stream-stream join: ")
    changing.refuses(
        JOIN.replace("b.k FROM", "b.k, a.k AS ak FROM"), "a b", "the types of the columns in the state were"
    )
    changing.refuses(JOIN.replace("a.at = b.at", "b.at = a.since"), "a b", "are now a.page, a.since, b.page, b.at")


def _pages(pages: str) -> list[dict[str, str]]:
    return [{"page": page} for page in pages]
