"""What a partition notifies: waiting fetches, follower sessions, and waiters for a commit."""

from __future__ import annotations

import asyncio
from typing import Protocol

from moldau.errors import KafkaError


class WaitingFetch(Protocol):
    committed: bool

    def more(self, byte_count: int) -> None: ...


class Subscriber(Protocol):
    """A follower's fetch session, as far as this partition is in it."""

    @property
    def broker_id(self) -> int: ...

    @property
    def last_fetch_ms(self) -> int: ...

    def appended(self, base_offset: int, byte_count: int) -> None: ...

    def high_watermark_moved(self) -> None: ...

    def leader_changed(self) -> None: ...


class WaitingCommit(Protocol):
    """Notified when a record is committed or cannot be."""

    def committed(self) -> None: ...

    def failed(self, error: KafkaError) -> None: ...


class CommitFuture:
    """A `WaitingCommit` to await."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[None]) -> None:
        self._future = future

    def committed(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def failed(self, error: KafkaError) -> None:
        if not self._future.done():
            self._future.set_exception(error)
