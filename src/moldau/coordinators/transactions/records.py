"""The one kind of record of `__transaction_state`: all that is known of a transactional id, whole, each time."""

from __future__ import annotations

from moldau.wire.state_records import (
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    array_of,
    state_key,
    state_struct,
    state_value,
    wire,
)


@state_key(kind=0)
class TransactionLogKey:
    transactional_id: str = wire(STRING)


@state_struct
class PartitionsSchema:
    topic: str = wire(STRING)
    partition_ids: tuple[int, ...] = wire(array_of(INT32))


@state_value(versions=(0, 1), flexible_from=1, written=1)
class TransactionLogValue:
    """Kafka 4.2 leaves the previous and the next producer id out when it writes, though it reads them: there, a crash
    in the very transaction that used up the last epoch loses the new id. They are written here."""

    producer_id: int = wire(INT64)
    previous_producer_id: int = wire(INT64, since=1, tag=0, default=-1)
    next_producer_id: int = wire(INT64, since=1, tag=1, default=-1)
    producer_epoch: int = wire(INT16)
    next_producer_epoch: int = wire(INT16, since=1, tag=3, default=-1)
    transaction_timeout_ms: int = wire(INT32)
    transaction_status: int = wire(INT8)
    transaction_partitions: tuple[PartitionsSchema, ...] | None = wire(array_of(PartitionsSchema, nullable=True))
    transaction_last_update_timestamp_ms: int = wire(INT64)
    transaction_start_timestamp_ms: int = wire(INT64)
    client_transaction_version: int = wire(INT16, since=1, tag=2, default=0)


KINDS: dict[type, type] = {TransactionLogKey: TransactionLogValue}
