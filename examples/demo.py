"""`make demo`: page views into a broker in this process, counted per page and window by Spark, exactly once, live.

A Kafka client produces page views. Spark reads them with the `moldau` source and writes its counts with the
exactly-once sink (`page_views_spark.py` is the job). Another client reads the counts and shows them in a table. In a
terminal the demo runs until Ctrl-C; otherwise it ends by itself. If Spark cannot start, the views are counted without
it.
"""

# ruff: noqa: E402

from __future__ import annotations

import os
import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for Ctrl-C during the imports

import argparse
import contextlib
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

import moldau

VIEWS, COUNTS = "page-views", "page-counts"
PARTITIONS = 3
PAGES = ["/", "/search", "/products", "/products/42", "/cart", "/checkout", "/help", "/about"]
# About 5,000 per second, which leaves CPU time for Spark.
VIEWS_AT_ONCE = 100
WINDOW_S = 5
WINDOWS_SHOWN = 4
# Without a terminal: time to run after the first result, and time to wait for it.
SECONDS_OF_RESULTS = 12.0
SECONDS_TO_FIRST_RESULT = 120.0
# Errors only: librdkafka logs the end of connections when the broker stops.
QUIET = {"log_level": 3}
# Time to finish processing when the demo ends.
SECONDS_TO_FINISH = 20.0


