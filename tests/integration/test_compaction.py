"""Compacted topics on a real broker, with a worker process that cleans them, and everybody being killed."""

from __future__ import annotations

import random
import re
import shutil
import time
from pathlib import Path

import confluent_kafka
import psutil
import pytest

from bench.apache import ApacheKafka
from moldau.client.admin import delete_topics
from moldau.wire.batch import encode_batch
from moldau.wire.compression import Codec
from soak.broker_process import BrokerProcess
from tests.integration import test_apache as apache
from tests.integration.clients import CLIENTS, CODECS
from tests.integration.conftest import cluster_at, make_topic
from tests.integration.raw import RawClient
from tests.integration.waiting import eventually

EAGER = {"log.cleaner.backoff.ms": 50, "log.segment.delete.delay.ms": 100}
COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": 50_000,
    "min.cleanable.dirty.ratio": 0.01,
    "delete.retention.ms": 0,
}
KEYS = 40
CORRUPT_AT = 100


def write(bootstrap: str, topic: str, rounds: int) -> dict[bytes, bytes]:
    """Every key `rounds` times in all codecs, and one key a round; then every other key is deleted.

    Returns what must be left.
    """
    now_ms = time.time_ns() // 1_000_000
    keys = [b"key-%d" % number for number in range(KEYS)]
    end = [(b"end", bytes(40_000), now_ms, ())]  # the active segment is never cleaned: pushes all else out of it
    latest: dict[bytes, bytes] = {b"end": end[0][1]}
    with RawClient(bootstrap) as client:
        for number in range(rounds):
            rows = [(key, b"%d of %s, " % (number, key) * 20, now_ms, ()) for key in keys]
            rows.append((b"once-%d" % number, random.randbytes(2000), now_ms, ()))
            latest |= {key: value for key, value, *_ in rows}
            client.produce(topic, encode_batch(rows, codec=Codec(number % len(Codec))))
        client.produce(topic, encode_batch([(key, None, now_ms, ()) for key in keys[1::2]]))
        for _ in range(2):
            client.produce(topic, encode_batch(end))
    return {key: value for key, value in latest.items() if key not in keys[1::2]}


def is_clean(broker: BrokerProcess, topic: str, rounds: int) -> bool:
    """Whether all that `write` wrote, but for the last record, has been cleaned."""
    path = broker.data_dir / "cleaner-offset-checkpoint"
    found = re.search(rf"^{topic} 0 (\d+)$", path.read_text(), re.M) if path.exists() else None
    return found is not None and int(found[1]) == records_of(rounds) - 1


def records_of(rounds: int) -> int:
    return rounds * (KEYS + 1) + KEYS // 2 + 2


