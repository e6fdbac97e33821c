"""Fetches at chosen offsets on a plain socket: what one read costs the broker, wherever it is in the log."""

from __future__ import annotations

import time
from typing import Any

from bench.jobs.job import Parameters, Ready
from bench.raw import RawConnection, fetch_frame


def fetch_at(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """Fetch once at each offset, in the order given; a response that is not nearly full is an error."""
    max_bytes: int = parameters["max_bytes"]
    frames = [fetch_frame(parameters["topic"], 0, offset, max_bytes) for offset in parameters["offsets"]]
    latencies_ms: list[float] = []
    with RawConnection(parameters["bootstrap"]) as connection:
        ready()
        started = time.perf_counter()
        for frame in frames:
            before = time.perf_counter()
            connection.socket.sendall(frame)
            response = connection.receive()
            latencies_ms.append((time.perf_counter() - before) * 1000)
            if len(response) < max_bytes * 0.8:
                raise RuntimeError(f"a fetch of {max_bytes} bytes was answered with {len(response)}")
        seconds = time.perf_counter() - started
    return {"seconds": seconds, "latencies_ms": latencies_ms}
