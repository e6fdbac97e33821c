"""The rounds themselves: load, a hard kill at a random moment, a restart, until every writer is served again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from moldau.client.admin import create_topic
from moldau.client.cluster import ClusterClient
from moldau.client.config import ClientConfig, parse_servers
from soak.broker_process import BrokerProcess
from soak.check import Findings, check_topic
from soak.load import WRITERS, Writer

RECOVERY_TIMEOUT_S = 60.0
TOPIC = "soak"


class Round(NamedTuple):
    number: int
    acked: int  # by all writers, since the beginning
    restart_s: float  # from the start of the process to its first answer
    longest_gap_s: float  # between two acknowledgements of one writer


class Result(NamedTuple):
    findings: Findings
    acked: dict[str, int]  # by client
    rounds: list[Round]


def run_rounds(
    broker: BrokerProcess,
    *,
    rounds: int,
    seed: int,
    partitions: int = 3,
    load_s: tuple[float, float] = (0.3, 1.5),
    report: Callable[[Round], None] | None = None,
    end: Callable[[BrokerProcess], object] = BrokerProcess.kill,
    clients: Sequence[type[Writer]] = WRITERS,
) -> Result:
    """`broker` is running; `rounds` times it is ended, by default hard, and started again."""
    rng = random.Random(seed)
    with ClusterClient(ClientConfig(parse_servers(broker.bootstrap))) as cluster:
        # Small segments: a kill then also meets rolls, indexes and producer snapshots.
        create_topic(cluster, TOPIC, partitions=partitions, configs={"segment.bytes": str(1 << 20)})
    writers = [client(client.client, broker.bootstrap, TOPIC, partitions) for client in clients]
    for writer in writers:
        writer.start()
    done: list[Round] = []
    try:
        _wait_for_acks(writers)
        for number in range(1, rounds + 1):
            time.sleep(rng.uniform(*load_s))  # the load itself: how long a writer writes before the kill
            end(broker)
            restart_s = broker.start()
            _wait_for_acks(writers)
            acked = sum(writer.acked for writer in writers)
            done.append(Round(number, acked, restart_s, max(writer.longest_gap_s for writer in writers)))
            if report is not None:
                report(done[-1])
    finally:
        for writer in writers:
            writer.stop()
    findings = check_topic(broker.bootstrap, TOPIC, partitions, writers)
    return Result(findings, {writer.client: writer.acked for writer in writers}, done)


def _wait_for_acks(writers: Sequence[Writer]) -> None:
    """Until each of them got an answer to something it wrote after now."""
    before = {writer: writer.acked + 1 for writer in writers}
    deadline = time.monotonic() + RECOVERY_TIMEOUT_S
    while not all(writer.acked > count or writer.failures for writer, count in before.items()):
        if time.monotonic() > deadline:
            waiting = [writer.name for writer, count in before.items() if writer.acked <= count]
            raise TimeoutError(f"no acknowledgement in {RECOVERY_TIMEOUT_S:.0f} s for {', '.join(waiting)}")
        time.sleep(0.01)
