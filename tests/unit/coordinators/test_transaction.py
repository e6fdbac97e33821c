"""One transaction by itself: the tables of what may happen, and who is let in."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from moldau.coordinators.transactions.records import KINDS, TransactionLogKey
from moldau.coordinators.transactions.transaction import (
    END_V1,
    END_V2,
    EPOCH_MAX,
    PREVIOUS,
    EndDecision,
    Identity,
    ProducerIdNeeded,
    State,
    Transaction,
)
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.state_records import StateRecords, encode_key, encode_value
from moldau.wire.topic_partition import TopicPartition

STORED = [state for state in State if state < State.DEAD]
PREPARED = [State.PREPARE_COMMIT, State.PREPARE_ABORT]
SETTLED = [state for state in STORED if state not in PREPARED]
FIRST = TopicPartition("orders", 0)
SECOND = TopicPartition("orders", 1)


def transaction(state: State = State.EMPTY, epoch: int = 5, version: int = 2) -> Transaction:
    partitions = set() if state in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT) else {FIRST}
    return Transaction("t", 7, epoch, 60_000, state, partitions, 100, 100, version)


def add(one: Transaction, *args: Any, at_ms: int = 200) -> bool:
    return one.add(*args, now_ms=0, timestamp_ms=at_ms)


def refusal(step: Callable[..., object], *args: object) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        step(*args)
    return refused.value.code


@pytest.mark.parametrize(
    ("version", "state", "committed", "again"),
    [
        *((1, state, committed, False) for state, committed in itertools.product(SETTLED, (False, True))),
        *((2, *case) for case in itertools.product(SETTLED, (False, True), (False, True))),
    ],
)
def test_an_end_does_what_the_table_says(version: int, state: State, committed: bool, again: bool) -> None:
    verdict = END_V1[state][committed] if version == 1 else END_V2[state][2 * committed + (not again)]
    one = transaction(state, version=version)
    before = transaction(state, version=version)
    producer = Identity(7, 4 if again else 5)
    if verdict is EndDecision.GO:
        assert one.end(producer, committed, version, 200)
        assert one.state is (State.PREPARE_COMMIT if committed else State.PREPARE_ABORT)
        assert one.producer_epoch == (6 if version == 2 else 5)
    elif verdict is EndDecision.DONE:
        assert not one.end(producer, committed, version, 200)
        assert one == before
    else:
        code = {
            EndDecision.NO: ErrorCode.INVALID_TXN_STATE,
            EndDecision.FENCED: ErrorCode.PRODUCER_FENCED,
        }[verdict]
        assert refusal(one.end, producer, committed, version, 200) is code
        assert one == before


@pytest.mark.parametrize("state", SETTLED)
def test_every_verdict_to_go_on_leads_where_the_states_allow(state: State) -> None:
    for committed, verdict in enumerate(END_V1[state]):
        target = State.PREPARE_COMMIT if committed else State.PREPARE_ABORT
        assert verdict is not EndDecision.GO or state in PREVIOUS[target]
    for number, verdict in enumerate(END_V2[state]):
        target = State.PREPARE_COMMIT if number >= 2 else State.PREPARE_ABORT
        assert verdict is not EndDecision.GO or state in PREVIOUS[target]


@pytest.mark.parametrize("version", [1, 2])
def test_only_the_current_producer_may_add_verify_and_end(version: int) -> None:
    one = transaction(State.ONGOING, version=version)
    for zombie in (Identity(7, 4 if version == 1 else 3), Identity(7, 6)):
        assert refusal(add, one, zombie, [SECOND], version) is ErrorCode.PRODUCER_FENCED
        assert refusal(one.verify, zombie, [FIRST]) is ErrorCode.PRODUCER_FENCED
        assert refusal(one.end, zombie, True, version, 200) is ErrorCode.PRODUCER_FENCED
    stranger = Identity(8, 5)
    assert refusal(add, one, stranger, [SECOND], version) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert refusal(one.end, stranger, True, version, 200) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_the_first_partition_begins_a_transaction_and_a_known_one_changes_nothing() -> None:
    one = transaction(State.COMPLETE_COMMIT)
    producer = Identity(7, 5)
    assert add(one, producer, [FIRST], 2)
    assert (one.state, one.start_ms, one.partitions) == (State.ONGOING, 200, {FIRST})
    assert not add(one, producer, [FIRST], 2, at_ms=300)
    assert add(one, producer, [FIRST, SECOND], 2, at_ms=300)
    assert (one.start_ms, one.last_update_ms) == (200, 300)
    one.verify(producer, [FIRST, SECOND])
    assert refusal(one.verify, producer, [TopicPartition("other", 0)]) is ErrorCode.TRANSACTION_ABORTABLE


def test_a_transaction_that_does_not_fit_a_record_is_refused() -> None:
    one = transaction(State.ONGOING)
    many = [(f"{topic:0200}", 0) for topic in range(5000)]
    assert refusal(add, one, Identity(7, 5), many, 2) is ErrorCode.INVALID_REQUEST
    assert add(one, Identity(7, 5), [("one topic", number) for number in range(9_999)], 2)
    assert len(encode_value(one.to_value())) < 512 * 1024
    assert refusal(add, one, Identity(7, 5), [TopicPartition("another", 0)], 2) is ErrorCode.INVALID_REQUEST


def test_each_new_producer_raises_the_epoch_and_fences_the_one_before() -> None:
    one = Transaction("t", 7)
    assert one.initialize(60_000, None, 100)
    first = one.identity
    assert one.initialize(60_000, None, 100)
    assert (first, one.identity) == (Identity(7, 0), Identity(7, 1))
    assert refusal(one.initialize, 60_000, first, 200) is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_goes_on_gets_the_same_answer_again() -> None:
    one = transaction(State.EMPTY)
    assert one.initialize(60_000, Identity(7, 5), 200)
    assert one.identity == Identity(7, 6)
    assert one.initialize(60_000, Identity(7, 5), 200)
    assert one.identity == Identity(7, 6)


def test_a_zombie_cannot_abort_what_its_successor_does() -> None:
    one = transaction(State.ONGOING)
    assert refusal(one.initialize, 60_000, Identity(7, 4), 200) is ErrorCode.PRODUCER_FENCED
    assert one.state is State.ONGOING


def test_a_new_producer_aborts_the_open_transaction_and_has_to_ask_again() -> None:
    one = transaction(State.ONGOING)
    assert not one.initialize(60_000, None, 200)
    assert (one.state, one.identity) == (State.PREPARE_ABORT, Identity(7, 6))
    assert refusal(one.initialize, 60_000, None, 200) is ErrorCode.CONCURRENT_TRANSACTIONS
    one.complete(300)
    assert one.initialize(60_000, None, 300)
    assert one.identity == Identity(7, 7)


def test_the_last_epoch_brings_a_new_producer_id() -> None:
    one = transaction(State.EMPTY, epoch=EPOCH_MAX - 1)
    with pytest.raises(ProducerIdNeeded):
        one.initialize(60_000, None, 200)
    assert one == transaction(State.EMPTY, epoch=EPOCH_MAX - 1)
    assert one.initialize(60_000, Identity(7, EPOCH_MAX - 1), 200, fresh_id=8)
    assert one.identity == Identity(8, 0)
    assert one.initialize(60_000, Identity(7, EPOCH_MAX - 1), 200), "the answer was lost: the same again"
    assert one.identity == Identity(8, 0)


def test_a_transaction_that_uses_up_the_last_epoch_ends_with_it_and_goes_on_with_a_new_id() -> None:
    one = transaction(State.ONGOING, epoch=EPOCH_MAX - 1)
    producer = one.identity
    with pytest.raises(ProducerIdNeeded):
        one.end(producer, True, 2, 200)
    assert one.end(producer, True, 2, 200, fresh_id=8)
    assert (one.identity, one.identity_after) == (Identity(7, EPOCH_MAX), Identity(8, 0))
    one = Transaction.of("t", one.to_value())
    one.complete(300)
    assert one.identity == Identity(8, 0)
    one = Transaction.of("t", one.to_value())
    assert not one.end(producer, True, 2, 300), "the answer was lost: it is done"
    assert refusal(one.end, producer, False, 2, 300) is ErrorCode.INVALID_TXN_STATE


def test_nobody_learns_an_identity_by_naming_none() -> None:
    for epoch in (0, 5):
        one = transaction(State.COMPLETE_COMMIT, epoch=epoch)
        for producer in (Identity(-1, EPOCH_MAX - 1), Identity(-1, -1), Identity(-1, epoch - 1)):
            assert refusal(one.end, producer, True, 2, 200) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_fenced_producer_has_no_epoch_left_to_come_back_with() -> None:
    one = transaction(State.ONGOING, epoch=EPOCH_MAX - 1)
    one.fence(200)
    one.complete(200)
    assert one.producer_epoch == EPOCH_MAX
    assert refusal(one.initialize, 60_000, Identity(7, EPOCH_MAX - 1), 300) is ErrorCode.PRODUCER_FENCED
    assert one.initialize(60_000, None, 300, fresh_id=8)


@pytest.mark.parametrize("state", STORED)
def test_a_record_holds_everything(state: State) -> None:
    one = transaction(state)
    one.next_producer_id, one.previous_producer_id = 9, 3
    records = StateRecords(KINDS)
    pair = records.decode(encode_key(TransactionLogKey("t")), encode_value(one.to_value()))
    assert pair is not None
    assert Transaction.of(pair[0].transactional_id, pair[1]) == one


def test_records_are_kafkas_byte_for_byte() -> None:
    one = Transaction("t", 7, 5, 60_000, State.ONGOING, {FIRST, SECOND}, 100, 101, 2)
    assert encode_key(TransactionLogKey("t")) == b"\0\0\0\x01t"
    assert encode_value(one.to_value()) == (
        b"\0\x01"  # version
        b"\0\0\0\0\0\0\0\x07\0\x05\0\0\xea\x60\x01"  # producer id, epoch, timeout, state
        b"\x02\x07orders\x03\0\0\0\0\0\0\0\x01\0"  # partitions
        b"\0\0\0\0\0\0\0\x65\0\0\0\0\0\0\0\x64"  # last update, start
        b"\x01\x02\x02\0\x02"  # one tag: the client's transaction version
    )


def test_a_record_of_an_unknown_state_is_damage() -> None:
    value = transaction().to_value()
    broken = dataclasses.replace(value, transaction_status=6)
    assert refusal(Transaction.of, "t", broken) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("state", PREPARED)
def test_nothing_joins_a_transaction_whose_end_is_decided(state: State) -> None:
    one = transaction(state)
    assert refusal(one.verify, Identity(7, 5), [FIRST]) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal(add, one, Identity(7, 5), [FIRST], 2) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal(one.initialize, 60_000, None, 200) is ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("state", PREPARED)
def test_a_producer_is_asked_to_wait_while_its_transaction_ends_and_a_zombie_is_not(
    state: State, committed: bool
) -> None:
    """In version 2 the producer knows its next epoch already, and may have begun and given up another transaction."""
    one = transaction(state)
    for version, epoch in ((1, 5), (2, 5), (2, 4)):
        assert refusal(one.end, Identity(7, epoch), committed, version, 200) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal(one.end, Identity(7, 4), committed, 1, 200) is ErrorCode.PRODUCER_FENCED
    assert refusal(one.end, Identity(7, 3), committed, 2, 200) is ErrorCode.PRODUCER_FENCED


def test_a_producer_with_its_new_id_waits_until_the_last_transaction_of_the_old_one_is_complete() -> None:
    one = transaction(State.ONGOING, epoch=EPOCH_MAX - 1)
    assert one.end(one.identity, True, 2, 200, fresh_id=8)
    told = one.identity_after
    assert refusal(add, one, told, [FIRST], 2) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal(one.verify, told, [FIRST]) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal(one.end, told, False, 2, 200) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal(one.initialize, 60_000, told, 200) is ErrorCode.CONCURRENT_TRANSACTIONS
    one.complete(300)
    assert add(one, told, [FIRST], 2, at_ms=300)


def test_the_very_last_epoch_is_nobodys() -> None:
    one = transaction(State.ONGOING, epoch=EPOCH_MAX - 1)
    one.fence(200)
    one.complete(200)
    guessed = one.identity
    assert guessed.epoch == EPOCH_MAX
    assert refusal(add, one, guessed, [FIRST], 2) is ErrorCode.PRODUCER_FENCED
    for version in (1, 2):
        assert refusal(one.end, guessed, False, version, 300, 8) is ErrorCode.PRODUCER_FENCED
