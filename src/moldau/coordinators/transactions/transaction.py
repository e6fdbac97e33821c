"""The transaction of one transactional id: what may happen to it, and what then is true.

A transactional id owns a producer id and an epoch. Whoever has the current epoch is the producer; everybody else who
uses the same id is a zombie and refused. One transaction is open at a time.

    Empty ── add partitions ──▶ Ongoing ── commit ───────────▶ PrepareCommit ── all markers written ──▶ CompleteCommit
                                   │
                                   └────── abort, timeout, ──▶ PrepareAbort ─── all markers written ──▶ CompleteAbort
                                           a new producer

    From a Complete state it goes on as from Empty: partitions make it Ongoing, a new producer makes it Empty.
    In version 2 a client that does not know what the broker knows may abort nothing: Empty, Complete* ──▶ PrepareAbort.

The outcome is decided by the record of a Prepare state, once and for all: before it, a crash leaves a transaction that
times out and is aborted; after it, the markers are written until every partition has one, however often the broker
dies in between. Only then may the next transaction begin.

**Epochs.** A producer that was fenced (by its successor, or because its transaction took too long) is one whose epoch
was raised behind its back. From version 2 of transactions on (KIP-890), every end raises the epoch: the markers carry
the new one, so whatever of the ended transaction is still on its way to a partition comes too late for good, and can
never open a transaction that will not be ended. An end that is asked for again is told apart from the next one by the
epoch it names, the old one. The last epoch but one of a producer id is also the last that a client gets (the very last
fences it): then a new producer id takes over.

Nothing here does I/O: a method changes the transaction, or raises a KafkaError and changes nothing. Records have the
time of the wall clock (`timestamp_ms`); the timeout of an open transaction runs on the monotonic one (`now_ms`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple

from moldau.coordinators.effects import NothingChanged
from moldau.coordinators.transactions.records import PartitionsSchema, TransactionLogValue
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.batch import NO_PRODUCER_ID
from moldau.wire.topic_partition import TopicPartition

NO_EPOCH = -1
EPOCH_MAX = 2**15 - 1
EPOCH_BUMP_VERSION_MIN = 2
"""The version of transactions in which every end raises the epoch."""

PARTITIONS_BYTES_MAX = 512 * 1024
"""Per transaction, in its record, which has to fit into `message.max.bytes` (1 MiB by default)."""
PARTITIONS_MAX = 10_000
"""Per transaction: each partition that is added sorts and writes all of them again, which takes 10 ms for so many."""


class ProducerIdNeeded(NothingChanged):
    """The step needs a new producer id: ask again and bring one."""


class State(IntEnum):
    """Kafka's numbers: they are in the records. The last two are in none: an id that expires leaves a tombstone, and
    to fence a producer is one step here."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """As the commands show it: PrepareCommit."""
        return self.name.title().replace("_", "")


_IDLE = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
_PREPARED = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})

PREVIOUS: dict[State, frozenset[State]] = {
    State.EMPTY: _IDLE,
    State.ONGOING: _IDLE | {State.ONGOING},
    State.PREPARE_COMMIT: frozenset({State.ONGOING}),
    State.PREPARE_ABORT: _IDLE | {State.ONGOING},  # out of nothing: a client that does not know what the broker knows
    State.COMPLETE_COMMIT: frozenset({State.PREPARE_COMMIT}),
    State.COMPLETE_ABORT: frozenset({State.PREPARE_ABORT}),
    State.DEAD: _IDLE,
    State.PREPARE_EPOCH_FENCE: frozenset({State.ONGOING}),
}
"""The states from which each state may be entered."""


class EndDecision(Enum):
    """What is said to a request to end the transaction; while one is ending: ask again."""

    GO = "end it"
    DONE = "it has ended like that already"
    NO = "there is nothing to end, or it ended the other way"
    FENCED = "the epoch is not the one that this state expects"


_GO, _DONE, _NO, _FENCED = EndDecision.GO, EndDecision.DONE, EndDecision.NO, EndDecision.FENCED

END_V1: dict[State, tuple[EndDecision, EndDecision]] = {
    # .                    abort   commit      with the current epoch; any other is fenced
    State.EMPTY:           (_NO,   _NO),
    State.ONGOING:         (_GO,   _GO),
    State.COMPLETE_COMMIT: (_NO,   _DONE),
    State.COMPLETE_ABORT:  (_DONE, _NO),
}  # fmt: skip

END_V2: dict[State, tuple[EndDecision, EndDecision, EndDecision, EndDecision]] = {
    # .                    abort                commit
    # .                    again     current    again     current    "again": with the epoch before the current one
    State.EMPTY:           (_FENCED, _GO,       _FENCED,  _NO),
    State.ONGOING:         (_FENCED, _GO,       _FENCED,  _GO),
    State.COMPLETE_COMMIT: (_NO,     _GO,       _DONE,    _NO),
    State.COMPLETE_ABORT:  (_DONE,   _GO,       _NO,      _NO),
}  # fmt: skip


class Identity(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


@dataclass(slots=True)
class Transaction:
    transactional_id: str
    producer_id: int
    producer_epoch: int = NO_EPOCH
    timeout_ms: int = 0
    state: State = State.EMPTY
    partitions: set[TopicPartition] = field(default_factory=set)
    start_ms: int = -1
    last_update_ms: int = -1
    version: int = 0
    """The version of transactions (KIP-890) of the client that last changed the state."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The one before the last step, where that replaced it: a retry may still name it."""
    next_producer_id: int = NO_PRODUCER_ID
    """Takes over at the end of this transaction, the last of its producer id."""
    last_producer_epoch: int = field(default=NO_EPOCH, compare=False)
    """The producer's epoch before its last step. In no record: a retry that finds another coordinator is fenced."""
    deadline_ms: int = field(default=0, compare=False)
    """When an open transaction times out, on the monotonic clock. It is in no record, so `loaded` sets it again."""
    marker_failures: int = field(default=0, compare=False)
    """How often in a row some of its markers could not be written."""

    # -- questions

    @property
    def identity(self) -> Identity:
        return Identity(self.producer_id, self.producer_epoch)

    @property
    def identity_after(self) -> Identity:
        """The identity of the producer after a prepared transaction is complete."""
        return Identity(self.next_producer_id, 0) if self.next_producer_id >= 0 else self.identity

    @property
    def is_prepared(self) -> bool:
        return self.state in _PREPARED

    @property
    def is_exhausted(self) -> bool:
        return self.producer_epoch >= EPOCH_MAX - 1

    def is_overdue(self, now_ms: int) -> bool:
        return self.state is State.ONGOING and self.deadline_ms < now_ms

    def is_expired(self, timestamp_ms: int, expiration_ms: int) -> bool:
        return self.state in _IDLE and self.last_update_ms <= timestamp_ms - expiration_ms

    def verify(self, producer: Identity, partitions: Collection[TopicPartition]) -> None:
        """Refuses what is not part of the producer's open transaction."""
        self.require(producer)
        if not self.partitions.issuperset(partitions):
            raise KafkaError(
                ErrorCode.TRANSACTION_ABORTABLE,
                f"the partition was not added to the transaction of {self.transactional_id}",
            )

    def require(self, producer: Identity) -> None:
        """Refuses a zombie; and a producer that is told already who it is, while its last transaction still ends."""
        if self.is_prepared and producer == self.identity_after:
            raise self._ending()
        if self.producer_id != producer.producer_id:
            raise self._wrong_id(producer)
        if self.producer_epoch != producer.epoch or producer.epoch == EPOCH_MAX:
            raise self._fenced(producer)

    # -- steps

    def initialize(
        self, timeout_ms: int, expected: Identity | None, timestamp_ms: int, fresh_id: int = NO_PRODUCER_ID
    ) -> bool:
        """A producer begins, or goes on after an error: then `expected` is who it was.

        False if a transaction is open: that one is aborted now, the producer has to ask again.
        """
        if self.is_prepared:
            raise self._ending()
        if expected is not None and not self._may_use(expected):
            raise self._fenced(expected)
        if self.state is State.ONGOING:
            if expected is not None:
                self.require(expected)  # a zombie must not abort what its successor does
            self.fence(timestamp_ms)
            return False
        last_epoch = self.producer_epoch if expected is not None else NO_EPOCH
        if self.is_exhausted and (expected is None or expected.epoch == self.producer_epoch):
            successor = Identity(_require_id(fresh_id), 0)
        elif expected is None or self.producer_epoch in (NO_EPOCH, expected.epoch):
            successor = Identity(self.producer_id, self.producer_epoch + 1)
        elif expected.epoch == self.last_producer_epoch and not self.is_exhausted:
            successor, last_epoch = self.identity, self.last_producer_epoch  # its answer was lost: the same once more
        else:
            raise self._fenced(expected)
        self._enter(State.EMPTY, timestamp_ms, successor)
        self.last_producer_epoch = last_epoch
        self.timeout_ms = timeout_ms
        self.partitions = set()
        self.start_ms = -1
        return True

    def _may_use(self, expected: Identity) -> bool:
        return (
            self.producer_epoch == NO_EPOCH  # unknown until now: its record expired, perhaps
            or expected.producer_id == self.producer_id
            or (expected.producer_id == self.previous_producer_id and expected.epoch >= EPOCH_MAX - 1)
        )

    def add(
        self,
        producer: Identity,
        partitions: Collection[TopicPartition],
        version: int,
        *,
        now_ms: int,
        timestamp_ms: int,
    ) -> bool:
        """Makes partitions part of the transaction, and begins it with the first ones; False if all were in it."""
        self.require(producer)
        begins = self.state is not State.ONGOING
        if not begins and self.partitions.issuperset(partitions):
            return False
        together = self.partitions.union(partitions)
        if len(together) > PARTITIONS_MAX or _size_of(together) > PARTITIONS_BYTES_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"too many partitions in one transaction ({len(together)})")
        self._enter(State.ONGOING, timestamp_ms, self.identity)
        self.partitions = together
        self.version = version
        if begins:
            self.start_ms = timestamp_ms
            self.deadline_ms = now_ms + self.timeout_ms
        return True

    def loaded(self, now_ms: int, timestamp_ms: int) -> None:
        """What is left of the timeout counts from now on: all of it at the most, if a clock went back in between."""
        left_ms = self.start_ms + self.timeout_ms - timestamp_ms
        self.deadline_ms = now_ms + min(max(left_ms, 0), self.timeout_ms)

    def end(
        self, producer: Identity, committed: bool, version: int, timestamp_ms: int, fresh_id: int = NO_PRODUCER_ID
    ) -> bool:
        """Decides the outcome; False if it was decided before, in the same way, and all is done."""
        decision = self._decide_end(producer, committed, version)
        if decision is EndDecision.DONE:
            return False
        if decision is EndDecision.FENCED:
            raise self._fenced(producer)
        if decision is EndDecision.NO:
            wish = "commit" if committed else "abort"
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE, f"{self.transactional_id}: cannot {wish} in state {self.state.label}"
            )
        next_id = _require_id(fresh_id) if version >= EPOCH_BUMP_VERSION_MIN and self.is_exhausted else NO_PRODUCER_ID
        self._prepare(State.PREPARE_COMMIT if committed else State.PREPARE_ABORT, version, timestamp_ms)
        self.next_producer_id = next_id
        return True

    def _decide_end(self, producer: Identity, committed: bool, version: int) -> EndDecision:
        if version < EPOCH_BUMP_VERSION_MIN:
            self.require(producer)
            return END_V1[self.state][committed]
        before = Identity(self.producer_id, self.producer_epoch - 1)
        if self.producer_epoch == 0:
            before = Identity(self.previous_producer_id, EPOCH_MAX - 1)
        again = producer == before and producer.producer_id >= 0
        if not again:
            self.require(producer)
        elif self.is_prepared:
            raise self._ending()
        return END_V2[self.state][2 * committed + (not again)]

    def fence(self, timestamp_ms: int) -> None:
        """Aborts the open transaction behind the back of its producer, who is refused from now on."""
        self._prepare(State.PREPARE_ABORT, EPOCH_BUMP_VERSION_MIN, timestamp_ms)

    def _prepare(self, state: State, version: int, timestamp_ms: int) -> None:
        if self.state is not State.ONGOING:
            self.start_ms = timestamp_ms
        successor = self.identity
        if version >= EPOCH_BUMP_VERSION_MIN:
            self.last_producer_epoch = self.producer_epoch
            successor = Identity(self.producer_id, self.producer_epoch + 1)
        self._enter(state, timestamp_ms, successor)
        self.version = version

    def complete(self, timestamp_ms: int) -> None:
        """Every partition has its marker."""
        committed = self.state is State.PREPARE_COMMIT
        self._enter(State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT, timestamp_ms, self.identity_after)
        self.next_producer_id = NO_PRODUCER_ID
        self.partitions = set()
        self.marker_failures = 0

    def _enter(self, state: State, timestamp_ms: int, successor: Identity) -> None:
        assert self.state in PREVIOUS[state], f"{self.transactional_id}: {self.state.name} -> {state.name}"
        rotated = successor.producer_id != self.producer_id
        self.previous_producer_id = self.producer_id if rotated else NO_PRODUCER_ID
        self.producer_id, self.producer_epoch = successor
        self.state = state
        self.last_update_ms = timestamp_ms

    # -- refusals

    def _ending(self) -> KafkaError:
        return KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, f"{self.transactional_id} is ending a transaction")

    def _fenced(self, producer: Identity) -> KafkaError:
        return KafkaError(
            ErrorCode.PRODUCER_FENCED,
            f"epoch {producer.epoch} of {self.transactional_id} is not the current one, {self.producer_epoch}: "
            "there is a newer producer with the same transactional id, or a transaction took too long",
        )

    def _wrong_id(self, producer: Identity) -> KafkaError:
        return KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"producer id {producer.producer_id} does not belong to {self.transactional_id}",
        )

    # -- records

    def to_value(self) -> TransactionLogValue:
        by_topic: defaultdict[str, list[int]] = defaultdict(list)
        for topic, partition in sorted(self.partitions):
            by_topic[topic].append(partition)
        return TransactionLogValue(
            producer_id=self.producer_id,
            previous_producer_id=self.previous_producer_id,
            next_producer_id=self.next_producer_id,
            producer_epoch=self.producer_epoch,
            transaction_timeout_ms=self.timeout_ms,
            transaction_status=self.state,
            transaction_partitions=None
            if self.state is State.EMPTY
            else tuple(
                PartitionsSchema(topic=topic, partition_ids=tuple(partitions)) for topic, partitions in by_topic.items()
            ),
            transaction_last_update_timestamp_ms=self.last_update_ms,
            transaction_start_timestamp_ms=self.start_ms,
            client_transaction_version=self.version,
        )

    @classmethod
    def of(cls, transactional_id: str, value: TransactionLogValue) -> Transaction:
        if not 0 <= value.transaction_status < State.DEAD:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"{transactional_id} has the unknown state {value.transaction_status}"
            )
        return cls(
            transactional_id,
            value.producer_id,
            value.producer_epoch,
            value.transaction_timeout_ms,
            State(value.transaction_status),
            {
                TopicPartition(one.topic, index)
                for one in value.transaction_partitions or ()
                for index in one.partition_ids
            },
            value.transaction_start_timestamp_ms,
            value.transaction_last_update_timestamp_ms,
            value.client_transaction_version,
            value.previous_producer_id,
            value.next_producer_id,
        )


def _require_id(fresh_id: int) -> int:
    if fresh_id < 0:
        raise ProducerIdNeeded
    return fresh_id


def _size_of(partitions: Collection[TopicPartition]) -> int:
    """At the most, in the record. Few cannot be too large, and few are what nearly every transaction has."""
    if len(partitions) < 1000:
        return 0
    return sum(8 + len(topic.encode()) for topic in {topic for topic, _ in partitions}) + 4 * len(partitions)
