"""Jobs that write with prebuilt Produce requests on plain sockets (`bench.raw`): acks=all, no compression."""

from __future__ import annotations

import socket
import time
from typing import Any

from bench.jobs.job import Parameters, Ready
from bench.payloads import payloads
from bench.raw import RawConnection, check_produced, produce_frame, record_batch


def _learn_response_size(connection: RawConnection, frame: bytes) -> int:
    """Send once and check: all later acknowledgements of this frame have the same size."""
    connection.socket.sendall(frame)
    response = connection.receive()
    check_produced(response)
    return len(response) + 4


class _Window:
    """Keeps a fixed number of requests in flight, as a pipelining client does."""

    def __init__(self, connection: RawConnection, frame: bytes, in_flight: int) -> None:
        self._socket: socket.socket = connection.socket
        self._response_bytes = _learn_response_size(connection, frame)
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


def pipeline_requests(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """Requests of one record each for some seconds, a fixed number of them in flight."""
    in_flight: int = parameters["in_flight"]
    batch = record_batch(payloads(parameters["record_bytes"], count=1))
    with RawConnection(parameters["bootstrap"]) as connection:
        window = _Window(connection, produce_frame(parameters["topic"], parameters["partition"], batch), in_flight)
        ready()
        started = time.perf_counter()
        deadline = started + parameters["seconds"]
        window.send(in_flight)
        acknowledged = 0
        while time.perf_counter() < deadline:
            count = window.await_some()
            acknowledged += count
            window.send(count)
        acknowledged += window.drain()
        seconds = time.perf_counter() - started
    return {"seconds": seconds, "requests": acknowledged, "records_in_log": acknowledged + 1}


def fill(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """A log of a given size in batches of a given size, a few requests in flight."""
    values = payloads(parameters["record_bytes"])
    per_batch = max(parameters["batch_bytes"] // parameters["record_bytes"], 1)
    batch = record_batch([values[number % len(values)] for number in range(per_batch)])
    batches = max(parameters["log_bytes"] // len(batch), 1)
    with RawConnection(parameters["bootstrap"]) as connection:
        window = _Window(connection, produce_frame(parameters["topic"], parameters["partition"], batch), 4)
        ready()
        started = time.perf_counter()
        sent = min(4, batches)
        window.send(sent)
        while sent < batches:
            count = min(window.await_some(), batches - sent)
            window.send(count)
            sent += count
        window.drain()
        seconds = time.perf_counter() - started
    return {"seconds": seconds, "records_in_log": (batches + 1) * per_batch}


def produce_to_each_partition(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """One record to one partition after the other, one at a time; as many rounds as asked for."""
    batch = record_batch(payloads(parameters["record_bytes"], count=1))
    partitions = range(parameters["partitions"])
    frames = [produce_frame(parameters["topic"], index, batch) for index in partitions]
    latencies_ms: list[float] = []
    with RawConnection(parameters["bootstrap"]) as connection:
        ready()
        started = time.perf_counter()
        for _ in range(parameters["rounds"]):
            for frame in frames:
                before = time.perf_counter()
                connection.socket.sendall(frame)
                response = connection.receive()
                latencies_ms.append((time.perf_counter() - before) * 1000)
                check_produced(response)
        seconds = time.perf_counter() - started
    return {"seconds": seconds, "latencies_ms": latencies_ms}
