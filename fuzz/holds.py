"""The largest valid requests against a broker, one after the other, while a neighbour asks for a little all the time.

What is measured: the longest step of the broker's loop, which is how long everybody else had to wait, and what the
neighbour saw of it.
"""

from __future__ import annotations

import contextlib
import mmap
import socket
import struct
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fuzz.largest import Existing, Largest, largest_requests
from fuzz.watched_broker import SECONDS
from moldau.broker.handlers.api_table import API_TABLE
from moldau.client.admin import create_topic
from moldau.client.cluster import ClusterClient
from moldau.client.config import ClientConfig, parse_servers
from moldau.wire.apis import ApiKey
from moldau.wire.batch import encode_batch
from moldau.wire.compression import Codec
from moldau.wire.messages import Schema, encode_request, ms, request_schema
from soak.broker_process import BrokerProcess

HOLD_MAX_S = 0.02
PATIENCE_S = 120.0
PARTITIONS = 1000
RECORDS = 200
HEAD = (
    f"{'request':<28} {'long array':<44} {'names':<8} {'entries':>8} {'bytes':>10} "
    f"{'answer':>13} {'s':>6} {'hold ms':>8} {'neighbour ms':>12}"
)
# Metadata v1 for no topics.
_SMALL = struct.pack(">ihhihi", 14, 3, 1, 1, -1, 0)


class Outcome(NamedTuple):
    request: Largest
    answer: str
    seconds: float
    hold_s: float
    neighbour_s: float

    @property
    def is_slow(self) -> bool:
        return self.hold_s > HOLD_MAX_S

    def __str__(self) -> str:
        request = self.request
        return (
            f"{request.api:<28} {request.array:<44} {request.kind:<8} {request.entries:>8,} {len(request.frame):>10,} "
            f"{self.answer:>13} {self.seconds:>6.2f} {1000 * self.hold_s:>8.1f} {1000 * self.neighbour_s:>12.1f}"
            f"{' !' if self.is_slow else ''}"
        )


class WatchedBroker(BrokerProcess):
    """A broker process that tells its loop's longest step."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, log_level="ERROR")
        path = folder / "longest-step"
        path.write_bytes(SECONDS.pack(0.0))
        with path.open("r+b") as file:
            self._longest = mmap.mmap(file.fileno(), SECONDS.size)
        self.program = [sys.executable, "-m", "fuzz.watched_broker", str(path)]

    @property
    def longest_step_s(self) -> float:
        return float(SECONDS.unpack_from(self._longest)[0])

    def begin_anew(self) -> None:
        SECONDS.pack_into(self._longest, 0, 0.0)


def attack(broker: WatchedBroker, *, only: str = "", entries_max: int = sys.maxsize) -> Iterator[Outcome]:
    """The largest requests of all APIs, or of those whose name has `only` in it, with `entries_max` entries at most."""
    existing = _prepare(broker.bootstrap)
    with _neighbour(broker) as slowest:
        for row in API_TABLE.values():
            if only.lower() not in row.api.name.lower():
                continue
            for request in largest_requests(row.key, row.api.max_version, existing, entries_max=entries_max):
                broker.begin_anew()
                slowest[0] = 0.0
                began_s = time.monotonic()
                answer = _send(broker, request.frame)
                took_s = time.monotonic() - began_s
                _send(broker, _SMALL)  # once it is answered, the step that sent the answer is over
                yield Outcome(request, answer, took_s, broker.longest_step_s, slowest[0])


def _prepare(bootstrap: str) -> Existing:
    with ClusterClient(ClientConfig(parse_servers(bootstrap))) as cluster:
        topic_id = create_topic(cluster, "fuzz-wide", partitions=PARTITIONS)
        for key_type in range(3):  # groups, transactions, queues: their coordinators are there from now on
            cluster.at_any(ApiKey.FIND_COORDINATOR, partial(_find_coordinator, key_type=key_type))
        fill(bootstrap, topic_id)
    return Existing("fuzz-wide", topic_id, PARTITIONS)


def _find_coordinator(schema: Schema, *, key_type: int) -> Any:
    key = "fuzz:AAAAAAAAAAAAAAAAAAAAAQ:0" if key_type == 2 else "fuzz"
    return schema.FindCoordinatorRequest(key=key, key_type=key_type, coordinator_keys=(key,))


def fill(bootstrap: str, topic_id: uuid.UUID) -> None:
    """A compressed batch into each partition: whoever asks for an offset by time makes the broker look into it."""
    now_ms = time.time_ns() // 1_000_000
    batch = encode_batch([(b"key", b"value" * 10, now_ms, ())] * RECORDS, codec=Codec.GZIP)
    schema = request_schema(ApiKey.PRODUCE, 13)
    partitions = tuple(schema.PartitionProduceData(index=index, records=batch) for index in range(PARTITIONS))
    request = schema.ProduceRequest(
        transactional_id=None,
        acks=1,
        timeout=ms(10_000),
        topic_data=(schema.TopicProduceData(topic_id=topic_id, partition_data=partitions),),
    )
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as link:
        link.sendall(encode_request(1, "fuzz", request))
        _read(link, struct.unpack(">i", _read(link, 4))[0])


def _send(broker: WatchedBroker, frame: bytes) -> str:
    with socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_S) as link:
        try:
            link.sendall(frame)
            size = _read(link, 4)
            if not size:
                return "closed"
            length = struct.unpack(">i", size)[0]
            _read(link, length)
            return f"{length:,} B"
        except TimeoutError:
            return "silent"
        except OSError:
            return "closed"


def _read(link: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = link.recv(min(1 << 20, size - len(data)))
        if not piece:
            return b""
        data += piece
    return bytes(data)


@contextlib.contextmanager
def _neighbour(broker: WatchedBroker) -> Iterator[list[float]]:
    """Its slowest answer since that was last set to zero."""
    slowest = [0.0]
    ended = threading.Event()

    def ask() -> None:
        with socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_S) as link:
            while not ended.is_set():
                began_s = time.perf_counter()
                link.sendall(_SMALL)
                _read(link, struct.unpack(">i", _read(link, 4))[0])
                slowest[0] = max(slowest[0], time.perf_counter() - began_s)
                time.sleep(0.002)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield slowest
    finally:
        ended.set()
        thread.join()