class Demo:
    """The state of the demo; each number is written by one thread only."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.acknowledged = 0
        self.failed = 0
        self.spark = "starting Spark …"
        self.first_result_s: float | None = None
        self.by_window: dict[int, Counter[str]] = defaultdict(Counter)
        # Views are sent until `enough`; counts are read until `done`.
        self.enough = threading.Event()
        self.done = threading.Event()
        # No more results will come: Spark failed, or the demo was stopped before the first one.
        self.over = threading.Event()
        self.is_interrupted = False

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.began

    @property
    def counted(self) -> int:
        return sum(counts.total() for counts in list(self.by_window.values()))

    def count(self, window: int, page: str, views: int) -> None:
        """Replace the previous count of a page in a window."""
        self.by_window[window][page] = views
        if self.first_result_s is None:
            self.first_result_s = self.elapsed_s


def create_topics(servers: str) -> None:
    admin = AdminClient({**QUIET, "bootstrap.servers": servers})
    for created in admin.create_topics([NewTopic(name, PARTITIONS) for name in (VIEWS, COUNTS)]).values():
        created.result(10)


def produce(servers: str, demo: Demo) -> None:
    """Send page views as JSON, keyed by visitor; some pages are more popular than others."""
    producer = Producer({**QUIET, "bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5})
    weights = [1 / (rank + 1) for rank in range(len(PAGES))]

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error:
            demo.failed += 1
        else:
            demo.acknowledged += 1

    while not demo.enough.wait(0.02):
        for page in random.choices(PAGES, weights, k=VIEWS_AT_ONCE):
            visitor = str(random.randrange(5000))
            view = json.dumps({"page": page, "visitor": visitor})
            producer.produce(VIEWS, view, visitor, on_delivery=delivered)
        producer.poll(0)
    producer.flush(SECONDS_TO_FINISH)


def consume(servers: str, topic: str, demo: Demo, take: Callable[[Any, int], None]) -> None:
    """Pass each committed record to `take`, with its timestamp in seconds, from the beginning of the topic."""
    consumer = Consumer({**QUIET, "bootstrap.servers": servers, "group.id": "demo", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    while not demo.done.is_set():
        for message in consumer.consume(num_messages=1000, timeout=0.1):
            if message.error():
                raise KafkaException(message.error())
            take(json.loads(message.value() or b""), message.timestamp()[1] // 1000)
    consumer.close()


def read_counts(servers: str, demo: Demo) -> None:
    consume(servers, COUNTS, demo, lambda row, _second: demo.count(row["window"], row["page"], row["count"]))


def count_here(servers: str, demo: Demo) -> None:
    """Count without Spark."""

    def take(view: Any, second: int) -> None:
        window = second - second % WINDOW_S
        demo.count(window, view["page"], demo.by_window[window][view["page"]] + 1)

    consume(servers, VIEWS, demo, take)


def count_in_spark(servers: str, demo: Demo, checkpoint: str, writer: threading.Thread) -> None:
    """Run the job in Spark; if Spark cannot start, count without it."""
    try:
        spark = start_spark()
    except Exception as error:
        demo.spark = f"Spark cannot start ({first_line(error)}): counting without it"
        count_here(servers, demo)
        return
    try:
        run_query(spark, servers, demo, checkpoint, writer)
    except Exception as error:
        demo.spark = f"Spark failed: {first_line(error)}"
        demo.over.set()
    finally:
        stop_spark(spark)


def start_spark() -> Any:
    import moldau.spark

    spark = moldau.spark.session(short_job=True)
    # Warnings would disturb the table.
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run_query(spark: Any, servers: str, demo: Demo, checkpoint: str, writer: threading.Thread) -> None:
    """Run until `enough` is set, then process everything that was sent."""
    from page_views_spark import count_page_views

    if demo.over.is_set():
        return
    name = f"Spark {spark.version}"
    demo.spark = f"{name} ready after {demo.elapsed_s:.1f} s, running its first micro-batch …"
    query = count_page_views(spark, servers, checkpoint)
    while not demo.enough.wait(0.25) and query.isActive:
        if (progress := query.lastProgress) and progress["numInputRows"]:
            batch, rows, rate = (progress[key] for key in ("batchId", "numInputRows", "processedRowsPerSecond"))
            demo.spark = f"{name}: micro-batch {batch}, {rows:,} rows at {rate:,.0f} rows/s, exactly once"
    writer.join()
    if not demo.over.is_set():
        query.processAllAvailable()
    query.stop()


def stop_spark(spark: Any) -> None:
    """Stop Spark and wait for its Java process to end."""
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(SECONDS_TO_FINISH)


def first_line(error: Exception) -> str:
    """The first line of an error; for a Java error the second, because the first says where it was caught."""
    lines = str(error).splitlines() or [repr(error)]
    return next((line.removeprefix(": ") for line in lines if line.startswith(": ")), lines[0])


def results(demo: Demo) -> Group:
    """The counts of the last windows and the totals."""
    totals: Counter[str] = Counter()
    for counts in list(demo.by_window.values()):
        totals.update(dict(counts))
    windows = sorted(demo.by_window)[-WINDOWS_SHOWN:]
    table = Table()
    table.add_column("page", no_wrap=True)
    for window in windows:
        table.add_column(f"{datetime.fromtimestamp(window):%H:%M:%S}", justify="right", min_width=8)
    table.add_column("all windows", justify="right")
    table.add_column("share", no_wrap=True, min_width=16)
    for page, views in totals.most_common():
        share = views / totals.total()
        cells = (f"{demo.by_window[window][page]:,}" for window in windows)
        table.add_row(page, *cells, f"{views:,}", f"{'█' * round(share * 30)} {share:.0%}")
    return Group(Text(sent(demo)), Text(demo.spark), *([table] if totals else []))


def sent(demo: Demo) -> str:
    return f"{demo.elapsed_s:4.0f} s  {VIEWS}: {demo.acknowledged:,} acknowledged · {COUNTS}: {demo.counted:,} counted"


def show(console: Console, demo: Demo, seconds: float | None) -> None:
    """Show the results for `seconds`, or until Ctrl-C."""
    with contextlib.ExitStack() as stack:
        live = None
        if console.is_terminal:
            live = stack.enter_context(Live(console=console, refresh_per_second=4, transient=True))
        while not is_over(demo, seconds):
            time.sleep(0.25 if live else 1.0)
            if live:
                live.update(results(demo))
            else:
                console.print(f"{sent(demo)} · {demo.spark}", soft_wrap=True, highlight=False)


def is_over(demo: Demo, seconds: float | None) -> bool:
    if seconds is None or demo.over.is_set():
        return demo.over.is_set()
    if demo.first_result_s is None:
        return demo.elapsed_s > SECONDS_TO_FIRST_RESULT
    return demo.elapsed_s > demo.first_result_s + seconds


def run(console: Console, seconds: float | None) -> int:
    demo = Demo()
    with tempfile.TemporaryDirectory() as checkpoint, moldau.Broker() as broker:
        servers = broker.bootstrap_servers
        console.print(f"broker ready in {demo.elapsed_s * 1000:.0f} ms on {servers}: any Kafka client can connect")
        create_topics(servers)
        writer = threading.Thread(target=produce, args=(servers, demo))
        reader = threading.Thread(target=read_counts, args=(servers, demo))
        spark = threading.Thread(target=count_in_spark, args=(servers, demo, checkpoint, writer))
        with running(demo, writer, reader, spark):
            try:
                if console.is_terminal:
                    console.print("Ctrl-C ends the demo")
                show(console, demo, seconds)
            except KeyboardInterrupt:
                demo.is_interrupted = True
            # A second Ctrl-C exits immediately.
            signal.signal(signal.SIGINT, lambda *_: os._exit(130))
            if demo.first_result_s is None:
                demo.over.set()
            demo.enough.set()
            writer.join()
            console.print("finishing …")
            deadline = time.perf_counter() + SECONDS_TO_FINISH
            while demo.counted < demo.acknowledged and time.perf_counter() < deadline and not demo.over.is_set():
                time.sleep(0.05)
    console.print(results(demo))
    return verdict(console, demo)


@contextlib.contextmanager
def running(demo: Demo, *threads: threading.Thread) -> Iterator[None]:
    for thread in threads:
        thread.start()
    try:
        yield
    except BaseException:
        demo.over.set()
        raise
    finally:
        demo.enough.set()
        demo.done.set()
        for thread in threads:
            thread.join()


def verdict(console: Console, demo: Demo) -> int:
    if demo.first_result_s is None and demo.is_interrupted:
        console.print("stopped before the first result")
        return 0
    if demo.first_result_s is None:
        is_late = demo.elapsed_s > SECONDS_TO_FIRST_RESULT
        console.print(f"no result within {SECONDS_TO_FIRST_RESULT:g} s" if is_late else "no result")
        return 1
    console.print(f"first result {demo.first_result_s:.1f} s after the start")
    wrong = demo.acknowledged - demo.counted
    answer = "yes" if wrong == 0 else f"NO, {abs(wrong):,} {'are missing' if wrong > 0 else 'too many'}"
    console.print(f"every acknowledged view was counted once: {answer}")
    return 0 if wrong == 0 and not demo.failed else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds",
        type=float,
        help="time to run after the first result (default: no limit in a terminal, else 12)",
    )
    seconds = parser.parse_args().seconds
    # A pipe has no width, and 80 columns would wrap the table.
    console = Console() if sys.stdout.isatty() else Console(width=110)
    if seconds is None and not console.is_terminal:
        seconds = SECONDS_OF_RESULTS
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return run(console, seconds)
    except KeyboardInterrupt:
        console.print("stopped")
        return 0
    except BrokenPipeError:  # as with `make demo | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
