"""Many connections at once: some that only stay open, some that produce as fast as they are answered."""

from __future__ import annotations

import contextlib
import selectors
import time
from dataclasses import dataclass
from typing import Any

from bench.jobs.job import Parameters, Ready
from bench.payloads import payloads
from bench.raw import RawConnection, check_produced, produce_frame, record_batch


@dataclass
class _Busy:
    connection: RawConnection
    sent_at: float = 0.0
    answers: int = 0


def _answers(connection: RawConnection) -> bool:
    try:
        connection.greet()
    except OSError:
        return False
    return True


def connections(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """Hold idle connections open, load the busy ones for some seconds, then see who is still served."""
    batch = record_batch(payloads(parameters["record_bytes"], count=1))
    frame = produce_frame(parameters["topic"], 0, batch)
    with contextlib.ExitStack() as stack:

        def connect() -> RawConnection:
            connection = stack.enter_context(RawConnection(parameters["bootstrap"]))
            connection.greet()
            return connection

        idle = [connect() for _ in range(parameters["idle"])]
        busy = [_Busy(connect()) for _ in range(parameters["busy"])]
        ready()
        started = time.perf_counter()
        latencies_ms = _load(busy, frame, parameters["seconds"])
        seconds = time.perf_counter() - started
        return {
            "seconds": seconds,
            "latencies_ms": latencies_ms,
            "idle_served": sum(_answers(connection) for connection in idle),
            "busy_served": sum(each.answers > 0 for each in busy),
        }


def _load(busy: list[_Busy], frame: bytes, seconds: float) -> list[float]:
    latencies_ms: list[float] = []
    selector = selectors.DefaultSelector()

    def send(each: _Busy) -> None:
        each.sent_at = time.perf_counter()
        each.connection.socket.sendall(frame)

    for each in busy:
        selector.register(each.connection.socket, selectors.EVENT_READ, each)
        send(each)
    waiting = len(busy)
    deadline = time.perf_counter() + seconds
    while waiting:
        for key, _ in selector.select(timeout=30) or _nobody(waiting):
            each = key.data
            response = each.connection.receive()
            latencies_ms.append((time.perf_counter() - each.sent_at) * 1000)
            if each.answers == 0:
                check_produced(response)
            each.answers += 1
            if time.perf_counter() < deadline:
                send(each)
            else:
                waiting -= 1
    return latencies_ms


def _nobody(waiting: int) -> Any:
    raise TimeoutError(f"{waiting} connections wait for an answer")
