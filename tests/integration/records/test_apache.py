"""Apache Kafka's Java client on our broker, and each on the other's files.

Jars are used where `make bench` has put them, never fetched here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.servers.apache import JARS, ApacheKafka
from moldau import Broker
from soak.broker_process import BrokerProcess
from tests.integration.clients import CLIENTS, CODECS, Message
from tests.integration.conftest import cluster_at, make_topic
from tests.integration.raw import RawClient, batch_of

CONFLUENT, _, AIOKAFKA = CLIENTS


def _missing() -> str | None:
    if shutil.which("java") is None:
        return "java is not installed"
    if not JARS.are_here:
        return f"no jars in {JARS.directory}; `make bench-quick` fetches them"
    return None


pytestmark = [pytest.mark.apache, pytest.mark.skipif(_missing() is not None, reason=str(_missing()))]


def java(tool: str, *arguments: object, stdin: str = "") -> str:
    """What one of Apache's own commands says."""
    done = subprocess.run(
        ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
         "-cp", f"{JARS.libs}/*", tool, *map(str, arguments)],
        input=stdin, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def dump(*arguments: object) -> str:
    return java("org.apache.kafka.tools.DumpLogSegments", *arguments)


def files(folder: Path, suffix: str) -> str:
    return ",".join(str(path) for path in sorted(folder.glob(f"*{suffix}")))


def write_of_everything(broker: BrokerProcess) -> int:
    """A topic with every codec, headers, nulls, an idempotent producer, and several segments; how many records."""
    make_topic(broker.bootstrap, 1, name="t", configs={"segment.bytes": 1 << 20, "index.interval.bytes": 4096})
    count = 0
    for codec in CODECS:
        messages = [
            Message(b"%d " % n * 50, b"key-%d" % n if n % 3 else None, (("h", b"x"),), partition=0) for n in range(1000)
        ]
        AIOKAFKA.produce(broker.bootstrap, "t", messages, codec=codec, idempotent=codec != "none")
        count += len(messages)
    with RawClient(broker.bootstrap) as client:
        for _ in range(200):
            client.produce("t", batch_of(bytes(20_000), None, key=b"k"))
            count += 2
    return count


def check_dump(folder: Path, count: int) -> None:
    logs = dump("--deep-iteration", "--print-data-log", "--files", files(folder, ".log"))
    assert len(re.findall(r"^\| offset: \d+ ", logs, re.M)) == count
    offsets = [int(number) for number in re.findall(r"^\| offset: (\d+) ", logs, re.M)]
    assert offsets == list(range(count))
    assert set(re.findall(r"isvalid: (\w+)", logs)) == {"true"}
    assert set(re.findall(r"compresscodec: (\w+)", logs)) == {"none", "gzip", "snappy", "lz4", "zstd"}
    assert "bytes are invalid" not in logs
    assert "Found timestamp mismatch" not in logs
    # The tool begins every file with -1, so it finds a gap before each segment but the first, Apache's too.
    assert set(re.findall(r"(-?\d+) is followed by", logs)) == {"-1"}
    indexes = f"{files(folder, '.index')},{files(folder, '.timeindex')}"
    checked = dump("--index-sanity-check", "--files", indexes)
    assert checked.count("passed sanity check.") == indexes.count(",") + 1
    verified = dump("--verify-index-only", "--files", indexes)
    assert "mismatch" not in verified.lower()
    assert "out of order" not in verified.lower()
    if snapshots := files(folder, ".snapshot"):
        assert "producerId:" in dump("--files", snapshots)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_apaches_dump_tool_accepts_our_segments_and_indexes(tmp_path: Path, end: str) -> None:
    with BrokerProcess(tmp_path) as broker:
        count = write_of_everything(broker)
        getattr(broker, end)()
        if end == "kill":
            broker.start()  # recovers, and builds the indexes of the last segment again
            assert broker.stop() == 0
        folder = broker.data_dir / "t-0"
        assert len(list(folder.glob("*.log"))) >= 3
        check_dump(folder, count)


