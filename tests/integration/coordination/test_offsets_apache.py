"""Committed offsets and Apache Kafka: its tools read ours, and what its groups committed moves in with its folder."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from bench.servers.apache import ApacheKafka
from moldau import Broker
from soak.broker_process import BrokerProcess
from tests.integration.conftest import NewTopic, make_topic
from tests.integration.coordination.test_offsets import AIOKAFKA, COMMITTERS, CONFLUENT, fill, new_group
from tests.integration.records.test_apache import java, pytestmark  # noqa: F401 - skips where there are no jars

TOOLS = "org.apache.kafka.tools"


def test_apaches_console_consumer_reads_our_offsets_topic(kafka_broker: Broker, new_topic: NewTopic) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    topic, group = new_topic(), new_group()
    AIOKAFKA.commit(bootstrap, group, topic, 42)
    shown = java(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", "__consumer_offsets", "--from-beginning"),
        *("--formatter", f"{TOOLS}.consumer.OffsetsMessageFormatter", "--timeout-ms", 3_000),
    )
    (start,) = re.finditer(r'\{"key":\{"type":1,"data":\{"group":"' + group, shown)
    record, _ = json.JSONDecoder().raw_decode(shown, start.start())  # the tool puts nothing between two of them
    assert record["key"] == {"type": 1, "data": {"group": group, "topic": topic, "partition": 0}}
    value = record["value"]["data"]
    assert value.pop("commitTimestamp") > 1_700_000_000_000
    assert record["value"]["version"] == 4
    assert value == {"offset": 42, "leaderEpoch": -1, "metadata": "by aiokafka"}


def test_apaches_group_tool_sees_and_moves_our_offsets(kafka_broker: Broker, new_topic: NewTopic) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    topic, group = new_topic(), new_group()
    fill(bootstrap, topic)
    to = ("--bootstrap-server", bootstrap)
    where = ("--topic", topic, "--group", group, "--max-messages", 4, "--timeout-ms", 20_000)
    java(f"{TOOLS}.consumer.ConsoleConsumer", *to, *where, "--from-beginning")
    assert CONFLUENT.committed(bootstrap, group, topic) == 4
    tool = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    described = java(tool, *to, "--describe", "--group", group)
    assert re.search(rf"^{group}\s+{topic}\s+0\s+4\s+10\s+6\s", described, re.M), described
    java(tool, *to, "--reset-offsets", "--group", group, "--topic", topic, "--to-offset", 7, "--execute")
    assert CONFLUENT.committed(bootstrap, group, topic) == 7
    java(tool, *to, "--delete-offsets", "--group", group, "--topic", topic)
    assert CONFLUENT.committed(bootstrap, group, topic) is None


def test_offsets_committed_to_apache_kafka_move_in_with_its_folder(tmp_path: Path) -> None:
    kafka = ApacheKafka(tmp_path / "apache")
    kafka.start()
    try:
        make_topic(kafka.bootstrap, 1, name="t")
        values = fill(kafka.bootstrap, "t")
        assert CONFLUENT.read(kafka.bootstrap, "members", "t", 3) == values[:3]
        for client in COMMITTERS:
            client.commit(kafka.bootstrap, client.name, "t", 5)
        kafka.stop()
    finally:
        kafka.kill()
    shutil.copytree(kafka.data_directory, tmp_path / "data")
    with BrokerProcess(tmp_path) as broker:
        for client in COMMITTERS:
            assert client.committed(broker.bootstrap, client.name, "t") == 5
        assert CONFLUENT.read(broker.bootstrap, "members", "t", 7) == values[3:]
        assert "Traceback" not in broker.output()
