"""Given/expect tests of pipelines in real Spark: watermarks, late rows, sinks, static sources, expectations, errors."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from moldau.pipelines.doors.yaml_file import load_pipeline
from moldau.pipelines.engine.cases import CaseResult, run_cases

SOURCES = """
sources:
  clicks:
    connector: topic
    topic: clicks
    format: json
    schema: page STRING, user STRUCT<id INT, tags ARRAY<STRING>>, at TIMESTAMP
    metadata: key
    watermark: at 1 minute
  pages:
    connector: topic
    topic: pages
    format: json
    schema: page STRING, title STRING
    static: true
  buys:
    connector: topic
    topic: buys
    format: json
    schema: page STRING, bought TIMESTAMP
    watermark: bought 1 minute
    kafka.sasl.jaas.config: ${env:MOLDAU_TEST_NOT_SET}
steps:
  counts:
    sql: SELECT window.start AS minute, page, count(*) AS views FROM clicks GROUP BY window(at, '1 minute'), page
  titled:
    sql: SELECT clicks.*, title FROM clicks LEFT JOIN pages USING (page)
  bought_after_click:
    sql: |
      SELECT clicks.page, at, bought FROM clicks LEFT JOIN buys
      ON clicks.page = buys.page AND bought BETWEEN at AND at + INTERVAL 1 MINUTE
  totals:
    sql: SELECT page, count(*) AS views FROM clicks GROUP BY page
  counted:
    sql: SELECT window.start AS minute, count(*) AS views FROM clicks WHERE page <> '/x' GROUP BY window(at, '1 minute')
  hours:
    sql: SELECT page, hour(at) AS hour FROM clicks
sinks:
  page_counts: {from: counts, connector: topic, topic: page-counts, key: page, partition: "length(page) % 2"}
  page_totals: {from: totals, connector: topic, topic: totals, key: page, mode: update, tombstone: views > 1}
  page_table: {from: totals, connector: topic, topic: totals, mode: complete}
expect:
  has_page: {view: clicks, condition: page IS NOT NULL, action: drop}
  has_title: {view: titled, condition: title IS DISTINCT FROM 'bad', action: fail}
