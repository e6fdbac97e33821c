"""What a `PartitionLog` is built from."""

from __future__ import annotations

from dataclasses import dataclass

from moldau.clocks import Clock, monotonic_ms
from moldau.log.epoch_cache import EpochCache
from moldau.log.files import FilePool, LogDir
from moldau.log.producer_state import ProducerState
from moldau.log.segments.segment import Segment
from moldau.log.snapshots import ProducerSnapshots


@dataclass(slots=True)
class LogContext:
    """What a log gets from the manager that holds it."""

    log_dir: LogDir
    pool: FilePool
    clock: Clock
    """The wall clock: segments and producers are as old as the timestamps in their records."""
    producer_id_expiration_ms: int
    single_replica: bool = True
    monotonic: Clock = monotonic_ms
    """For the time since a flush or a deletion."""


@dataclass(slots=True)
class LogParts:
    """What was found on disk; or empty, for a new log."""

    segments: list[Segment]
    producers: ProducerState
    epochs: EpochCache
    snapshots: ProducerSnapshots
    log_start_offset: int = 0
    log_end_offset: int = 0
    recovery_point: int = 0
    first_dirty_offset: int = 0
    needs_dir_sync: bool = True  # False after a clean shutdown
