"""Apache Kafka's Java producer and its command for transactions, on our broker, in version 2 of transactions."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

from moldau import Broker
from soak.broker_process import BrokerProcess
from tests.integration.conftest import make_topic
from tests.integration.raw import RawClient
from tests.integration.raw_txn import RawProducer, committed_values, last_stable_offset
from tests.integration.records.test_apache import dump, java, pytestmark  # noqa: F401 - skips where there are no jars

COMMAND = "org.apache.kafka.tools.TransactionsCommand"


def test_a_java_producer_commits_transaction_after_transaction(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        make_topic(broker.bootstrap, 1, name="t")
        said = java(
            "org.apache.kafka.tools.ProducerPerformance", "--topic", "t", "--num-records", 5000, "--record-size", 100,
            "--throughput", 10_000, "--bootstrap-server", broker.bootstrap, "--transactional-id", "perf",
            "--transaction-duration-ms", 50,
        )  # fmt: skip
        assert "5000 records sent" in said
        described = java(COMMAND, "--bootstrap-server", broker.bootstrap, "describe", "--transactional-id", "perf")
        row = re.search(r"perf\s+(\d+)\s+(\d+)\s+CompleteCommit", described)
        assert row is not None, described
        assert int(row[2]) >= 2, "the epoch rises with every transaction"
        with RawClient(broker.bootstrap) as client:
            assert len(committed_values(client, "t")) == 5000
        broker.stop()
        (log,) = (path for path in broker.data_dir.glob("__transaction_state-*/*.log") if path.stat().st_size)
        records = dump("--transaction-log-decoder", "--files", log)
        assert '"transactionalId":"perf"' in records
        assert re.search(r'"transactionStatus":4,.*"clientTransactionVersion":2', records), "CompleteCommit"


def test_the_transactions_command_lists_and_aborts() -> None:
    with Broker() as broker, RawClient(broker.bootstrap_servers) as client:
        bootstrap = broker.bootstrap_servers
        topic = make_topic(bootstrap)
        producer = RawProducer(client, f"hanging-{uuid.uuid4().hex[:8]}", version=1).init()
        start = producer.write(topic, b"hangs")
        assert re.search(
            rf"{producer.transactional_id}\s.*Ongoing", java(COMMAND, "--bootstrap-server", bootstrap, "list")
        )
        where = ("--topic", topic, "--partition", 0)
        producers = java(COMMAND, "--bootstrap-server", bootstrap, "describe-producers", *where)
        assert re.search(rf"{producer.producer_id}\s+{producer.epoch}\s+-1\s+0\s+\d+\s+{start}", producers), producers
        java(COMMAND, "--bootstrap-server", bootstrap, "abort", *where, "--start-offset", start)
        assert last_stable_offset(client, topic) == 2
        assert committed_values(client, topic) == []
