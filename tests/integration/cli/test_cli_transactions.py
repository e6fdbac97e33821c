"""Transactions from the command line: seen while they are open, and ended from outside."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest

if TYPE_CHECKING:
    from conftest import Commands

NewTopic = Callable[..., str]


class Open:
    """A transaction with one record in it, not ended."""

    def __init__(self, commands: Commands, topic: str) -> None:
        self.topic = topic
        self.transactional_id = f"txn-{uuid.uuid4().hex[:12]}"
        self._commands = commands
        self.producer = confluent_kafka.Producer(
            {"bootstrap.servers": commands.bootstrap_servers, "transactional.id": self.transactional_id}
        )
        self.producer.init_transactions(30)
        self.producer.begin_transaction()
        self.producer.produce(topic, b"open")
        assert self.producer.flush(30) == 0

    def partition_state(self) -> dict[str, Any]:
        answer = self._commands.ok(
            "transactions", "--json", "describe-producers", "--topic", self.topic, "--partition", "0"
        )
        (state,) = json.loads(answer)
        return dict(state)

    def coordinator_state(self) -> dict[str, Any]:
        answer = self._commands.ok("transactions", "--json", "describe", "--transactional-id", self.transactional_id)
        (state,) = json.loads(answer)
        return dict(state)


@pytest.fixture
def open_transaction(commands: Commands, new_topic: NewTopic) -> Open:
    return Open(commands, new_topic("--partitions", "1"))


def test_an_open_transaction_is_seen_from_both_sides(commands: Commands, open_transaction: Open) -> None:
    name = open_transaction.transactional_id
    head, *rows = [line.split() for line in commands.ok("transactions", "list").splitlines()]
    assert head == ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"]
    (row,) = [row for row in rows if row[0] == name]
    assert row[3] == "Ongoing"
    state = open_transaction.coordinator_state()
    assert (state["transactionState"], state["topicPartitions"]) == ("Ongoing", f"{open_transaction.topic}-0")
    assert state["transactionDurationMs"] >= 0
    seen = open_transaction.partition_state()
    assert (seen["producerId"], seen["currentTransactionStartOffset"]) == (int(row[2]), 0)

    open_transaction.producer.commit_transaction(30)
    assert open_transaction.partition_state()["currentTransactionStartOffset"] is None
    assert open_transaction.coordinator_state()["transactionState"] == "CompleteCommit"


def test_lists_of_transactions_are_filtered(commands: Commands, open_transaction: Open) -> None:
    name = open_transaction.transactional_id
    assert name in commands.ok("transactions", "list", "--transactional-id-pattern", "txn-.*")
    assert name not in commands.ok("transactions", "list", "--transactional-id-pattern", "other-.*")
    assert name not in commands.ok("transactions", "list", "--duration-filter", "3600000")


def test_a_transaction_that_its_coordinator_knows_does_not_hang(commands: Commands, open_transaction: Open) -> None:
    search = ("transactions", "--json", "find-hanging", "--topic", open_transaction.topic)
    assert json.loads(commands.ok(*search, "--max-transaction-timeout", "0")) == []


def test_a_transaction_is_aborted_in_its_partition(commands: Commands, open_transaction: Open) -> None:
    here = ("--topic", open_transaction.topic, "--partition", "0")
    wrong = commands("transactions", "abort", *here, "--start-offset", "99")
    assert wrong.code == 1
    assert "Could not find any open transactions starting at offset 99" in wrong.err
    commands.ok("transactions", "abort", *here, "--start-offset", "0")
    assert open_transaction.partition_state()["currentTransactionStartOffset"] is None


def test_a_transactional_id_is_taken_from_its_producer(commands: Commands, open_transaction: Open) -> None:
    commands.ok("transactions", "forceTerminateTransaction", "--transactionalId", open_transaction.transactional_id)
    assert open_transaction.partition_state()["currentTransactionStartOffset"] is None
    with pytest.raises(confluent_kafka.KafkaException):
        open_transaction.producer.commit_transaction(30)


def test_what_nobody_knows_is_a_failure_in_one_line(commands: Commands, new_topic: NewTopic) -> None:
    topic = new_topic()
    for args, words in (
        (["describe", "--transactional-id", "cli-nobody"], "The transactional id could not be found."),
        (["describe-producers", "--topic", topic, "--partition", "7"], f"partition {topic}-7 on leader"),
        (
            ["abort", "--topic", topic, "--partition", "0", "--start-offset", "0"],
            "Could not find any open transactions",
        ),
    ):
        result = commands("transactions", *args)
        assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
        assert words in result.err
