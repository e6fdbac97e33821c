"""A produce with acks=all: it waits for its records to be committed, or for its timeout, whichever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from moldau.broker.network.client_connection import Buffers, Pipelined
from moldau.broker.replicas.partition import Partition
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.produce import ProducePartitionResult

TIMEOUT_MAX_MS = 600_000
"""A produce may ask to wait for 24 days; a client that disconnected must not be remembered that long."""


class Uncommitted(NamedTuple):
    """A partition whose high watermark has to reach `offset`, and where its result stands."""

    partition: Partition
    offset: int
    results: list[ProducePartitionResult]
    place: int

    def fail(self, error: KafkaError, hint: tuple[int, int] | None = None) -> None:
        self.results[self.place] = ProducePartitionResult(
            self.partition.index, int(error.code), error_message=error.message, current_leader=hint
        )


class DelayedProduce:
    """First `add` for each partition, at once after its append: later the partition may have another leader. Then
    `answer_with`: what makes the answer is called once, when the last of them is committed or given up."""

    __slots__ = ("_answer", "_make_answer", "_missing", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_ms: int) -> None:
        self._answer = Pipelined(loop.create_future())
        self._make_answer: Callable[[], Buffers] | None = None
        self._missing: dict[_Waiting, None] = {}
        self._timer = loop.call_later(min(timeout_ms, TIMEOUT_MAX_MS) / 1000, self._time_out)

    def add(self, uncommitted: Uncommitted) -> None:
        waiting = _Waiting(self, uncommitted)
        if not uncommitted.partition.wait_for_commit(uncommitted.offset, waiting):
            self._missing[waiting] = None

    def answer_with(self, make_answer: Callable[[], Buffers]) -> Pipelined:
        self._make_answer = make_answer
        self._finish_if_complete()
        return self._answer

    def done(self, waiting: _Waiting) -> None:
        self._missing.pop(waiting, None)
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        if self._make_answer is not None and not self._missing and not self._answer.future.done():
            self._timer.cancel()
            try:
                self._answer.settle(self._make_answer())
            except Exception as error:  # the connection decides what a failed answer means
                if not self._answer.future.done():
                    self._answer.future.set_exception(error)

    def _time_out(self) -> None:
        error = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the in-sync replicas did not take the records in time")
        for waiting in tuple(self._missing):
            waiting.uncommitted.partition.stop_waiting(waiting)
            waiting.failed(error)


class _Waiting:
    """One of its partitions."""

    __slots__ = ("_delayed", "uncommitted")

    def __init__(self, delayed: DelayedProduce, uncommitted: Uncommitted) -> None:
        self._delayed = delayed
        self.uncommitted = uncommitted

    def committed(self) -> None:
        partition = self.uncommitted.partition
        if partition.is_short_of_replicas:
            error = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "the in-sync set shrank after the append")
            self.uncommitted.fail(error)
        self._delayed.done(self)

    def failed(self, error: KafkaError) -> None:
        partition = self.uncommitted.partition
        lost = error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER and partition.leader_id >= 0
        self.uncommitted.fail(error, (partition.leader_id, partition.leader_epoch) if lost else None)
        self._delayed.done(self)
