"""Apache Kafka's Java producer on three of our brokers. Maven fetches its jars where they are not here yet."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import moldau
from bench.servers.apache import JARS
from moldau.wire.apis import ApiKey
from moldau.wire.messages import request_schema
from tests.integration.cluster.test_cluster_coordinators import GROUP, QUICK, coordinator_of
from tests.integration.conftest import make_topic
from tests.integration.raw import RawClient
from tests.integration.raw_txn import committed_values
from tests.integration.records.test_apache import java
from tests.integration.waiting import eventually

pytestmark = pytest.mark.apache

BACK_TO_BACK = Path(__file__).parents[1] / "java" / "BackToBack.java"
PARTITIONS, ROUNDS, TRANSACTIONS = 3, 5, 10


@pytest.fixture(scope="module", autouse=True)
def _jars() -> None:
    obstacle = JARS.obstacle(print) if shutil.which("javac") else "no JDK (javac) is installed"
    if obstacle is not None:
        pytest.skip(obstacle)


def test_transactions_of_a_java_producer_follow_each_other_without_a_pause() -> None:
    """The next transaction begins while markers of the one before are on their way to the other brokers."""
    with moldau.Cluster(3, QUICK) as cluster:
        topic = make_topic(cluster.bootstrap_servers, PARTITIONS)
        said = java(str(BACK_TO_BACK), cluster.bootstrap_servers, topic, "group", ROUNDS, TRANSACTIONS)
        assert f"0 of {ROUNDS} rounds failed" in said
        expected = [f"{round_}.{number}".encode() for round_ in range(ROUNDS) for number in range(TRANSACTIONS)]
        for partition in range(PARTITIONS):
            with RawClient(cluster.leader_of(topic, partition).address) as client:
                eventually(
                    lambda client=client, partition=partition: committed_values(client, topic, partition) == expected,
                    "every transaction is committed, in order",
                )
        with RawClient(coordinator_of(cluster, "group", GROUP).address) as client:
            schema = request_schema(ApiKey.OFFSET_FETCH, 7)
            answer = client.ask(schema.OffsetFetchRequest(group_id="group", topics=None, require_stable=True))
        assert answer.topics[0].partitions[0].committed_offset == len(expected)
