"""`make demo`: website activity, live. Page views go into a broker in this process and are counted per page and window
by Spark, exactly once.

The work is done by two pipelines, `pipelines/website_visitors.yaml` and `pipelines/website_activity.yaml`. This script
starts a broker and the pipelines, reads both topics with an ordinary Kafka client, and shows what it finds above the
live view of the pipelines. In a terminal it runs until Ctrl-C; otherwise it ends by itself.
"""

# ruff: noqa: E402

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for Ctrl-C during the imports

import argparse
import json
import math
import os
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

import moldau
from moldau.pipelines.doors.yaml_file import load_pipelines
from moldau.pipelines.engine.run import Run
from moldau.pipelines.engine.session import silence
from moldau.pipelines.engine.watching.live_view import LiveTable, PlainLines
from moldau.pipelines.model.options import Given

FILES = [Path(__file__).parent / "pipelines" / name for name in ("website_visitors.yaml", "website_activity.yaml")]
VIEWS, COUNTS = "page-views", "page-counts"
PARTITIONS = 3
WINDOWS_SHOWN = 4
QUIET = {"log_level": 3}  # librdkafka logs the end of connections when the broker stops
# Without a terminal: time to run after the first result, and time to wait for it.
SECONDS_OF_RESULTS = 12.0
SECONDS_TO_FIRST_RESULT = 120.0
# At the end: time for the last views to be counted.
SECONDS_TO_FINISH = 30.0
STOPPED_EARLY = "stopped before the first result"


class Results:
    """What a client finds in the topics: how many views, and the latest count of each page and window."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.first_result_s: float | None = None
        self.views = 0
        self.by_window: dict[int, Counter[str]] = defaultdict(Counter)
        self._is_over = threading.Event()

    @property
    def counted(self) -> int:
        return sum(counts.total() for counts in list(self.by_window.values()))

    def read(self, servers: str) -> None:
        """Read committed records of both topics, until `end`."""
        consumer = Consumer({**QUIET, "bootstrap.servers": servers, "group.id": "demo", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, n, 0) for topic in (VIEWS, COUNTS) for n in range(PARTITIONS)])
        while not self._is_over.is_set():
            for message in consumer.consume(1000, timeout=0.1):
                if message.error():
                    raise KafkaException(message.error())
                if message.topic() == VIEWS:
                    self.views += 1
                else:
                    row = json.loads(message.value() or b"")
                    self.by_window[row["window_start"]][row["page"]] = row["views"]
                    self.first_result_s = self.first_result_s or time.perf_counter() - self.began
        consumer.close()

    def end(self) -> None:
        self._is_over.set()

    def show(self) -> RenderableType:
        """The counts of the last windows and of all."""
        numbers = f"{VIEWS}: {self.views:,} acknowledged · {COUNTS}: {self.counted:,} counted"
        if not self.by_window:
            return Text(numbers)
        windows = sorted(self.by_window)[-WINDOWS_SHOWN:]
        totals = sum((counts.copy() for counts in list(self.by_window.values())), Counter[str]())
        table = Table(caption=numbers, caption_style="")
        table.add_column("page", no_wrap=True, min_width=12)
        for window in windows:
            table.add_column(f"{datetime.fromtimestamp(window):%H:%M:%S}", justify="right", min_width=8)
        table.add_column("all windows", justify="right")
        for page, views in totals.most_common():
            table.add_row(page, *(f"{self.by_window[window][page]:,}" for window in windows), f"{views:,}")
        return table


def create_topics(servers: str) -> None:
    admin = AdminClient({**QUIET, "bootstrap.servers": servers})
    for created in admin.create_topics([NewTopic(name, PARTITIONS) for name in (VIEWS, COUNTS)]).values():
        created.result(10)


def start_pipelines(servers: str, folder: str) -> Run:
    import moldau.spark

    ours = {"kafka.bootstrap.servers": Given(servers), "checkpoint": Given(folder)}
    pipelines = [replace(each, settings={**each.settings, **ours}) for each in load_pipelines(FILES)]
    spark = moldau.spark.session("demo", short_job=True)
    silence(spark)
    return Run(pipelines, spark=spark)


def is_all_counted(run: Run, results: Results) -> bool:
    visitors = run.observer.latest.queries[0]
    return visitors.state.is_end and visitors.progress.rows_out == results.views == results.counted


def until(is_so: Callable[[], bool], seconds: float | None) -> None:
    """Wait for a state, but no longer than this."""
    deadline = math.inf if seconds is None else time.perf_counter() + seconds
    while not is_so() and time.perf_counter() < deadline:
        time.sleep(0.1)


def demo(console: Console, seconds: float | None) -> int:
    results, is_interrupted = Results(), False
    with ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory())
        os.environ["MOLDAU_STATE_DIR"] = folder
        servers = opened.enter_context(moldau.Broker()).bootstrap_servers
        console.print(f"broker ready on {servers}: any Kafka client can connect; starting Spark …")
        create_topics(servers)
        reader = threading.Thread(target=results.read, args=(servers,))
        reader.start()
        opened.callback(reader.join)
        opened.callback(results.end)
        run = start_pipelines(servers, folder)
        opened.callback(run.spark.stop)
        view = LiveTable(console, results.show) if console.is_terminal else PlainLines(sys.stdout)
        run.observer.add_show(view.show)
        console.print("Spark is ready; the first views are counted in a few seconds …")
        run.start()
        try:
            until(lambda: results.first_result_s is not None, seconds and SECONDS_TO_FIRST_RESULT)
            if results.first_result_s is not None:
                until(lambda: run.wait(0), seconds)
        except KeyboardInterrupt:
            is_interrupted = True
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # Ctrl-C from now on ends at once
        has_result = results.first_result_s is not None
        if has_result:
            console.print("ending when the last views are counted …")
            run.supervisor.stop("website-visitors")
            until(lambda: is_all_counted(run, results), SECONDS_TO_FINISH)
        run.stop(now=not has_result)
        run.wait(SECONDS_TO_FINISH)
        view.close()
    if not console.is_terminal:
        console.print(results.show())
    if not has_result:
        console.print(STOPPED_EARLY if is_interrupted else f"no result within {SECONDS_TO_FIRST_RESULT:g} s")
        return 0 if is_interrupted else 1
    console.print(f"first result {results.first_result_s:.1f} s after the start")
    wrong = results.views - results.counted
    answer = "yes" if wrong == 0 else f"NO, {abs(wrong):,} {'are missing' if wrong > 0 else 'too many'}"
    console.print(f"every acknowledged view was counted once: {answer}")
    return 0 if wrong == 0 else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, help="time to run after the first result (default: no limit in a terminal, else 12)"
    )
    seconds = parser.parse_args().seconds
    console = Console() if sys.stdout.isatty() else Console(width=110)  # a pipe has no width
    if seconds is None and not console.is_terminal:
        seconds = SECONDS_OF_RESULTS
    interrupted = threading.Event()

    def interrupt(*_: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        return demo(console, seconds)
    except BrokenPipeError:  # as with `make demo | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except BaseException as error:
        # Ctrl-C during an import or the start of Spark does not always arrive as KeyboardInterrupt; once Spark has
        # started, its own handler raises that.
        if not interrupted.is_set() and not isinstance(error, KeyboardInterrupt):
            raise
        console.print(STOPPED_EARLY)
        return 0


if __name__ == "__main__":
    sys.exit(main())
