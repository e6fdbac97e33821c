"""What an application must not reach from inside a simulation, and what its client library is given instead."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from moldau.errors import SimulationError

_FORBIDDEN: tuple[tuple[Any, str, str], ...] = (
    (threading.Thread, "start", "threads; use asyncio tasks, or asyncio.to_thread for short calls"),
    (socket.socket, "connect", "real connections; use asyncio clients, such as aiokafka"),
    (socket, "getaddrinfo", "real connections; use asyncio clients, such as aiokafka"),
    (time, "sleep", "time.sleep(), which would stop every process; use await asyncio.sleep()"),
)


@contextmanager
def guarded() -> Iterator[None]:
    """Threads, sockets and `time.sleep` raise SimulationError in this thread; aiokafka works as in any process."""
    with _replaced([(owner, name, _refusal(owner, name, why)) for owner, name, why in _FORBIDDEN] + _for_aiokafka()):
        yield


def _refusal(owner: Any, name: str, why: str) -> Callable[..., Any]:
    original = getattr(owner, name)
    simulating = threading.get_ident()

    def refuse(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        if threading.get_ident() == simulating:
            raise SimulationError(f"not possible in a simulation: {why}")
        return original(*args, **options)

    return refuse


def _for_aiokafka() -> list[tuple[Any, str, Any]]:
    """What of it differs from run to run: its C code reads the clock of the machine for the timestamps of records, it
    numbers its producers, and it has a set of brokers, whose hash contains that of None: an address."""
    if find_spec("aiokafka") is None:
        return []
    from aiokafka import AIOKafkaProducer
    from aiokafka.producer.message_accumulator import BatchBuilder
    from aiokafka.structs import BrokerMetadata

    append = BatchBuilder.append

    def append_now(self: Any, *, timestamp: int | None, **fields: Any) -> Any:
        return append(self, timestamp=int(time.time() * 1000) if timestamp is None else timestamp, **fields)

    return [
        (BatchBuilder, "append", append_now),
        (AIOKafkaProducer, "_PRODUCER_CLIENT_ID_SEQUENCE", 0),
        (BrokerMetadata, "__hash__", lambda self: hash(self[:3])),
    ]


@contextmanager
def _replaced(replacements: list[tuple[Any, str, Any]]) -> Iterator[None]:
    originals = [(owner, name, vars(owner).get(name)) for owner, name, _ in replacements]
    for owner, name, replacement in replacements:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        for owner, name, original in originals:
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
