"""What a step of a coordinator wants done: the shell persists the records, then sends the replies.

A step changes the machine's memory at once. When its records cannot be written, the shell forgets the whole shard and
loads it again from its partition, so what a shard knows for good is exactly what replaying its records rebuilds.
"""

from __future__ import annotations

from typing import Any

Waiter = Any
"""Whoever waits for a reply: opaque to the machines, which hand it back with the reply."""


class NothingChanged(Exception):  # noqa: N818  (no error: the step says what it lacks)
    """A step went no further than to find out that it needs something. For those who asked, not for the client."""


class Effects:
    __slots__ = ("batch", "producer", "records", "replies", "wakes")

    def __init__(self) -> None:
        self.records: list[tuple[Any, Any | None]] = []
        """Key and value (None for a tombstone), appended as one batch to the shard's own partition."""
        self.batch: bytes | None = None
        """The records as a batch, where there were so many that a thread encoded them before the step."""
        self.producer: tuple[int, int] | None = None
        """Producer id and epoch, when the batch is part of a transaction."""
        self.replies: list[tuple[Waiter, Any]] = []
        """Sent once the records are durable."""
        self.wakes: list[tuple[int, Any]] = []
        """When (ms) to call the shard's `wake` with which key. A late or a needless call does no harm: the machine
        looks at its own deadlines, so one that moved away needs no cancelling."""

    def record(self, key: Any, value: Any | None) -> None:
        self.records.append((key, value))

    def reply(self, waiter: Waiter, reply: Any) -> None:
        self.replies.append((waiter, reply))

    def wake(self, at_ms: int, key: Any) -> None:
        self.wakes.append((at_ms, key))

    def merge(self, other: Effects) -> None:
        self.records += other.records
        self.replies += other.replies
        self.wakes += other.wakes
