"""Jobs that write with prebuilt Produce requests on plain sockets (`bench.raw`): acks=all, no compression."""

from __future__ import annotations

import time
from typing import Any

from bench.jobs.job import Parameters, Ready
from bench.payloads import payloads
from bench.raw import RawConnection, Window, check_produced, pipeline, produce_frame, record_batch


def pipeline_requests(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """Requests of one record each for some seconds, a fixed number of them in flight."""
    in_flight: int = parameters["in_flight"]
    batch = record_batch(payloads(parameters["record_bytes"], count=1))
    with RawConnection(parameters["bootstrap"]) as connection:
        frame = produce_frame(parameters["topic"], parameters["partition"], batch)
        window = Window(connection, frame, in_flight, check_produced)
        ready()
        acknowledged, seconds = pipeline(window, parameters["seconds"])
    return {"seconds": seconds, "requests": acknowledged, "records_in_log": acknowledged + 1}


def fill(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """A log of a given size in batches of a given size, a few requests in flight."""
    values = payloads(parameters["record_bytes"])
    per_batch = max(parameters["batch_bytes"] // parameters["record_bytes"], 1)
    batch = record_batch([values[number % len(values)] for number in range(per_batch)])
    batches = max(parameters["log_bytes"] // len(batch), 1)
    with RawConnection(parameters["bootstrap"]) as connection:
        frame = produce_frame(parameters["topic"], parameters["partition"], batch)
        window = Window(connection, frame, 4, check_produced)
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
