"""The transactions of one partition of `__transaction_state`, and the events that happen to them.

What a step of `transaction.py` changes becomes a record here; what it decides becomes markers. The markers are a reply
like any other, so they leave when the record of the decision is safe. Whoever writes them comes back with
`markers_written`; partitions that could not be written are tried again until all have theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from moldau.config.broker import BrokerConfig
from moldau.coordinators.effects import Effects, Waiter
from moldau.coordinators.transactions.records import TransactionLogKey, TransactionLogValue
from moldau.coordinators.transactions.transaction import Identity, ProducerIdNeeded, State, Transaction
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.batch import NO_PRODUCER_ID
from moldau.wire.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

MARKERS_RETRY_MS = 200
MARKERS_RETRY_MAX_MS = 2_000
"""Between two tries to write a marker, twice as long each time: a disk may be full for a while, but readers and the
next transaction wait for a partition that has a leader again."""
EXPIRED_AT_ONCE_BYTES = 128 * 1024
"""Transactional ids whose tombstones go into one batch: it must fit into `message.max.bytes` and not block the loop."""
EXPIRED_NEXT_MS = 100

_TIMEOUTS = ("timeouts",)
_EXPIRATION = ("expiration",)


class InitProducerId(NamedTuple):
    transactional_id: str
    timeout_ms: int
    expected: Identity | None = None
    fresh_id: int = NO_PRODUCER_ID


class Initialized(NamedTuple):
    error: ErrorCode
    producer: Identity


class AddPartitions(NamedTuple):
    transactional_id: str
    producer: Identity
    partitions: Collection[TopicPartition]
    version: int


class EndTxn(NamedTuple):
    transactional_id: str
    producer: Identity
    committed: bool
    version: int
    fresh_id: int = NO_PRODUCER_ID


class Markers(NamedTuple):
    """What has to be written: one control batch in each of the partitions."""

    transactional_id: str
    producer: Identity
    committed: bool
    version: int
    partitions: tuple[TopicPartition, ...]


NO_PRODUCER = Identity(-1, -1)


class TransactionShard:
    def __init__(
        self, config: Callable[[], BrokerConfig], marker_writer: Waiter, *, wall_clock: Callable[[], int]
    ) -> None:
        self.transactions: dict[str, Transaction] = {}
        self._config = config
        self.marker_writer = marker_writer
        self._wall_clock = wall_clock

    # -- requests

    def init_producer_id(self, waiter: Waiter, request: InitProducerId, now_ms: int) -> Effects:
        """A new producer; who had the id before is fenced. An open transaction is aborted first: ask again then."""
        transactional_id, timeout_ms, expected, fresh_id = request
        if not 0 < timeout_ms <= self._config().transaction_max_timeout_ms:
            raise KafkaError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"invalid transaction timeout {timeout_ms} ms; "
                f"transaction.max.timeout.ms is {self._config().transaction_max_timeout_ms}",
            )
        effects = Effects()
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            if fresh_id < 0:
                raise ProducerIdNeeded
            transaction = Transaction(transactional_id, fresh_id)
        if transaction.initialize(timeout_ms, expected, self._wall_clock(), fresh_id):
            self.transactions[transactional_id] = transaction
            _record(effects, transaction)
            effects.reply(waiter, Initialized(ErrorCode.NONE, transaction.identity))
        else:
            effects.reply(waiter, Initialized(ErrorCode.CONCURRENT_TRANSACTIONS, NO_PRODUCER))
            self._prepared(effects, transaction)
        return effects

    def add_partitions(self, waiter: Waiter, request: AddPartitions, now_ms: int) -> Effects:
        effects = Effects()
        transaction = self._get(request.transactional_id)
        _, producer, partitions, version = request
        if transaction.add(producer, partitions, version, now_ms=now_ms, timestamp_ms=self._wall_clock()):
            _record(effects, transaction)
        effects.reply(waiter, None)
        return effects

    def verify(self, transactional_id: str, producer: Identity, partitions: Collection[TopicPartition]) -> None:
        """KafkaError unless all the partitions are in the producer's open transaction."""
        self._get(transactional_id).verify(producer, partitions)

    def end(self, waiter: Waiter, request: EndTxn, now_ms: int) -> Effects:
        """Replies who the producer is afterwards."""
        transactional_id, producer, committed, version, fresh_id = request
        effects = Effects()
        transaction = self._get(transactional_id)
        if transaction.end(producer, committed, version, self._wall_clock(), fresh_id):
            effects.reply(waiter, transaction.identity_after)
            self._prepared(effects, transaction)
        else:
            effects.reply(waiter, transaction.identity)
        return effects

    def markers_written(self, markers: Markers, written: Collection[TopicPartition], now_ms: int) -> Effects:
        """The transaction is complete when all are; the others are tried again."""
        effects = Effects()
        transaction = self.transactions.get(markers.transactional_id)
        if transaction is None or not transaction.is_prepared or transaction.identity != markers.producer:
            return effects
        transaction.partitions.difference_update(written)
        if transaction.partitions:
            delay_ms = min(MARKERS_RETRY_MS << min(transaction.marker_failures, 16), MARKERS_RETRY_MAX_MS)
            transaction.marker_failures += 1
            effects.wake(now_ms + delay_ms, ("finish", transaction.transactional_id))
        else:
            self._complete(effects, transaction)
        return effects

    def _get(self, transactional_id: str) -> Transaction:
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"unknown transactional id {transactional_id}")
        return transaction

    def _prepared(self, effects: Effects, transaction: Transaction) -> None:
        _record(effects, transaction)
        self._write_markers(effects, transaction)

    def _write_markers(self, effects: Effects, transaction: Transaction) -> None:
        if transaction.partitions:
            effects.reply(self.marker_writer, _markers(transaction))
        else:
            self._complete(effects, transaction)

    def _complete(self, effects: Effects, transaction: Transaction) -> None:
        transaction.complete(self._wall_clock())
        _record(effects, transaction)

    # -- time

    def wake(self, key: Any, now_ms: int) -> Effects:
        what, *details = key
        steps: dict[str, Callable[..., Effects]] = {
            "timeouts": self._abort_timed_out,
            "timeout": self._abort,
            "expiration": self._expire,
            "finish": self._finish,
        }
        return steps[what](now_ms, *details)

    def _abort_timed_out(self, now_ms: int) -> Effects:
        """Each is a step of its own: together their records could be more than a batch may hold."""
        effects = Effects()
        for transaction in self.transactions.values():
            if transaction.is_overdue(now_ms):
                effects.wake(now_ms, ("timeout", transaction.transactional_id))
        interval_ms = self._config().transaction_abort_timed_out_transaction_cleanup_interval_ms
        effects.wake(now_ms + interval_ms, _TIMEOUTS)
        return effects

    def _abort(self, now_ms: int, transactional_id: str) -> Effects:
        effects = Effects()
        transaction = self.transactions.get(transactional_id)
        if transaction is not None and transaction.is_overdue(now_ms):
            logger.info("aborting a transaction that timed out", extra={"transactional_id": transactional_id})
            transaction.fence(self._wall_clock())
            self._prepared(effects, transaction)
        return effects

    def _expire(self, now_ms: int) -> Effects:
        effects = Effects()
        expiration_ms = self._config().transactional_id_expiration_ms
        timestamp_ms = self._wall_clock()  # their last use is known from records, perhaps of another broker
        expired = [one for one, txn in self.transactions.items() if txn.is_expired(timestamp_ms, expiration_ms)]
        size = 0
        pause_ms = self._config().transaction_remove_expired_transaction_cleanup_interval_ms
        for transactional_id in expired:
            if size > EXPIRED_AT_ONCE_BYTES:
                pause_ms = EXPIRED_NEXT_MS
                break
            size += len(transactional_id)
            del self.transactions[transactional_id]
            effects.record(TransactionLogKey(transactional_id), None)
        effects.wake(now_ms + pause_ms, _EXPIRATION)
        return effects

    def _finish(self, now_ms: int, transactional_id: str) -> Effects:
        """Goes on with what was decided, and could not be done to the end."""
        effects = Effects()
        transaction = self.transactions.get(transactional_id)
        if transaction is not None and transaction.is_prepared:
            self._write_markers(effects, transaction)
        return effects

    # -- loading

    def replay(
        self,
        key: TransactionLogKey,
        value: TransactionLogValue | None,
        *,
        offset: int,
        timestamp_ms: int,
        producer_id: int = -1,
    ) -> None:
        if value is None:
            self.transactions.pop(key.transactional_id, None)
        else:
            self.transactions[key.transactional_id] = Transaction.of(key.transactional_id, value)

    def replay_marker(self, producer_id: int, committed: bool) -> None:
        """Nobody writes to this topic in a transaction."""

    def loaded(self, now_ms: int) -> Effects:
        """Ends what was decided before the crash; what was only open times out in its own time."""
        effects = Effects()
        timestamp_ms = self._wall_clock()
        for transaction in self.transactions.values():
            transaction.loaded(now_ms, timestamp_ms)
            if transaction.is_prepared:
                effects.wake(now_ms, ("finish", transaction.transactional_id))
        effects.wake(now_ms + self._config().transaction_abort_timed_out_transaction_cleanup_interval_ms, _TIMEOUTS)
        effects.wake(now_ms + self._config().transaction_remove_expired_transaction_cleanup_interval_ms, _EXPIRATION)
        return effects


def _record(effects: Effects, transaction: Transaction) -> None:
    effects.record(TransactionLogKey(transaction.transactional_id), transaction.to_value())


def _markers(transaction: Transaction) -> Markers:
    return Markers(
        transaction.transactional_id,
        transaction.identity,
        transaction.state is State.PREPARE_COMMIT,
        transaction.version,
        tuple(sorted(transaction.partitions)),
    )
