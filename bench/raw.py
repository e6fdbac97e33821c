"""Kafka's protocol on a plain socket, for what a client library would hide: prebuilt frames, exact requests.

Requests are encoded once, before the clock starts, and sent again and again; responses are told apart by
their size alone. That costs the client a few microseconds per request, so the broker is what is measured.
A broker answers a repeated correlation id like any other.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from typing import Any, Self

from bench.servers.server import API_VERSIONS_REQUEST
from moldau.wire import messages
from moldau.wire.apis import ApiKey
from moldau.wire.batch import encode_batch

CLIENT_ID = "bench"
TIMEOUT_S = 30.0

# The last versions that name a topic by its name; every Kafka since 2.8 and Moldau serve them.
PRODUCE_VERSION = 9
FETCH_VERSION = 12
LIST_OFFSETS_VERSION = 6

LATEST_TIMESTAMP = -1


class RawConnection:
    """One blocking connection; frames go in with their size, come out without."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(1 << 12)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def receive(self) -> memoryview:
        """The next response frame; valid until the next call."""
        self._read_exactly(4)
        (size,) = struct.unpack_from(">i", self._buffer)
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        self._read_exactly(size)
        return memoryview(self._buffer)[:size]

    def _read_exactly(self, size: int) -> None:
        view = memoryview(self._buffer)[:size]
        while view:
            count = self.socket.recv_into(view)
            if count == 0:
                raise ConnectionError("the broker closed the connection")
            view = view[count:]

    def greet(self) -> None:
        """Ask once, as real clients do: one that only connects outruns the backlog of the listening socket
        and measures how long the kernel takes to try again."""
        self.socket.sendall(API_VERSIONS_REQUEST)
        self.receive()

    def ask(self, entity: Any) -> Any:
        """Send one request and decode its response: for set-up and checks, never in a timed loop."""
        self.socket.sendall(messages.encode_request(1, CLIENT_ID, entity))
        return messages.decode_response(entity.__api_key__, entity.__version__, bytes(self.receive()))[1]


class Window:
    """Keeps a fixed number of equal requests in flight, as a pipelining client does.

    The first one is sent alone and its response checked: all later ones have the same size.
    """

    def __init__(
        self, connection: RawConnection, frame: bytes, in_flight: int, check: Callable[[memoryview], None]
    ) -> None:
        self.in_flight_max = in_flight
        self._socket = connection.socket
        self._socket.sendall(frame)
        response = connection.receive()
        check(response)
        self._response_bytes = len(response) + 4
        self._frames = [frame * count for count in range(in_flight + 1)]
        self._in_flight = 0
        self._received_bytes = 0
        self._buffer = bytearray(1 << 16)

    def send(self, count: int) -> None:
        self._socket.sendall(self._frames[count])
        self._in_flight += count

    def await_some(self) -> int:
        """How many of the requests in flight were acknowledged meanwhile; waits for one at least."""
        acknowledged = 0
        while not acknowledged:
            received = self._socket.recv_into(self._buffer)
            if not received:
                raise ConnectionError("the broker closed the connection")
            acknowledged, self._received_bytes = divmod(self._received_bytes + received, self._response_bytes)
        self._in_flight -= acknowledged
        return acknowledged

    def drain(self) -> int:
        acknowledged = 0
        while self._in_flight:
            acknowledged += self.await_some()
        return acknowledged


def pipeline(window: Window, seconds: float) -> tuple[int, float]:
    """Keep the window full for so long: how many requests were answered, and in how many seconds."""
    started = time.perf_counter()
    deadline = started + seconds
    window.send(window.in_flight_max)
    acknowledged = 0
    while time.perf_counter() < deadline:
        count = window.await_some()
        acknowledged += count
        window.send(count)
    acknowledged += window.drain()
    return acknowledged, time.perf_counter() - started


def record_batch(values: list[bytes]) -> bytes:
    """An uncompressed batch with the time of now: an older one would be deleted by retention."""
    now_ms = time.time_ns() // 1_000_000
    return encode_batch([(None, value, now_ms, ()) for value in values])


def produce_frame(topic: str, partition: int, batch: bytes) -> bytes:
    build = messages.request_schema(ApiKey.PRODUCE, PRODUCE_VERSION)
    data = build.PartitionProduceData(index=partition, records=batch)
    request = build.ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout=messages.ms(30_000),
        topic_data=(build.TopicProduceData(name=topic, partition_data=(data,)),),
    )
    return messages.encode_request(1, CLIENT_ID, request)


def check_produced(frame: memoryview) -> None:
    _, response = messages.decode_response(ApiKey.PRODUCE, PRODUCE_VERSION, bytes(frame))
    for topic in response.responses:
        for partition in topic.partition_responses:
            if partition.error_code != messages.error(0):
                raise RuntimeError(f"the broker refused a batch: {partition.error_code.name}")


def fetch_frame(topic: str, partition: int, offset: int, max_bytes: int) -> bytes:
    build = messages.request_schema(ApiKey.FETCH, FETCH_VERSION)
    wanted = build.FetchPartition(
        partition=partition,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=max_bytes,
    )
    request = build.FetchRequest(
        replica_id=-1,
        max_wait=messages.ms(0),
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=(build.FetchTopic(topic=topic, partitions=(wanted,)),),
        forgotten_topics_data=(),
        rack_id="",
    )
    return messages.encode_request(1, CLIENT_ID, request)


def end_offsets(connection: RawConnection, topic: str, partitions: int) -> list[int]:
    """The log end offset of each partition, by partition; RuntimeError while one has no answer yet."""
    build = messages.request_schema(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION)
    wanted = tuple(
        build.ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=LATEST_TIMESTAMP)
        for index in range(partitions)
    )
    request = build.ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=(build.ListOffsetsTopic(name=topic, partitions=wanted),)
    )
    offsets = [-1] * partitions
    for answer in connection.ask(request).topics[0].partitions:
        if answer.error_code != messages.error(0):
            raise RuntimeError(f"no end offset of {topic}-{answer.partition_index}: {answer.error_code.name}")
        offsets[answer.partition_index] = answer.offset
    return offsets
