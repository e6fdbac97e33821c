"""A broker as a process: how it starts, what it refuses to start with, how it stops, what it keeps."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from moldau.client.admin import (
    Resource,
    alter_configs,
    create_topic,
    delete_topics,
    describe_configs,
)
from moldau.client.cluster import ClusterClient
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.constants import ResourceType
from soak.broker_process import BrokerProcess, command, free_port
from tests.integration.clients import CLIENTS, Message
from tests.integration.conftest import cluster_at, make_topic
from tests.integration.raw import RawClient, api_versions_request, batch_of, fetch_request
from tests.integration.waiting import eventually

CONFLUENT = CLIENTS[0]
CLEAN_MARK = ".kafka_cleanshutdown"


def start_and_fail(*arguments: object) -> tuple[int, str]:
    """The exit code and what was said of a broker that must not start."""
    done = subprocess.run(
        [command("kafka-server-start"), *map(str, arguments)], capture_output=True, text=True, timeout=30, check=False
    )
    return done.returncode, done.stderr


# -- stopping and starting again


def test_sigterm_stops_cleanly_and_the_next_start_finds_everything(tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(5000)]
    with BrokerProcess(tmp_path) as broker:
        make_topic(broker.bootstrap, 1, name="kept")
        CONFLUENT.produce(broker.bootstrap, "kept", [Message(value, partition=0) for value in values])
        assert broker.stop() == 0
        assert (broker.data_dir / CLEAN_MARK).exists()
        assert "stopped" in broker.output()
        assert broker.start() < 10
        assert not (broker.data_dir / CLEAN_MARK).exists(), "or a later crash would pass for a clean stop"
        assert "ecover" not in broker.output(), "after a clean stop there is nothing to recover"
        for client in CLIENTS:
            assert [record.value for record in client.read(broker.bootstrap, "kept", count=5000)] == values
        places = CONFLUENT.produce(broker.bootstrap, "kept", [Message(b"next", partition=0)])
        assert places == [(0, 5000)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_broker_with_clients_connected_and_waiting_stops_soon(tmp_path: Path, number: int) -> None:
    with BrokerProcess(tmp_path) as broker:
        make_topic(broker.bootstrap, 1, name="t")
        clients = [RawClient(broker.bootstrap) for _ in range(20)]
        for client in clients:
            client.ask(api_versions_request())
        os.kill(broker.pid, number)
        assert broker.wait() == 0
        assert all(client.is_closed() for client in clients)


def test_a_waiting_fetch_does_not_keep_a_broker_from_stopping(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker, RawClient(broker.bootstrap) as client:
        make_topic(broker.bootstrap, 1, name="t")
        client.send(fetch_request([("t", 0, 0)], max_wait_ms=300_000))
        assert not client.has_answer(within_s=0.1)
        assert broker.stop() == 0


def seen(cluster: ClusterClient) -> tuple[Any, Any]:
    """Ids and partitions, and the configurations, of all topics."""
    topics = cluster.metadata().topics
    resources = [Resource(ResourceType.TOPIC, name) for name in topics]
    return (
        {name: (topic.topic_id, len(topic.partitions)) for name, topic in topics.items()},
        {
            resource.name: {entry.name: entry.value for entry in entries}
            for resource, entries in describe_configs(cluster, resources).items()
        },
    )


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_topics_configs_and_ids_survive_a_restart(tmp_path: Path, end: str) -> None:
    with BrokerProcess(tmp_path) as broker:
        make_topic(broker.bootstrap, 3, name="plain")
        make_topic(broker.bootstrap, 1, name="tuned", configs={"retention.ms": 123456, "cleanup.policy": "compact"})
        make_topic(broker.bootstrap, 1, name="gone")
        with cluster_at(broker.bootstrap) as cluster:
            delete_topics(cluster, ["gone"])
            alter_configs(cluster, Resource(ResourceType.TOPIC, "plain"), set_values={"segment.bytes": "2000000"})
            before = seen(cluster)
        assert set(before[0]) == {"plain", "tuned"}
        assert before[1]["tuned"]["retention.ms"] == "123456"
        assert before[1]["plain"]["segment.bytes"] == "2000000"
        getattr(broker, end)()
        broker.start()
        with cluster_at(broker.bootstrap) as cluster:
            assert seen(cluster) == before


def test_every_acknowledged_topic_survives_kill_minus_nine(tmp_path: Path) -> None:
    acknowledged: list[str] = []

    def create_until_the_broker_is_gone(bootstrap: str, round_number: int) -> None:
        with contextlib.suppress(KafkaError), cluster_at(bootstrap) as cluster:
            for number in itertools.count():
                name = f"round-{round_number}-{number}"
                create_topic(cluster, name, partitions=2)
                acknowledged.append(name)

    with BrokerProcess(tmp_path) as broker:
        for round_number in range(3):
            wanted = len(acknowledged) + 30
            creator = threading.Thread(target=create_until_the_broker_is_gone, args=(broker.bootstrap, round_number))
            creator.start()
            eventually(lambda wanted=wanted: len(acknowledged) >= wanted, "topics are being made")
            broker.kill()
            creator.join()
            broker.start()
            with cluster_at(broker.bootstrap) as cluster:
                topics = cluster.metadata().topics
            assert set(acknowledged) <= set(topics)
            assert len(topics) <= len(acknowledged) + round_number + 1, "one unanswered request a round, at most"
            with RawClient(broker.bootstrap) as client:
                for name in topics:
                    assert client.produce(name, batch_of(b"v"), 1).error_code == ErrorCode.NONE


def test_producer_ids_are_never_given_twice_even_after_a_kill(tmp_path: Path) -> None:
    given: set[int] = set()
    with BrokerProcess(tmp_path) as broker:
        for _ in range(3):
            with RawClient(broker.bootstrap) as client:
                fresh = {client.init_producer_id()[0] for _ in range(20)}
            assert len(fresh) == 20
            assert not fresh & given
            given |= fresh
            broker.kill()
            broker.start()


def test_a_retry_after_a_restart_is_still_recognized(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        make_topic(broker.bootstrap, 1, name="t")
        with RawClient(broker.bootstrap) as client:
            producer_id, epoch = client.init_producer_id()
            batches = [batch_of(b"%d" % n, producer=(producer_id, epoch, n)) for n in range(5)]
            assert [client.produce("t", batch).base_offset for batch in batches] == [0, 1, 2, 3, 4]
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap) as client:
            assert [client.produce("t", batch).base_offset for batch in batches] == [0, 1, 2, 3, 4]
        broker.stop()
        broker.start()
        with RawClient(broker.bootstrap) as client:
            # A snapshot of producer state holds each producer's last batch, as Kafka's does.
            assert client.produce("t", batches[-1]).base_offset == 4
            assert client.fetch("t", 0).high_watermark == 5


def test_several_log_directories_share_the_partitions_and_keep_them(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two", "three")]
    with BrokerProcess(tmp_path / "broker", {"log.dirs": ",".join(map(str, folders))}) as broker:
        make_topic(broker.bootstrap, 12, name="spread")
        for partition in range(12):
            CONFLUENT.produce(broker.bootstrap, "spread", [Message(b"%d" % partition, partition=partition)])
        where = {path.name: folder.name for folder in folders for path in folder.glob("spread-*")}
        assert len(where) == 12
        assert {folder: list(where.values()).count(folder) for folder in ("one", "two", "three")} == {
            "one": 4, "two": 4, "three": 4,
        }  # fmt: skip
        assert broker.stop() == 0
        assert all((folder / CLEAN_MARK).exists() for folder in folders)
        broker.start()
        assert {path.name: folder.name for folder in folders for path in folder.glob("spread-*")} == where
        for partition in range(12):
            (record,) = CONFLUENT.read(broker.bootstrap, "spread", partition, count=1)
            assert record.value == b"%d" % partition


# -- what a broker refuses to start with


def test_a_second_broker_on_the_same_folder_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        code, said = start_and_fail("--port", free_port(), "--data-dir", broker.data_dir)
        assert code == 2
        assert str(broker.data_dir) in said
        assert f"in use by process {broker.pid}" in said
        assert "Traceback" not in said
        with RawClient(broker.bootstrap) as client:
            client.ask(api_versions_request())


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = start_and_fail("--port", port, "--data-dir", tmp_path / "data")
    assert code == 2
    assert f"127.0.0.1:{port}" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("num.partitions=many", ["num.partitions", "many"]),
        ("num.partitions=0", ["num.partitions", "0"]),
        ("log.cleanup.policy=forget", ["log.cleanup.policy", "forget", "compact"]),
        ("listeners=nonsense", ["listeners", "nonsense", "PLAINTEXT://"]),
        ("listeners=SSL://127.0.0.1:0", ["SSL"]),
        ("broker.id=1\nnode.id=2", ["broker.id", "node.id"]),
        ("socket.request.max.bytes=0", ["socket.request.max.bytes", "0"]),
    ],
)
def test_a_wrong_property_is_named_with_its_value(tmp_path: Path, line: str, words: list[str]) -> None:
    path = tmp_path / "server.properties"
    path.write_text(f"log.dirs={tmp_path / 'data'}\nlisteners=PLAINTEXT://127.0.0.1:0\n{line}\n")
    code, said = start_and_fail(path)
    assert code == 2
    for word in words:
        assert word in said
    assert "Traceback" not in said
    assert not (tmp_path / "data").exists(), "a broker that does not start leaves nothing behind"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["no-such-file.properties"], "no-such-file.properties"),
        (["--override", "num.partitions"], "key=value"),
        (["--data-dir", "/proc/nowhere"], "/proc/nowhere"),
    ],
)
def test_wrong_arguments_are_explained(arguments: list[str], word: str) -> None:
    code, said = start_and_fail(*arguments)
    assert code == 2
    assert word in said
    assert "Traceback" not in said


def test_a_data_folder_of_another_node_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"node.id": 7}) as broker:
        assert broker.stop() == 0
    code, said = start_and_fail("--port", free_port(), "--data-dir", tmp_path / "data", "--override", "node.id=8")
    assert code == 2
    assert "node 7" in said


def test_an_unknown_property_is_a_warning_that_names_the_nearest_known_one(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"num.partitionz": 3}) as broker:
        assert re.search(r"WARNING.*num\.partitionz.*num\.partitions", broker.output())


# -- stopping by command, logs, metrics


def test_kafka_server_stop_stops_the_broker_and_only_it(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "one", {"node.id": 1}) as one,
        BrokerProcess(tmp_path / "two", {"node.id": 2}) as two,
    ):
        nobody = subprocess.run(
            [command("kafka-server-stop"), "--node-id", "2"],
            env=one.environment, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert (nobody.returncode, nobody.stderr.strip()) == (1, "No kafka server to stop with id 2; running: 1")
        done = subprocess.run(
            [command("kafka-server-stop")], env=one.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert one.wait() == 0
        assert (one.data_dir / CLEAN_MARK).exists()
        with RawClient(two.bootstrap) as client:
            client.ask(api_versions_request())


def test_logs_can_be_json_one_event_a_line(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [command("moldau"), "start", "--port", str(free_port()), "--data-dir", str(tmp_path), "--log-format", "json"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        event = json.loads(process.stderr.readline())
        assert event["message"].endswith("is ready")
        assert event["listeners"].startswith("PLAINTEXT://127.0.0.1:")
        process.terminate()
        rest = [json.loads(line) for line in process.stderr]
        assert process.wait(30) == 0
        assert rest[-1]["message"] == "stopped"
    finally:
        process.kill()
        process.wait()


def test_the_metrics_endpoint_counts_what_happened(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        make_topic(broker.bootstrap, 2, name="counted")
        CONFLUENT.produce(broker.bootstrap, "counted", [Message(b"v", partition=1) for _ in range(123)])
        CONFLUENT.read(broker.bootstrap, "counted", 1, count=123)
        with RawClient(broker.bootstrap) as client:
            damaged = bytearray(batch_of(b"v"))
            damaged[-1] ^= 1
            client.produce("counted", bytes(damaged))
            metrics = broker.metrics()
        assert metrics["moldau_records_total"] == 123
        assert metrics['moldau_log_end_offset{partition="1",topic="counted"}'] == 123
        assert metrics['moldau_log_end_offset{partition="0",topic="counted"}'] == 0
        assert metrics['moldau_produce_errors_total{error="CORRUPT_MESSAGE"}'] == 1
        assert metrics['moldau_requests_total{api="Produce"}'] >= 2
        assert metrics["moldau_unexpected_errors_total"] == 0
        assert metrics["moldau_connections"] >= 1
        assert metrics["moldau_fetched_bytes_total"] > 123
        assert metrics["process_resident_memory_bytes"] > 1 << 20
