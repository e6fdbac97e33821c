"""Transactions from the command line: seen while they are open, and ended from outside."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest

from moldau.config.topic import TopicConfig
from moldau.log.manager import LogManager
from moldau.wire.batch import encode_batch
from soak.broker_process import BrokerProcess

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Commands

NewTopic = Callable[..., str]

NOW_MS = time.time_ns() // 1_000_000
PRODUCER_ID = 77_000_000  # not soon given to anybody


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


def leave_open(data_dir: Path, topic: str) -> None:
    """An hour-old transaction of which no coordinator knows, written past the broker, which is not running."""
    manager = LogManager([data_dir], default_config=TopicConfig(), node_id=1, clock=lambda: NOW_MS, recovery_threads=1)
    manager.lock()
    manager.open()
    log = manager.get(topic, 0)
    assert log is not None
    batch = encode_batch(
        [(b"k", b"stuck", NOW_MS - 3_600_000, ())],
        producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=0, is_transactional=True,
    )  # fmt: skip
    log.append(bytearray(batch), leader_epoch=0, now_ms=NOW_MS)
    manager.close()


def test_a_transaction_that_hangs_is_found_and_aborted(commands: Commands, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        commands = type(commands)(broker.bootstrap)
        for topic in ("stuck", "other"):
            commands.ok("topics", "--create", "--topic", topic, "--partitions", "1")
        assert broker.stop() == 0
        leave_open(broker.data_dir, "stuck")
        broker.start()
        commands.ok("console-producer", "--topic", "stuck", stdin="later\n")
        consume = ("console-consumer", "--topic", "stuck", "--from-beginning", "--isolation-level", "read_committed")
        assert commands.ok(*consume, "--timeout-ms", "1000") == ""
        search = ("transactions", "--json", "find-hanging")
        for scope in (["--topic", "stuck"], ["--broker-id", "1"], ["--topic", "stuck", "--partition", "0"]):
            (found,) = json.loads(commands.ok(*search, *scope))
            assert (found["topic"], found["partition"], found["producerId"]) == ("stuck", 0, PRODUCER_ID)
            assert found["startOffset"] == 0
            assert found["durationMin"] >= 60
        for scope in (["--topic", "other"], ["--topic", "stuck", "--max-transaction-timeout", "120"]):
            assert json.loads(commands.ok(*search, *scope)) == []
        aborted = commands.ok("transactions", "abort", "--topic", "stuck", "--partition", "0", "--start-offset", "0")
        assert aborted == f"Aborted the transaction of producer {PRODUCER_ID} in stuck-0.\n"
        assert json.loads(commands.ok(*search, "--broker-id", "1")) == []
        assert commands.ok(*consume, "--max-messages", "1") == "later\n"


def test_a_transaction_that_does_not_hang_is_not_aborted_in_one_partition(
    commands: Commands, open_transaction: Open
) -> None:
    here = ("--topic", open_transaction.topic, "--partition", "0")
    wrong = commands("transactions", "abort", *here, "--start-offset", "99")
    assert wrong.code == 1
    assert "Could not find any open transactions starting at offset 99" in wrong.err
    refused = commands("transactions", "abort", *here, "--start-offset", "0")
    assert (refused.code, refused.out) == (1, "")
    assert "it does not hang, its coordinator knows it as Ongoing" in refused.err
    assert open_transaction.partition_state()["currentTransactionStartOffset"] == 0
    open_transaction.producer.commit_transaction(30)


def test_a_transactional_id_is_taken_from_its_producer(commands: Commands, open_transaction: Open) -> None:
    terminate = ("transactions", "forceTerminateTransaction", "--transactionalId")
    assert commands.ok(*terminate, open_transaction.transactional_id).endswith("was aborted.\n")
    assert open_transaction.partition_state()["currentTransactionStartOffset"] is None
    with pytest.raises(confluent_kafka.KafkaException):
        open_transaction.producer.commit_transaction(30)
    before = open_transaction.coordinator_state()
    assert "has no ongoing transaction" in commands.ok(*terminate, open_transaction.transactional_id)
    assert open_transaction.coordinator_state() == before, "nothing was open, nothing changed"
    unknown = commands(*terminate, "cli-nobody")
    assert (unknown.code, unknown.out) == (1, "")
    assert "The transactional id could not be found." in unknown.err
    assert "cli-nobody" not in commands.ok("transactions", "list")


def test_what_nobody_knows_is_a_failure_in_one_line(commands: Commands, new_topic: NewTopic) -> None:
    topic = new_topic()
    for args, words in (
        (["describe", "--transactional-id", "cli-nobody"], "The transactional id could not be found."),
        (["describe-producers", "--topic", topic, "--partition", "7"], f"partition {topic}-7 on leader"),
        (["find-hanging", "--broker-id", "7"], "Broker 7 is not part of the cluster"),
        (["list", "--transactional-id-pattern", "("], "The regular expression is not valid."),
        (
            ["abort", "--topic", topic, "--partition", "0", "--start-offset", "0"],
            "Could not find any open transactions",
        ),
    ):
        result = commands("transactions", *args)
        assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
        assert words in result.err