def read(bootstrap: str, topic: str) -> list[tuple[int, bytes, bytes | None]]:
    """Offset, key and value of all there is."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.partition.eof": True, "check.crcs": True}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, "no answer"
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                return found
            found.append((message.offset(), message.key(), message.value()))
    finally:
        consumer.close()


def table(rows: list[tuple[int, bytes, bytes | None]]) -> dict[bytes, bytes]:
    latest = {key: value for _, key, value in rows}
    return {key: value for key, value in latest.items() if value is not None}


def workers(broker: BrokerProcess) -> list[psutil.Process]:
    return psutil.Process(broker.pid).children()


def test_readers_find_the_last_value_of_each_key(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, EAGER) as broker:
        topic = make_topic(broker.bootstrap, **COMPACTED)
        left = write(broker.bootstrap, topic, rounds=30)
        eventually(lambda: is_clean(broker, topic, 30), "the log is cleaned")
        eventually(lambda: not workers(broker), "a worker with nothing to do ends")
        rows = read(broker.bootstrap, topic)
        assert table(rows) == left
        assert len(rows) < 4 * KEYS
        offsets = [offset for offset, _, _ in rows]
        assert offsets == sorted(offsets)
        assert offsets[-1] == records_of(30) - 1
        for client in CLIENTS:
            if set(client.codecs()) == set(CODECS):
                found = client.read(broker.bootstrap, topic, count=len(rows))
                assert [(one.offset, one.key, one.value) for one in found] == rows, client.name
        metrics = broker.metrics()
        assert metrics["moldau_cleanings_total"] >= 1
        assert metrics["moldau_cleaned_bytes_total"] > 100_000
        assert "cleaned a log" in broker.output()
        assert broker.stop() == 0
        broker.start()
        assert read(broker.bootstrap, topic) == rows


def test_a_broker_killed_while_it_cleans_loses_nothing_and_leaves_no_worker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {**EAGER, "log.cleaner.enable": "false"}) as broker:
        topic = make_topic(broker.bootstrap, **COMPACTED)
        left = write(broker.bootstrap, topic, rounds=25)
        folder = broker.data_dir / f"{topic}-0"
        assert broker.stop() == 0
        broker.properties |= {"log.cleaner.enable": "true", "log.cleaner.io.max.bytes.per.second": 300_000}
        for _ in range(2):
            broker.start()
            eventually(lambda: list(folder.glob("*.log.cleaned")), "a worker writes")
            (worker,) = workers(broker)
            broker.kill()
            worker.wait(10)
        del broker.properties["log.cleaner.io.max.bytes.per.second"]
        broker.start()
        eventually(lambda: is_clean(broker, topic, 25), "the log is cleaned")
        assert table(read(broker.bootstrap, topic)) == left
        assert not list(folder.glob("*.swap"))
        assert "Traceback" not in broker.output()


def test_a_worker_that_is_killed_is_replaced(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {**EAGER, "log.cleaner.enable": "false"}) as broker:
        topic = make_topic(broker.bootstrap, **COMPACTED)
        left = write(broker.bootstrap, topic, rounds=20)
        broker.stop()
        broker.properties["log.cleaner.enable"] = "true"
        broker.properties["log.cleaner.io.max.bytes.per.second"] = 500_000
        broker.start()
        eventually(lambda: workers(broker), "there is a worker")
        workers(broker)[0].kill()
        eventually(lambda: "the cleaner's worker died" in broker.output(), "its death is told")
        eventually(lambda: is_clean(broker, topic, 20), "another one cleans the log")
        assert table(read(broker.bootstrap, topic)) == left


def test_a_topic_deleted_while_it_is_cleaned_disturbs_no_other(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {**EAGER, "log.cleaner.io.max.bytes.per.second": 200_000}) as broker:
        topics = [make_topic(broker.bootstrap, **COMPACTED) for _ in range(2)]
        write(broker.bootstrap, topics[0], rounds=30)
        eventually(lambda: workers(broker), "there is a worker")
        with cluster_at(broker.bootstrap) as cluster:
            delete_topics(cluster, [topics[0]])
        left = write(broker.bootstrap, topics[1], rounds=5)
        eventually(lambda: is_clean(broker, topics[1], 5), "the other topic is cleaned")
        assert table(read(broker.bootstrap, topics[1])) == left
        assert "Traceback" not in broker.output()


def test_a_corrupt_log_is_given_up_once_and_disturbs_no_other(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {**EAGER, "log.cleaner.enable": "false"}) as broker:
        bad = make_topic(broker.bootstrap, **COMPACTED)
        write(broker.bootstrap, bad, rounds=30)
        good = make_topic(broker.bootstrap, **COMPACTED)
        left = write(broker.bootstrap, good, rounds=5)
        assert broker.stop() == 0
        path = broker.data_dir / f"{bad}-0" / f"{0:020d}.log"
        data = bytearray(path.read_bytes())
        data[CORRUPT_AT] ^= 1
        path.write_bytes(data)
        broker.properties["log.cleaner.enable"] = "true"
        broker.start()
        eventually(lambda: is_clean(broker, good, 5), "the good one is cleaned")
        eventually(lambda: "a log cannot be cleaned" in broker.output(), "the bad one is told of")
        cleanings = broker.metrics()["moldau_cleanings_total"]
        left |= write(broker.bootstrap, good, rounds=5)
        eventually(lambda: broker.metrics()["moldau_cleanings_total"] > cleanings, "rounds go on")
        assert broker.output().count("a log cannot be cleaned") == 1
        assert table(read(broker.bootstrap, good)) == left


@pytest.mark.apache
@pytest.mark.skipif(apache._missing() is not None, reason=str(apache._missing()))
def test_apache_reads_a_cleaned_folder(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "ours", EAGER) as broker:
        topic = make_topic(broker.bootstrap, name="compacted", **COMPACTED)
        left = write(broker.bootstrap, topic, rounds=30)
        eventually(lambda: is_clean(broker, topic, 30), "the log is cleaned")
        rows = read(broker.bootstrap, topic)
        assert broker.stop() == 0
        folder = broker.data_dir / "compacted-0"
    logs = apache.dump("--deep-iteration", "--print-data-log", "--files", apache.files(folder, ".log"))
    assert set(re.findall(r"isvalid: (\w+)", logs)) == {"true"}
    assert [int(offset) for offset in re.findall(r"^\| offset: (\d+) ", logs, re.M)] == [
        offset for offset, _, _ in rows
    ]
    indexes = f"{apache.files(folder, '.index')},{apache.files(folder, '.timeindex')}"
    assert "mismatch" not in apache.dump("--verify-index-only", "--files", indexes).lower()
    kafka = ApacheKafka(tmp_path / "theirs")
    kafka.start()
    try:
        make_topic(kafka.bootstrap, 1, name=topic, **{"cleanup.policy": "compact"})
        kafka.stop()
        theirs = kafka.data_directory / "compacted-0"
        topic_id = (theirs / "partition.metadata").read_bytes()
        shutil.rmtree(theirs)
        shutil.copytree(folder, theirs)
        (theirs / "partition.metadata").write_bytes(topic_id)
        kafka.start()
        found = read(kafka.bootstrap, topic)
        assert found == rows
        assert table(found) == left
    finally:
        kafka.kill()
