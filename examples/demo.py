"""`make demo`: a broker in this process, page views through a real Kafka client, a live table of what was read.

In a terminal it runs until Ctrl-C; without one it ends by itself after a few seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import threading
import time
from collections import Counter

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

import moldau

TOPIC = "page-views"
PARTITIONS = 3
PAGES = ["/", "/search", "/products", "/products/42", "/cart", "/checkout", "/help", "/about"]
SECONDS_WITHOUT_TERMINAL = 6.0


class Views:
    """What the reader has seen so far; written by one thread, shown by another."""

    def __init__(self) -> None:
        self.by_page: Counter[str] = Counter()
        self.visitors: dict[str, set[int]] = {page: set() for page in PAGES}
        self.read = 0


def create_topic(bootstrap_servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(10)


def produce(bootstrap_servers: str, stop: threading.Event, sent: Counter[str]) -> None:
    """Page views as a web site sends them: JSON, keyed by visitor, in bursts."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "linger.ms": 5})
    weights = [1 / (rank + 1) for rank in range(len(PAGES))]

    def delivered(error: KafkaError | None, _message: object) -> None:
        sent["failed" if error else "acknowledged"] += 1

    while not stop.is_set():
        for page in random.choices(PAGES, weights, k=500):
            visitor = random.randrange(5000)
            view = {"page": page, "visitor": visitor}
            producer.produce(TOPIC, json.dumps(view), key=str(visitor), on_delivery=delivered)
        producer.poll(0)
        stop.wait(0.02)
    producer.flush()


def consume(bootstrap_servers: str, done: threading.Event, views: Views) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "demo", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    while not done.is_set():
        for message in consumer.consume(num_messages=1000, timeout=0.1):
            if message.error():
                raise KafkaException(message.error())
            view = json.loads(message.value())
            views.by_page[view["page"]] += 1
            views.visitors[view["page"]].add(view["visitor"])
            views.read += 1
    consumer.close()


def results(views: Views, sent: Counter[str], elapsed_s: float) -> Group:
    rate = views.read / elapsed_s if elapsed_s else 0.0
    caption = f"{TOPIC}: {sent['acknowledged']:,} acknowledged, {views.read:,} read, {rate:,.0f} a second"
    table = Table()
    table.add_column("page")
    table.add_column("views", justify="right")
    table.add_column("visitors", justify="right")
    table.add_column("share", no_wrap=True)
    for page, count in views.by_page.most_common():
        share = count / max(views.read, 1)
        table.add_row(page, f"{count:,}", f"{len(views.visitors[page]):,}", f"{'█' * round(share * 30)} {share:.0%}")
    return Group(caption, table)


def run(console: Console, seconds: float | None) -> int:
    began = time.perf_counter()
    with moldau.Broker() as broker:
        console.print(
            f"broker ready in {(time.perf_counter() - began) * 1000:.0f} ms on {broker.bootstrap_servers}: "
            "any Kafka client can connect"
        )
        create_topic(broker.bootstrap_servers)
        views, sent = Views(), Counter[str]()
        stop, done = threading.Event(), threading.Event()
        writer = threading.Thread(target=produce, args=(broker.bootstrap_servers, stop, sent), daemon=True)
        reader = threading.Thread(target=consume, args=(broker.bootstrap_servers, done, views), daemon=True)
        started = time.perf_counter()
        writer.start()
        reader.start()
        with contextlib.suppress(KeyboardInterrupt):
            show(console, views, sent, started, seconds)
        stop.set()
        writer.join()
        deadline = time.perf_counter() + 10
        while views.read < sent["acknowledged"] and time.perf_counter() < deadline:
            time.sleep(0.01)
        elapsed_s = time.perf_counter() - started
        done.set()
        reader.join()
    console.print(results(views, sent, elapsed_s))
    lost = sent["acknowledged"] - views.read
    console.print(f"every acknowledged view was read: {'yes' if lost == 0 else f'NO, {lost} are missing'}")
    return 0 if lost == 0 and not sent["failed"] else 1


def show(console: Console, views: Views, sent: Counter[str], started: float, seconds: float | None) -> None:
    end = started + seconds if seconds is not None else float("inf")
    if console.is_terminal:
        console.print("Ctrl-C ends the demo")
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            while time.perf_counter() < end:
                live.update(results(views, sent, time.perf_counter() - started))
                time.sleep(0.25)
        return
    while time.perf_counter() < end:
        time.sleep(min(1.0, max(end - time.perf_counter(), 0)))
        elapsed_s = time.perf_counter() - started
        console.print(f"{elapsed_s:4.1f} s  {sent['acknowledged']:>9,} acknowledged  {views.read:>9,} read")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, help="end after this time (default: never in a terminal, else 6)")
    arguments = parser.parse_args()
    console = Console()
    seconds = arguments.seconds
    if seconds is None and not sys.stdout.isatty():
        seconds = SECONDS_WITHOUT_TERMINAL
    return run(console, seconds)


if __name__ == "__main__":
    sys.exit(main())
