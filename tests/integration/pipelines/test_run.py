"""`moldau pipeline run`: what fails is restarted, what is killed continues, and each record is there once."""

from __future__ import annotations

import json
import random
import re
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from soak.broker_process import BrokerProcess, free_port
from tests.integration.conftest import make_topic
from tests.integration.pipelines.processes import PipelineProcess, pipeline_command, produce_json, read_topic

COPY = """
sources:
  numbers: {connector: topic, topic: numbers, format: json, schema: n INT, maxOffsetsPerTrigger: 50}
sinks:
  out: {connector: topic, topic: out}
"""
WRONG = """
sources:
  numbers: {connector: topic, topic: numbers, format: json, schema: n INT}
steps:
  wrong:
    sql: SELECT m FROM numbers
sinks:
  nowhere: {connector: topic, topic: nowhere}
"""
DIVIDES = """
sources:
  numbers: {connector: topic, topic: numbers, format: json, schema: n INT}
steps:
  divided:
    sql: SELECT 1 DIV (n - 5) AS m FROM numbers
sinks:
  nowhere: {connector: topic, topic: nowhere}
"""
SLOW = """
sources:
  numbers: {connector: topic, topic: numbers, format: json, schema: n INT, maxOffsetsPerTrigger: 1}
steps:
  slow: {python: slow_steps:slow}
sinks:
  out: {connector: topic, topic: slow}
"""
SLOW_NUMBERS = 30  # a micro-batch each; more than those that are begun before a signal
SLOW_STEPS = """
from pathlib import Path
import time

from pyspark.sql import functions as F

def slow(numbers):
    @F.udf("int", useArrow=False)
    def wait(n):
        Path("begun").touch()
        time.sleep(1)
        return n
    return numbers.select(wait("n").alias("n"))
"""
COUNTS = """
name: counts
sources:
  clicks:
    connector: topic
    topic: clicks
    format: json
    schema: page STRING, at TIMESTAMP
    watermark: {column: at, delay: 10 seconds, idle: never}
    maxOffsetsPerTrigger: 40
steps:
  counts:
    sql: SELECT window.start AS minute, page, count(*) AS views FROM clicks GROUP BY window(at, '1 minute'), page
sinks:
  counts: {connector: topic, topic: counts, key: page}
  copies: {from: clicks, connector: topic, topic: copies, key: page}
settings:
  spark: {spark.sql.shuffle.partitions: 2}
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "broker", log_level="WARNING") as broker:
        yield broker


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.{'py' if name.endswith('_steps') else 'yaml'}").write_text(text)


@pytest.mark.timeout(600)
def test_a_broker_that_goes_away_and_comes_back_beside_pipelines_that_fail(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    make_topic(broker.bootstrap, name="numbers")
    produce_json(broker.bootstrap, "numbers", ({"n": n} for n in range(100)))
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    write(pipelines, copy=COPY, wrong=WRONG, divides=DIVIDES)
    arguments = ("pipelines", "--bootstrap-server", broker.bootstrap)
    with PipelineProcess(tmp_path, *arguments) as run:
        run.until_state("copy", "RUNNING")
        assert "column `m` cannot be resolved" in run.until_state("wrong", "FAILED")["reason"]
        divides = run.until_state("divides", "RETRYING")
        assert divides["reason"].startswith("Division by zero")
        assert divides["attempt"] >= 1

        refused = pipeline_command(tmp_path, "run", *arguments)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert f"pipeline copy is already running in process {run.pid}" in refused.stderr
        listed = json.loads(pipeline_command(tmp_path, "list", "--json").stdout)
        assert {facts["pipeline"] for facts in listed} == {"copy", "divides"}
        stopped = pipeline_command(tmp_path, "stop", "divides")
        assert (stopped.returncode, stopped.stdout) == (0, "stopped divides\n")

        broker.kill()
        away = run.until_state("copy", "RETRYING")
        assert away["reason"].startswith("No broker could be reached")
        broker.start()
        run.until_state("copy", "RUNNING")
        produce_json(broker.bootstrap, "numbers", ({"n": n} for n in range(100, 200)))
        run.until(lambda: len(read_topic(broker.bootstrap, "out")) >= 200, "all is copied")
        status = json.loads(pipeline_command(tmp_path, "status", "copy", "--json").stdout)
        assert (status[0]["queries"][0]["state"], status[0]["queries"][0]["reason"]) == ("RUNNING", "")
        assert run.stop() == 1  # since one has failed
    assert Counter(record.json["n"] for record in read_topic(broker.bootstrap, "out")) == Counter(range(200))
    assert {name: facts["state"] for name, facts in run.facts().items()} == {
        "copy": "STOPPED",
        "divides": "STOPPED",
        "wrong": "FAILED",
    }
    printed = run.output()
    assert re.search(r"^\d\d:\d\d:\d\d copy\.out RETRYING: attempt 1 at \d\d:\d\d:\d\d: No broker", printed, re.M)
    assert re.search(r"^\d\d:\d\d:\d\d copy\.out RUNNING · [\d,]+ rows in", printed, re.M)
    assert "Traceback" not in printed
    assert "\tat " not in printed


@pytest.mark.timeout(900)
def test_signals_end_after_the_running_batch(broker: BrokerProcess, tmp_path: Path) -> None:
    """To the process group, as from a terminal, or to each process of Spark, as from systemd; at the start, too."""
    make_topic(broker.bootstrap, name="numbers")
    produce_json(broker.bootstrap, "numbers", ({"n": n} for n in range(SLOW_NUMBERS)))
    write(tmp_path, slow=SLOW, slow_steps=SLOW_STEPS)
    port = free_port()
    arguments = ("slow.yaml", "--bootstrap-server", broker.bootstrap, "--json", "--metrics-port", str(port))
    checkpoint = tmp_path / "checkpoints" / "slow" / "out"

    def numbers(log: str) -> set[str]:
        return {path.name for path in (checkpoint / log).iterdir() if path.name.isdigit()}

    def stopped_by(run: PipelineProcess, number: signal.Signals, *, group: bool) -> dict[str, Any]:
        run.until((tmp_path / "begun").exists, "a batch has begun")
        run.send_all(number, group=group)
        assert run.wait() == 0, run.output()
        (tmp_path / "begun").unlink()
        assert numbers("offsets") == numbers("commits")
        assert run.facts()["slow"]["state"] == "STOPPED"
        *_, last = map(json.loads, run.output().splitlines())
        assert (last["query"], last["state"], last["reason"]) == ("out", "STOPPED", "")
        return dict(last)

    with PipelineProcess(tmp_path, *arguments) as run:
        run.until((tmp_path / "begun").exists, "a batch has begun")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
            assert b'moldau_pipeline_restarts_total{pipeline="slow",query="out"} 0.0' in response.read()
        last = stopped_by(run, signal.SIGTERM, group=False)
        assert 0 < last["rows_in"] == last["rows_out"] <= len(numbers("offsets"))
    with PipelineProcess(tmp_path, *arguments) as run:
        stopped_by(run, signal.SIGINT, group=True)
    with PipelineProcess(tmp_path, *arguments) as run:
        run.until(lambda: any("java" in process.name() for process in run.family()), "Spark is starting")
        run.send_all(signal.SIGTERM)
        assert run.wait() == 0, run.output()
    (tmp_path / "slow_steps.py").write_text(SLOW_STEPS.replace("sleep(1)", "sleep(0)"))
    with PipelineProcess(tmp_path, *arguments, "--available-now") as run:
        assert run.wait() == 0, run.output()
    assert [record.json["n"] for record in read_topic(broker.bootstrap, "slow")] == list(range(SLOW_NUMBERS))
    assert "Traceback" not in run.output()


@pytest.mark.timeout(600)
def test_after_the_command_was_killed_at_random_points_the_output_is_that_of_an_uninterrupted_run(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    rng = random.Random(7)
    make_topic(broker.bootstrap, 2, name="clicks")
    # Ten minutes of event time; nothing is late.
    seconds = range(600)
    clicks = [
        {"page": f"/{second % 7}", "at": f"2026-01-01 00:{second // 60:02}:{second % 60:02}"} for second in seconds
    ]
    for at, chunk in enumerate(clicks[start : start + 20] for start in range(0, len(clicks), 20)):
        produce_json(broker.bootstrap, "clicks", chunk, partition=at % 2)
    write(tmp_path, counts=COUNTS)
    arguments = ("counts.yaml", "--bootstrap-server", broker.bootstrap)
    commits = tmp_path / "checkpoints" / "counts" / "counts" / "commits"

    def committed() -> int:
        return len([path for path in commits.iterdir() if path.name.isdigit()]) if commits.is_dir() else 0

    def has_committed(batches: int) -> bool:
        return committed() >= batches

    for kill in ("command", "interrupt twice"):  # test_example_kills kills all processes
        batches = committed() + 1
        with PipelineProcess(tmp_path, *arguments) as run:
            run.until(partial(has_committed, batches), "a batch is done")
            time.sleep(rng.uniform(0, 0.5))  # anywhere in a batch
            if kill == "interrupt twice":
                run.send(signal.SIGINT)
                run.send(signal.SIGINT)
                assert run.wait() in (0, 130)
            else:
                family = run.family()
                run.kill(alone=True)
                assert psutil.wait_procs(family, 60)[1] == []  # those of Spark end by themselves
    with PipelineProcess(tmp_path, *arguments, "--available-now") as last:
        assert last.wait() == 0, last.output()

    expected = Counter((click["at"][:16], click["page"]) for click in clicks)
    closed = {key: views for key, views in expected.items() if key[0] < "2026-01-01 00:09"}
    found = [record.json for record in read_topic(broker.bootstrap, "counts")]
    assert Counter((row["minute"][:16].replace("T", " "), row["page"], row["views"]) for row in found) == Counter(
        (minute, page, views) for (minute, page), views in closed.items()
    )
    copies = Counter(record.json["at"][:19].replace("T", " ") for record in read_topic(broker.bootstrap, "copies"))
    assert copies == Counter(click["at"] for click in clicks)
