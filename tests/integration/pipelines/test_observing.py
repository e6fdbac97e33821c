"""What running queries report, with a real Spark and a real broker: rows, lag, state, metrics, consumer groups."""

from __future__ import annotations

import io
import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from moldau import Broker
from moldau.client.groups import committed_offsets
from moldau.pipelines.engine.run import Run
from moldau.pipelines.engine.state_files import known_runs
from moldau.pipelines.engine.supervisor import State
from moldau.pipelines.engine.watching.live_view import JsonLines, PlainLines
from moldau.pipelines.engine.watching.metrics import METRICS, serve_metrics
from moldau.pipelines.engine.watching.observer import QuerySnapshot
from moldau.pipelines.engine.watching.progress import clock_time
from moldau.pipelines.model.pipeline import Action, Expectation, Pipeline, Sink, Source, Step
from soak.broker_process import free_port
from tests.integration.conftest import cluster_at, make_topic
from tests.integration.pipelines.parts import given
from tests.integration.waiting import eventually

START_S = 110  # of three queries, on a busy machine
AGE_S = 100
NOW = 0  # not the day of any record
SLOW = {"maxOffsetsPerTrigger": 10}
COUNTS = "SELECT window.start AS minute, page, count(*) AS views FROM clicks GROUP BY window(at, '1 minute'), page"


