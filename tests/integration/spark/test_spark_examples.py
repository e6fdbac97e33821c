"""The examples run as they are documented: the windowed count as a script of its own, and `make demo`."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from moldau import Broker
from tests.integration.clients import present
from tests.integration.conftest import make_topic
from tests.integration.waiting import eventually

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
PAGES = Counter({"/": 30, "/cart": 20, "/help": 10})


def send_views(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for page, views in PAGES.items():
        for _ in range(views):
            producer.produce("page-views", json.dumps({"page": page}))
    assert producer.flush(30) == 0


class Counts:
    """The latest count of each window and page."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "t", "auto.offset.reset": "earliest"})
        self._consumer.subscribe(["page-counts"])
        self._latest: dict[tuple[int, str], int] = {}

    def by_page(self) -> Counter[str]:
        for message in self._consumer.consume(100, timeout=0.5):
            if message.error() is None:
                row = json.loads(present(message.value()))
                assert present(message.key()).decode() == row["page"]
                self._latest[row["window"], row["page"]] = row["count"]
        totals: Counter[str] = Counter()
        for (_, page), count in self._latest.items():
            totals[page] += count
        return totals

    def close(self) -> None:
        self._consumer.close()


def test_the_script_counts_every_view_once(fresh_kafka_broker: Broker, tmp_path: Path) -> None:
    bootstrap = fresh_kafka_broker.bootstrap_servers
    for topic in ("page-views", "page-counts"):
        make_topic(bootstrap, 2, name=topic)
    send_views(bootstrap)
    command = [sys.executable, str(EXAMPLES / "page_views_spark.py"), bootstrap, str(tmp_path / "checkpoint")]
    counts = Counts(bootstrap)
    with subprocess.Popen(command) as script:
        eventually(lambda: counts.by_page() == PAGES, "the first views are counted", within_s=90)
        send_views(bootstrap)
        eventually(lambda: counts.by_page() == PAGES + PAGES, "the others are counted, too", within_s=20)
        script.kill()
    counts.close()


def test_the_script_without_arguments_says_how_it_is_used() -> None:
    command = [sys.executable, str(EXAMPLES / "page_views_spark.py")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr == f"usage: python {command[1]} HOST:PORT CHECKPOINT-FOLDER\n"
    assert ended.returncode == 1


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / "demo.py"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=110, check=False, env={**os.environ, **environment}
    )


def test_the_demo_counts_every_view_once_and_ends_by_itself() -> None:
    ended = demo("--seconds", "1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for line in ("starting Spark …", "Spark is ready; the first", "ending when the last views are counted …"):
        assert line in ended.stdout  # what takes seconds is announced
    assert "website-visitors.page_views RUNNING" in ended.stdout
    assert "website-activity.page_counts RUNNING" in ended.stdout
    assert "every acknowledged view was counted once: yes" in ended.stdout
    assert ended.stderr == ""


@pytest.mark.parametrize("has_terminal", [True, False])
def test_the_demo_that_is_stopped_before_the_first_result_ends_quietly(has_terminal: bool) -> None:
    """In a terminal while queries start, without one while Spark starts."""
    reading, writing = pty.openpty() if has_terminal else os.pipe()
    command = [sys.executable, str(EXAMPLES / "demo.py")]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=writing, stderr=writing) as process:
        os.close(writing)
        output = b""
        for part in iter(lambda: _read(reading), b""):
            output += part
            if (b"STARTING" if has_terminal else b"starting Spark") in output:
                break
        process.send_signal(signal.SIGINT)
        output += b"".join(iter(lambda: _read(reading), b""))
        os.close(reading)
        assert process.wait(60) == 0
    text = output.decode()
    assert text.splitlines()[-1].endswith("stopped before the first result")
    assert "Exception" not in text
    assert "Traceback" not in text


def _read(descriptor: int) -> bytes:
    """Empty at the end, which a terminal tells by an error."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


def test_the_demo_says_how_long_it_waited_for_a_first_result() -> None:
    code = "import sys, demo; demo.SECONDS_TO_FIRST_RESULT = 0.5; sys.exit(demo.main())"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=110, check=False,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES)},
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (1, "")
    assert ended.stdout.splitlines()[-1] == "no result within 0.5 s"