"""


def run(spark: SparkSession, folder: Path, given: str, expect: str, more: str = "") -> CaseResult:
    file = folder / "pipeline.yaml"
    given, expect = (textwrap.indent(textwrap.dedent(text).strip(), " " * 6) for text in (given, expect))
    file.write_text(f"{SOURCES}{more}\ntests:\n  - name: it\n    given:\n{given}\n    expect:\n{expect}\n")
    pipeline = load_pipeline(file)
    (result,) = run_cases(spark, [(pipeline, case) for case in pipeline.tests])
    return result


GOOD = {
    "windows close at the end": (
        "clicks: [{page: /a, at: 2026-01-01 00:00:10}, {page: /a, at: 2026-01-01 00:00:20}]",
        "counts: [{minute: 2026-01-01 00:00:00, page: /a, views: 2}]",
    ),
    "a row that an expectation leaves out does not move the watermark": (
        """
        clicks:
          - [{page: /a, at: 2026-01-01 00:00:10}]
          - [{at: 9999-12-31 23:59:59}]
          - [{page: /a, at: 2026-01-01 00:00:20}]
          - [{page: /b, at: 2026-01-01 00:00:30}]
        """,
        """
        counts:
          - {minute: 2026-01-01 00:00:00, page: /a, views: 2}
          - {minute: 2026-01-01 00:00:00, page: /b, views: 1}
        """,
    ),
    "rows of a batch are not late to each other, rows of a later one are": (
        """
        clicks:
          - [{page: /a, at: 2026-01-01 00:10:00}, {page: /a, at: 2026-01-01 00:00:00}]
          - [{page: /b, at: 2026-01-01 00:00:30}, {page: /b, at: 2026-01-01 00:09:30}]
        """,
        """
        counts:
          - {minute: 2026-01-01 00:10:00, page: /a}
          - {minute: 2026-01-01 00:00:00, page: /a}
          - {minute: 2026-01-01 00:09:00, page: /b}
        """,
    ),
    "a sink has the key and the partition of its records": (
        "clicks: [{page: /a, at: 2026-01-01 00:00:10}]",
        "page_counts: [{key: /a, partition: 0, views: 1, value: {page: /a}}]",
    ),
    "every update is a row, and a tombstone has no value": (
        "clicks: [[{page: /a, at: 2026-01-01}], [{page: /a, at: 2026-01-01}]]",
        "page_totals: [{key: /a, page: /a, views: 1}, {key: /a, value: null}]",
    ),
    "in mode complete the last table counts": (
        "clicks: [[{page: /a, at: 2026-01-01}], [{page: /a, at: 2026-01-01}]]",
        "page_table: [{page: /a, views: 2}]",
    ),
    "a stream is joined with a static source; nested columns; rows that fail an expectation are dropped": (
        """
        clicks: [{page: /a, user: {id: 1, tags: [x, y]}, key: k}, {page: /b}, {page: null}]
        pages: [{page: /a, title: A}]
        """,
        "titled: [{page: /a, user: {tags: [x, y]}, title: A, key: k}, {page: /b, title: null, user: null}]",
    ),
    "rows of two streams arrive together; a quiet side ends the wait of an outer join": (
        """
        clicks: [[{page: /a, at: 2026-01-01 00:00:00}], [{page: /b, at: 2026-01-01 05:00:00}]]
        buys: [[{page: /a, bought: 2026-01-01 00:00:30}], [{page: /b, bought: 2026-01-01 05:00:30}]]
        """,
        """
        bought_after_click:
          - {page: /a, bought: 2026-01-01 00:00:30}
          - {page: /b, bought: 2026-01-01 05:00:30}
        """,
    ),
    "a condition of a step does not keep windows open": (
        "clicks: [{page: /a, at: 2026-01-01 00:00:10}, {page: /x, at: 2026-01-01 00:00:20}]",
        "counted: [{minute: 2026-01-01 00:00:00, views: 1}]",
    ),
    "a source without rows": (
        "clicks: [{page: /a, at: 2026-01-01 00:00:00}]",
        "bought_after_click: [{page: /a, bought: null}]",
    ),
    "views and sinks of one test": (
        "clicks: [{page: /a, at: 2026-01-01 12:00:00}]",
        "clicks: [{page: /a}]\nhours: [{hour: 12}]\ncounts: [{views: 1}]",
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_as_live(spark: SparkSession, tmp_path: Path, name: str) -> None:
    assert run(spark, tmp_path, *GOOD[name]).failures == ()


def test_the_time_zone_of_the_pipeline_is_used(spark: SparkSession, tmp_path: Path) -> None:
    given, expect = "clicks: [{page: /a, at: '2026-01-01T12:00:00Z'}]", "hours: [{hour: 13}]"
    zone = "settings: {spark: {spark.sql.session.timeZone: Europe/Prague}}"
    assert run(spark, tmp_path, given, expect, zone).failures == ()


BAD = {
    "other rows": (
        "clicks: [{page: /a, at: 2026-01-01 00:00:10}]",
        "counts:\n  - {page: /a, views: 2}\n  - {page: /c, views: 7}",
        ["different 1 {page: /a}: views is 1, expected 2", "missing 2 {page: /c, views: 7}"],
    ),
    "no rows expected": (
        "clicks: [{page: /a, at: 2026-01-01 00:00:10}]",
        "counts: []",
        ["unexpected 0 {minute: 2026-01-01 00:00:00, page: /a, views: 1}"],
    ),
    "a column that is not there": (
        "clicks: [{page: /a}]",
        "counts:\n  - {vews: 2}",
        ["error 1 expected row of counts: there is no column 'vews': did you mean 'views'?"],
    ),
    "an expectation that fails": (
        "clicks: [{page: /a}]\npages: [{page: /a, title: bad}]",
        "titled: []",
        ["error 0 expectation has_title of titled failed: title IS DISTINCT FROM 'bad'"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_failures_say_what_differs_and_where(spark: SparkSession, tmp_path: Path, name: str) -> None:
    given, expect, failures = BAD[name]
    result = run(spark, tmp_path, given, expect)
    text = (tmp_path / "pipeline.yaml").read_text().splitlines()
    first = text.index("    expect:") + 2  # of the view
    found = [f"{each.kind} {each.place.line - first} {each.message}" for each in result.failures if each.place]
    assert found == failures