@pytest.fixture(scope="module")
def apache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, object]]]:
    """A data folder that Apache Kafka wrote and left cleanly, and what is in it."""
    kafka = ApacheKafka(tmp_path_factory.mktemp("apache"))
    kafka.start()
    try:
        make_topic(kafka.bootstrap, 3, name="moved", configs={"segment.bytes": 1 << 20})
        make_topic(kafka.bootstrap, 1, name="empty")
        for client in CLIENTS:
            for codec in client.codecs():
                client.produce(
                    kafka.bootstrap,
                    "moved",
                    [Message(f"{client.name} {codec} {n}".encode() * 20, b"%d" % n, (("h", b"x"),), partition=n % 3)
                     for n in range(900)],
                    codec=codec,
                    idempotent=True,
                )  # fmt: skip
        seen: dict[str, object] = {}
        for partition in range(3):
            with_end = CONFLUENT.read(kafka.bootstrap, "moved", partition, count=300 * _rounds())
            seen[f"moved-{partition}"] = with_end
        with cluster_at(kafka.bootstrap) as cluster:
            seen["ids"] = {name: topic.topic_id for name, topic in cluster.metadata().topics.items()}
        kafka.stop()
        yield kafka.data_directory, seen
    finally:
        kafka.kill()


def _rounds() -> int:
    return sum(len(client.codecs()) for client in CLIENTS)


def test_a_folder_of_apache_kafka_moves_in(apache_folder: tuple[Path, dict[str, object]], tmp_path: Path) -> None:
    folder, seen = apache_folder
    shutil.copytree(folder, tmp_path / "data")
    with BrokerProcess(tmp_path) as broker:
        with cluster_at(broker.bootstrap) as cluster:
            topics = cluster.metadata().topics
            assert {name: topic.topic_id for name, topic in topics.items()} == seen["ids"]
            assert len(topics["moved"].partitions) == 3
        count = 300 * _rounds()
        for partition in range(3):
            for client in CLIENTS:
                if set(client.codecs()) == set(CODECS):
                    found = client.read(broker.bootstrap, "moved", partition, count=count)
                    assert found == seen[f"moved-{partition}"], client.name
        places = CONFLUENT.produce(broker.bootstrap, "moved", [Message(b"next", partition=1)], idempotent=True)
        assert places == [(1, count)]
        assert CONFLUENT.produce(broker.bootstrap, "empty", [Message(b"first", partition=0)]) == [(0, 0)]
        assert broker.stop() == 0
        broker.start()
        assert CONFLUENT.read(broker.bootstrap, "moved", 1, start=count, count=1)[0].value == b"next"
        broker.stop()
        logs = dump("--deep-iteration", "--files", files(broker.data_dir / "moved-1", ".log"))
        assert len(re.findall(r"^\| offset: \d+ ", logs, re.M)) == count + 1


def test_apaches_java_tools_work_against_our_broker(kafka_broker: Broker) -> None:
    tools, to = "org.apache.kafka.tools", ("--bootstrap-server", kafka_broker.bootstrap_servers)
    topic = "java-tools"
    java(
        f"{tools}.TopicCommand", *to, "--create", "--topic", topic, "--partitions", 2, "--config", "retention.ms=60000"
    )
    described = java(f"{tools}.TopicCommand", *to, "--describe", "--topic", topic)
    assert "PartitionCount: 2" in described
    assert "Configs: retention.ms=60000" in described

    lines = "".join(f"key-{number}:value-{number}\n" for number in range(500))
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    java(f"{tools}.ConsoleProducer", *to, "--topic", topic, *keyed, "--compression-codec", "zstd", stdin=lines)
    offsets = java(f"{tools}.GetOffsetShell", *to, "--topic", topic)
    counts = [int(count) for count in re.findall(rf"^{topic}:\d:(\d+)$", offsets, re.M)]
    assert (len(counts), sum(counts)) == (2, 500)

    read = ""
    for partition, count in enumerate(counts):
        where = ("--topic", topic, "--partition", partition, "--offset", "earliest", "--max-messages", count)
        read += java(f"{tools}.consumer.ConsoleConsumer", *to, *where, "--formatter-property", "print.key=true")
    assert sorted(re.findall(r"^key-(\d+)\tvalue-\1$", read, re.M), key=int) == [str(n) for n in range(500)]
    java(f"{tools}.TopicCommand", *to, "--delete", "--topic", topic)
    assert topic not in java(f"{tools}.TopicCommand", *to, "--list")
