"""Brokers inside one's own process, one after the other: the only job that needs no server."""

from __future__ import annotations

import time
from typing import Any

from bench.jobs.job import Parameters, Ready


def embedded_starts(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """Start and stop `Broker()` repeatedly; the first one, which pays for the imports, is not counted."""
    from moldau import Broker

    with Broker():
        pass
    ready()
    starts_ms: list[float] = []
    started = time.perf_counter()
    for _ in range(parameters["starts"]):
        before = time.perf_counter()
        with Broker():
            starts_ms.append((time.perf_counter() - before) * 1000)
    return {"seconds": time.perf_counter() - started, "starts_ms": starts_ms}
