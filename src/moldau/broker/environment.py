"""Everything that reaches a broker from outside, apart from its event loop, which brings the network and the timers.

A process takes the real things. A test can hand in others: `moldau.testing.simulation` runs whole clusters on a virtual
clock, from one seed.
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
    """For what is written down and told: somebody may set it, back or forth."""
    monotonic: Clock = monotonic_ms
    """For deadlines, and whatever lasts."""
    timer: Callable[[], float] = perf_counter
    """Seconds, to measure how long the event loop was held up."""
    new_uuid: Callable[[], UUID] = random_uuid
    """Ids of topics, members, directories and incarnations."""
    boot_id: Callable[[], str] = kernel_boot_id
    """Differs after each start of the machine; empty where that is not known."""
    disk: Disk = OS_DISK
    """Of the log directories."""
    make_threads: Callable[[asyncio.AbstractEventLoop, Sequence[Path]], Threads] = Threads
    """Called with the log directories, for what may block."""
    start_thread: StartThread = start_daemon_thread
    """For the threads that close log directories: each may hang on its disk."""
    make_store: Callable[[BrokerConfig], MetadataStore] = make_store
    """Of a cluster; a broker on its own keeps its metadata in a file."""

    def new_session_id(self) -> int:
        """Of a fetch session: 31 bits, not 0."""
        return self.new_uuid().int >> 97 or 1


REAL = Environment()
