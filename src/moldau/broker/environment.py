"""What a broker gets from outside, apart from its event loop, which provides the network and the timers.

The defaults are the real ones. `moldau.testing.simulation` passes others, and so runs whole clusters on a virtual clock
from one seed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from uuid import UUID

from moldau.broker.cluster.incarnation import kernel_boot_id
from moldau.broker.cluster.stores import make_store
from moldau.broker.threads import Threads
from moldau.clocks import Clock, monotonic_ms, wall_clock_ms
from moldau.config.broker import BrokerConfig
from moldau.disk import OS_DISK, Disk
from moldau.log.closing import StartThread, start_daemon_thread
from moldau.metadata.stores.store import MetadataStore
from moldau.wire.uuids import random_uuid


@dataclass(frozen=True)
class Environment:
    wall_clock: Clock = wall_clock_ms
    """For timestamps in records and responses. It can be set back or forward, so deadlines never use it."""
    monotonic: Clock = monotonic_ms
    """For deadlines and durations."""
    timer: Callable[[], float] = perf_counter
    """In seconds; measures how long the event loop was blocked."""
    new_uuid: Callable[[], UUID] = random_uuid
    """For the ids of clusters, topics, members, log directories and incarnations."""
    boot_id: Callable[[], str] = kernel_boot_id
    """Changes with each boot of the machine; empty where the system has none."""
    disk: Disk = OS_DISK
    """Where the log directories are."""
    make_threads: Callable[[asyncio.AbstractEventLoop, Sequence[Path]], Threads] = Threads
    """Called with the log directories; the threads run what may block."""
    start_thread: StartThread = start_daemon_thread
    """Starts the threads that close log directories, each of which may hang on its disk."""
    make_store: Callable[[BrokerConfig], MetadataStore] = make_store
    """The metadata store of a cluster; a standalone broker keeps its metadata in a file."""

    def new_session_id(self) -> int:
        """An id for a fetch session: 31 bits, not 0."""
        return self.new_uuid().int >> 97 or 1


REAL = Environment()
