"""Rows that fail an expectation are counted, dropped, written to the dead letters or stop the query."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from moldau.errors import ConfigError
from moldau.pipelines.engine.expectations import failed_counts
from moldau.pipelines.engine.queries import plan_queries
from moldau.pipelines.engine.reasons import is_lasting, reason_of
from moldau.pipelines.model.pipeline import Action, Expectation, Sink, Step
from tests.integration.conftest import NewTopic
from tests.integration.pipelines.bad_records.letters import given, records, run_once, shop, values
from tests.integration.spark.topics import produce

HAS_PAGE = Expectation("has_page", "clicks", "page IS NOT NULL", Action.DEAD_LETTER)


def test_dead_letters_are_byte_identical_and_written_once(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(2)
    headers = [("trace", b"\x00\xff"), ("none", None), ("trace", b"again")]
    bad: list[dict[str, Any]] = [
        {
            "value": b'{"n": "1" }',
            "key": b"\xff\x00",
            "headers": headers,
            "timestamp": 1_700_000_000_123,
            "partition": 0,
        },
        {"value": b'{ "page":null}', "key": None, "partition": 1},
        {"value": None, "key": b"tombstone", "headers": headers[:1], "partition": 1},
    ]
    produce(bootstrap, topic, [{"value": b'{"page":"/"}', "partition": 0}, *bad, {"value": b"no json", "partition": 0}])
    expect = [
        Expectation("short", "clicks", "n IS NULL OR length(n) < 9"),
        HAS_PAGE,
        Expectation("not_x", "clicks", "page <> '/x'", Action.DROP),
    ]
    pipeline = shop(bootstrap, tmp_path, topic, expect=expect)
    last = run_once(spark, pipeline)
    assert failed_counts(last["out"]) == {"short": 0, "has_page": 3, "not_x": 0}
    produce(bootstrap, topic, [b'{"page":"/x"}', b'{"page":"/y"}'])
    last = run_once(spark, pipeline)
    assert failed_counts(last["out"]) == {"short": 0, "has_page": 0, "not_x": 1}

    assert values(bootstrap, f"{topic}-out") == [b'{"page":"/"}', b'{"page":"/y"}']
    found = {letter.origin: letter for letter in records(bootstrap, f"{topic}-letters")}
    undecodable = found.pop((topic, 0, 2))
    assert undecodable.value == b"no json"
    assert undecodable.header("moldau.pipeline") == "shop"
    assert undecodable.header("moldau.source") == "clicks"
    assert sorted(found) == [(topic, 0, 1), (topic, 1, 0), (topic, 1, 1)]
    assert len(records(bootstrap, f"{topic}-letters")) == 4
    originals = {(topic, 0, record.offset): record for record in records(bootstrap, topic)[:4]}
    for letter, sent in zip((found[one] for one in sorted(found)), bad, strict=True):
        assert (letter.key, letter.value) == (sent["key"], sent["value"])
        assert letter.own_headers == sent.get("headers", [])
        assert letter.reason == "expectation has_page of clicks failed: page IS NOT NULL"
        assert letter.header("moldau.query") == "clicks-dead-letters"
    assert found[topic, 0, 1].timestamp_ms == originals[topic, 0, 1].timestamp_ms == 1_700_000_000_123


def test_a_source_without_a_format_has_dead_letters_too(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic()
    produce(bootstrap, topic, [{"value": b"\xfe", "key": b"k", "headers": [("a", b"b")]}, b"good"])
    expect = [Expectation("text", "clicks", "is_valid_utf8(value)", Action.DEAD_LETTER)]
    step = Step("texts", sql="SELECT CAST(value AS STRING) AS value FROM clicks", inputs=("clicks",))
    pipeline = shop(bootstrap, tmp_path, topic, step, expect=expect)
    (source,) = pipeline.sources
    run_once(spark, replace(pipeline, sources=(replace(source, options=given(topic=topic)),)))
    (letter,) = records(bootstrap, f"{topic}-letters")
    assert (letter.key, letter.value, letter.own_headers) == (b"k", b"\xfe", [("a", b"b")])
    assert values(bootstrap, f"{topic}-out") == [b'{"value":"good"}']


@pytest.mark.parametrize("mode", ["append", "update"])
def test_rows_of_a_step_with_state_become_dead_letters_as_json(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path, mode: str
) -> None:
    topic = new_topic()
    late = b'{"page":"/","at":"2026-01-01T01:00:00Z"}'
    produce(bootstrap, topic, [b'{"page":"/%d","at":"2026-01-01T00:00:0%dZ"}' % (n % 2, n) for n in range(3)] + [late])
    counts = Step(
        "counts",
        sql="SELECT window.start AS minute, page, count(*) AS views FROM clicks GROUP BY window(at, '1 minute'), page",
        inputs=("clicks",),
    )
    few = Expectation("few", "counts", "views < 2", Action.DEAD_LETTER)
    sink = Sink("out", "counts", "topic", mode, given(topic=f"{topic}-out"))
    source = {"schema": "page STRING, at TIMESTAMP", "watermark": "at 1 second"}
    pipeline = shop(bootstrap, tmp_path, topic, counts, expect=[few], sinks=[sink], source=source)
    last = run_once(spark, pipeline)
    assert [plan.mode for plan in plan_queries(pipeline)] == [mode, mode]
    assert "few" in failed_counts(last["out"])
    (letter,) = records(bootstrap, f"{topic}-letters")
    row = json.loads(letter.value or b"")
    assert (row["page"], row["views"]) == ("/0", 2)
    assert letter.key is None
    assert letter.reason == "expectation few of counts failed: views < 2"
    assert letter.header("moldau.view") == "counts"
    pages = {json.loads(value or b"")["page"] for value in values(bootstrap, f"{topic}-out")}
    assert "/1" in pages
    assert "/0" not in pages


def test_fail_ends_the_query_with_one_sentence_and_for_good(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic()
    produce(bootstrap, topic, [b'{"page":"/"}', b"{}"])
    pipeline = shop(bootstrap, tmp_path, topic, expect=[Expectation("has_page", "clicks", "page <> ''", Action.FAIL)])
    with pytest.raises(StreamingQueryException) as failed:
        run_once(spark, pipeline)
    assert is_lasting(failed.value)
    assert reason_of(failed.value) == "expectation has_page of clicks failed: page <> ''"
    assert values(bootstrap, f"{topic}-out") == []


def test_dead_letters_need_a_topic(tmp_path: Path) -> None:
    pipeline = shop("nowhere:1", tmp_path, "clicks", expect=[HAS_PAGE], letters=None)
    with pytest.raises(ConfigError, match="has_page: the action dead-letter needs a topic: add for example `dead"):
        plan_queries(pipeline)