def send(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    now_ms = time.time_ns() // 1_000_000
    for number in range(count):
        value = json.dumps({"page": f"/{number % 4}", "at": f"2026-01-01 00:00:{number % 60:02}"})
        producer.produce(topic, value, timestamp=now_ms - AGE_S * 1000)
    assert producer.flush(30) == 0


class Watched:
    """A run, and the latest that it reported of each query."""

    def __init__(self, run: Run, topic: str) -> None:
        self.run, self.topic = run, topic

    def query(self, name: str) -> QuerySnapshot | None:
        return next((each for each in self.run.observer.latest.queries if each.query == name), None)

    def wait(self, name: str, is_so: Callable[[QuerySnapshot], object], what: str) -> QuerySnapshot:
        eventually(lambda: (found := self.query(name)) is not None and is_so(found), what, within_s=START_S)
        found = self.query(name)
        assert found is not None
        return found


@pytest.fixture(scope="module")
def watched(spark: SparkSession, kafka_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    bootstrap = kafka_broker.bootstrap_servers
    folder = tmp_path_factory.mktemp("observed")
    topic, counts, copies = make_topic(bootstrap, 2), make_topic(bootstrap), make_topic(bootstrap)
    send(bootstrap, topic, 100)
    clicks = {"topic": topic, "format": "json", "schema": "page STRING, at TIMESTAMP", "watermark": "at 10 minutes"}
    kafka = {
        "kafka.bootstrap.servers": bootstrap,
        "checkpoint": str(folder),
        "spark": {"spark.sql.shuffle.partitions": 1},
    }
    steady = Pipeline(
        "steady",
        (Source("clicks", "topic", given(clicks)),),
        (Step("counts", COUNTS, inputs=("clicks",)),),
        (
            Sink("updates", "counts", "topic", "update", given({"topic": counts, "key": "page"})),
            Sink("windows", "counts", "topic", "append", given({"topic": counts, "key": "page"})),
        ),
        (Expectation("not_first", "clicks", "page <> '/0'", Action.DROP),),
        settings=given(kafka),
        folder=folder,
    )
    behind = Pipeline(
        "behind",
        (Source("clicks", "topic", given(clicks | SLOW)),),
        sinks=(Sink("copies", "clicks", "topic", options=given({"topic": copies})),),
        settings=given(kafka | {"trigger": "1 hour"}),
        folder=folder,
    )
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MOLDAU_STATE_DIR", str(folder / "state"))
        run = Run([steady, behind], spark=spark)
        run.start()
        try:
            yield Watched(run, topic)
        finally:
            run.stop(now=True)
            assert run.wait(60)


def test_rows_in_and_out_are_counted_whatever_the_sink(watched: Watched) -> None:
    updates = watched.wait("updates", lambda query: query.progress.rows_in == 100, "all rows are read")
    assert updates.state is State.RUNNING
    assert updates.progress.failed_expectations == {"not_first": 25}
    found = watched.wait("updates", lambda query: query.progress.rows_out, "rows are written")
    assert found.progress.rows_out == found.progress.state_rows == 3  # a window, and three pages
    assert found.progress.last_output_ms is not None
    assert found.progress.state_bytes > 0


def test_a_query_without_output_says_which_windows_are_open(watched: Watched) -> None:
    found = watched.wait("windows", lambda query: "the latest event" in query.progress.waiting, "it says why")
    watermark_ms, event_ms = found.progress.watermark_ms, found.progress.event_time_ms
    assert watermark_ms is not None
    assert event_ms == watermark_ms + 600_000
    assert found.progress.waiting == (
        f"no output yet: the watermark is {clock_time(watermark_ms, NOW)}; windows that end later are open, up to that "
        f"of {clock_time(event_ms, NOW)}, the latest event (rows may be 600 s late, "
        "and after 30 s without rows the clock closes windows)"
    )
    assert found.progress.rows_out == 0


def test_lag_is_known_in_records_and_seconds(watched: Watched, bootstrap: str) -> None:
    assert watched.wait("updates", lambda query: query.progress.lag == 0, "all is read").progress.lag_seconds is None
    behind = watched.wait("copies", lambda query: query.progress.lag_seconds, "the oldest record is looked at")
    read = behind.progress.rows_in
    assert 0 < read <= 10
    assert behind.progress.lag == 100 - read
    assert AGE_S <= (behind.progress.lag_seconds or 0) < 10 * AGE_S
    send(bootstrap, watched.topic, 50)  # while the query waits for its trigger
    watched.wait("copies", lambda query: query.progress.lag == 150 - read, "the lag grows though no batch runs")


def test_each_query_has_a_consumer_group_of_its_own(watched: Watched, bootstrap: str) -> None:
    def position(group: str) -> int:
        with cluster_at(bootstrap) as cluster:
            return sum(each.offset for each in committed_offsets(cluster, group).values())

    watched.wait("updates", lambda query: query.progress.rows_in >= 100, "all rows are read")
    for group in ("steady.updates.clicks", "steady.windows.clicks"):
        eventually(lambda group=group: position(group) >= 100, f"{group} has its positions")


def test_a_scrape_has_the_metrics_of_every_query(watched: Watched) -> None:
    watched.wait("updates", lambda query: query.progress.rows_out, "rows are written")
    watched.wait("copies", lambda query: query.progress.lag_seconds, "the oldest record is looked at")
    port = free_port()
    stop = serve_metrics(lambda: watched.run.observer.latest, port)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            page = response.read().decode()
    finally:
        stop()
    for metric in METRICS:
        assert re.search(rf"^{metric.name}\{{", page, re.M), metric.name
    lag = re.search(r'^moldau_pipeline_lag_records\{pipeline="behind",query="copies"\} (\d+)\.0$', page, re.M)
    assert lag is not None
    assert int(lag[1]) >= 90


def test_lines_and_state_files_have_the_same_numbers(watched: Watched) -> None:
    watched.wait("updates", lambda query: query.progress.rows_out, "rows are written")
    plain, jsons = io.StringIO(), io.StringIO()
    PlainLines(plain).show(watched.run.observer.latest)
    JsonLines(jsons).show(watched.run.observer.latest)
    assert re.search(r"steady\.updates RUNNING · 1[05]0 rows in \(.*/s\) · \d+ out", plain.getvalue())
    by_query = {line["query"]: line for line in map(json.loads, jsons.getvalue().splitlines())}
    assert by_query["updates"]["rows_in"] >= 100
    eventually(
        lambda: (
            {
                query["name"]: query["progress"] and query["progress"]["rows_in"] >= 100
                for run in known_runs()
                for query in run.facts["queries"]
            }
            == {"updates": True, "windows": True, "copies": False}
        ),
        "the files of the run have the progress",
    )
