"""A queue, worked off by share consumers, while broker and consumers are killed at random moments.

topic ──▶ workers (processes of one share group; accept most records, release some, say what the broker confirmed)

holds when   every record is accepted by somebody, none is confirmed to have been accepted twice,
             and nothing stays behind: the group's lag comes to zero
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import confluent_kafka

from moldau.client.admin import Resource, alter_configs, create_topic
from moldau.client.cluster import ClusterClient
from moldau.client.config import ClientConfig, parse_servers
from moldau.client.share_groups import share_offsets
from moldau.errors import MoldauError
from moldau.wire.constants import ResourceType
from soak.broker_process import BrokerProcess
from soak.programs import Programs
from soak.queue_worker import ACCEPTED, ACCEPTING, GROUP, TOPIC

PARTITIONS = 3
WORKERS = 3
DEADLINE_S = 300.0
GROUP_CONFIGS = {
    "share.auto.offset.reset": "earliest",
    # What is released now and then must not be given up for that.
    "share.delivery.count.limit": "10",
}


class Outcome(NamedTuple):
    accepted: int
    unconfirmed: int  # accepted, but the answer was lost with the broker or the worker
    problems: list[str]
    broker_kills: int
    worker_kills: int
    elapsed_s: float


def run_queue(
    broker: BrokerProcess,
    *,
    records: int,
    seed: int,
    pause_s: tuple[float, float] = (0.3, 2.0),
    report: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """`broker` is running. Kills go on until the queue is worked off."""
    rng = random.Random(seed)
    expected = _fill(broker.bootstrap, records)
    output = broker.folder / "workers.log"
    workers = Programs("soak.queue_worker", WORKERS, broker.bootstrap, rng, output)
    kills = Counter[str]()
    started = time.monotonic()
    lag = records
    try:
        while lag and time.monotonic() - started < DEADLINE_S:
            workers.keep_alive()
            time.sleep(rng.uniform(*pause_s))  # the load itself: how long they work before the next kill
            if rng.random() < 0.5:
                kills["broker"] += 1
                broker.kill()
                broker.start()
            else:
                kills["worker"] += 1
                workers.kill_one()
            lag = _lag(broker.bootstrap, records)
            report(f"{lag:>8,} of {records:,} left; kills: {dict(kills)}")
    finally:
        workers.kill_all()
    accepting, accepted = _said(output)
    problems = {
        "left in the queue": lag,
        "accepted by nobody": len(expected - accepting.keys()),
        "accepted twice": sum(count > 1 for count in accepted.values()),
        "that nobody wrote": len(accepting.keys() - expected),
    }
    return Outcome(
        len(accepted),
        len(accepting.keys() - accepted.keys()),
        [f"{count} records {what}" for what, count in problems.items() if count],
        kills["broker"],
        kills["worker"],
        time.monotonic() - started,
    )


def _fill(bootstrap: str, records: int) -> set[bytes]:
    with ClusterClient(ClientConfig(parse_servers(bootstrap))) as cluster:
        create_topic(cluster, TOPIC, partitions=PARTITIONS, configs={"segment.bytes": str(1 << 20)})
        alter_configs(cluster, Resource(ResourceType.GROUP, GROUP), set_values=GROUP_CONFIGS)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "batch.num.messages": 100}
    )
    values = {b"%d" % number for number in range(records)}
    for value in values:
        producer.produce(TOPIC, value, partition=int(value) % PARTITIONS)
        producer.poll(0)
    if producer.flush(60):
        raise TimeoutError("the queue could not be filled")
    return values


def _lag(bootstrap: str, records: int) -> int:
    """As the group's coordinator tells it; everything, while it cannot be asked."""
    try:
        with ClusterClient(ClientConfig(parse_servers(bootstrap))) as cluster:
            offsets = share_offsets(cluster, GROUP)
    except MoldauError:
        return records
    known = [one.lag for one in offsets.values() if one is not None and one.lag is not None]
    return sum(known) if len(known) == PARTITIONS else records


def _said(output: Path) -> tuple[Counter[bytes], Counter[bytes]]:
    """What workers were about to accept, and what the broker confirmed."""
    said: dict[bytes, Counter[bytes]] = {ACCEPTING: Counter(), ACCEPTED: Counter()}
    for line in output.read_bytes().splitlines():
        what, *values = line.split()
        if what in said:
            said[what].update(values)
    return said[ACCEPTING], said[ACCEPTED]
