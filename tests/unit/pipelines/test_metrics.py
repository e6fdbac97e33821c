"""Metrics of pipelines: the table, a real scrape, the page."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from moldau.errors import ConfigError
from moldau.pipelines.engine.supervisor import State
from moldau.pipelines.engine.watching.metrics import METRICS, serve_metrics
from moldau.pipelines.engine.watching.observer import QuerySnapshot, Snapshot
from moldau.pipelines.engine.watching.progress import QueryProgress
from moldau.pipelines.monitoring_reference import render
from soak.broker_process import free_port

BUSY = QueryProgress(
    batch_id=3,
    batch_ms=250,
    rows_in=1_000,
    rows_out=90,
    lag=7,
    lag_seconds=1.5,
    state_rows=10,
    state_bytes=700,
    late_rows=2,
    watermark_ms=1_767_225_840_500,
    failed_expectations={"has_page": 4},
    dead_letters=4,
    last_output_ms=1_767_225_900_000,
)
NEW = replace(QueryProgress(), rows_out=None)
SNAPSHOT = Snapshot(
    0,
    (
        QuerySnapshot("shop", "counts", State.RUNNING, restarts=5, progress=BUSY),
        QuerySnapshot("shop", "copies", State.FAILED, "no column", progress=NEW),
    ),
)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    port = free_port()
    stop = serve_metrics(lambda: SNAPSHOT, port)
    yield port
    stop()


@pytest.fixture(scope="module")
def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text: str = response.read().decode()
    return text


def test_a_scrape_has_every_metric_of_the_table(page: str) -> None:
    described = dict(re.findall(r"^# TYPE (\S+) (\S+)", page, re.M))
    for metric in METRICS:
        assert described.get(metric.name) == metric.kind, metric.name
        assert re.search(rf'^{metric.name}\{{[^}}]*query="counts"', page, re.M), metric.name


@pytest.mark.parametrize(
    "sample",
    [
        'rows_read_total{pipeline="shop",query="counts"} 1000.0',
        'rows_written_total{pipeline="shop",query="counts"} 90.0',
        'lag_records{pipeline="shop",query="counts"} 7.0',
        'lag_seconds{pipeline="shop",query="counts"} 1.5',
        'batch_duration_seconds{pipeline="shop",query="counts"} 0.25',
        'watermark_timestamp_seconds{pipeline="shop",query="counts"} 1.7672258405e+09',
        'failed_expectation_rows_total{expectation="has_page",pipeline="shop",query="counts"} 4.0',
        'state{pipeline="shop",query="counts",state="RUNNING"} 1.0',
        'state{pipeline="shop",query="counts",state="FAILED"} 0.0',
        'state{pipeline="shop",query="copies",state="FAILED"} 1.0',
        'restarts_total{pipeline="shop",query="counts"} 5.0',
    ],
)
def test_samples_have_the_numbers_of_the_snapshot(page: str, sample: str) -> None:
    assert f"moldau_pipeline_{sample}" in page.splitlines()


def test_what_is_not_known_is_left_out(page: str) -> None:
    found = set(re.findall(r'^moldau_pipeline_(\w+)\{[^}]*query="copies"', page, re.M))
    assert found >= {"state", "rows_read_total", "restarts_total"}
    assert not found & {"lag_records", "lag_seconds", "rows_written_total", "watermark_timestamp_seconds"}


def test_the_process_itself_is_measured(page: str) -> None:
    assert re.search(r"^process_cpu_seconds_total ", page, re.M)


def test_a_port_that_is_taken_is_said_in_a_sentence(port: int) -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:\d+ .*choose another metrics port"):
        serve_metrics(lambda: SNAPSHOT, port)


def test_the_page_is_up_to_date() -> None:
    page = Path(__file__).parents[3] / "docs" / "pipelines-monitoring.md"
    assert page.read_text() == render(), (
        "run: python -m moldau.pipelines.monitoring_reference > docs/pipelines-monitoring.md"
    )
    assert all(metric.help.endswith(".") for metric in METRICS)
