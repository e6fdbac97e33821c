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

from bench.servers.apache import ApacheKafka
from moldau.client.admin import delete_topics
from moldau.wire.batch import encode_batch
from moldau.wire.compression import Codec
from soak.broker_process import BrokerProcess
from tests.integration.clients import CLIENTS, CODECS, present
from tests.integration.conftest import cluster_at, make_topic
from tests.integration.raw import RawClient
from tests.integration.records import test_apache as apache
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
    return cleaned_upto(broker, topic) == records_of(rounds) - 1


def cleaned_upto(broker: BrokerProcess, topic: str) -> int:
    path = broker.data_dir / "cleaner-offset-checkpoint"
    found = re.search(rf"^{topic} 0 (\d+)$", path.read_text(), re.M) if path.exists() else None
    return int(found[1]) if found is not None else 0


def records_of(rounds: int) -> int:
    return rounds * (KEYS + 1) + KEYS // 2 + 2


def read(bootstrap: str, topic: str, isolation_level: str = "read_committed") -> list[tuple[int, bytes, bytes | None]]:
    """Offset, key and value of all there is."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.partition.eof": True,
            "check.crcs": True,
            "isolation.level": isolation_level,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[tuple[int, bytes, bytes | None]] = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, "no answer"
            error = message.error()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                return found
            found.append((present(message.offset()), present(message.key()), message.value()))
    finally:
        consumer.close()


def table(rows: list[tuple[int, bytes, bytes | None]]) -> dict[bytes, bytes]:
    latest = {key: value for _, key, value in rows}
    return {key: value for key, value in latest.items() if value is not None}


def workers(broker: BrokerProcess) -> list[psutil.Process]:
    children: list[psutil.Process] = psutil.Process(broker.pid).children()
    return children


def test_readers_find_the_last_value_of_each_key(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, EAGER) as broker:
        topic = make_topic(broker.bootstrap, configs=COMPACTED)
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
        assert "compacted a log" in broker.output()
        assert broker.stop() == 0
        broker.start()
        assert read(broker.bootstrap, topic) == rows


def test_a_broker_killed_while_it_cleans_loses_nothing_and_leaves_no_worker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {**EAGER, "log.cleaner.enable": "false"}) as broker:
        topic = make_topic(broker.bootstrap, configs=COMPACTED)
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
        topic = make_topic(broker.bootstrap, configs=COMPACTED)
        left = write(broker.bootstrap, topic, rounds=20)
        broker.stop()
        broker.properties["log.cleaner.enable"] = "true"
        broker.properties["log.cleaner.io.max.bytes.per.second"] = 500_000
        broker.start()
        eventually(lambda: workers(broker), "there is a worker")
        workers(broker)[0].kill()
        eventually(lambda: "the worker process of the log cleaner died" in broker.output(), "its death is told")
        eventually(lambda: is_clean(broker, topic, 20), "another one cleans the log")
        assert table(read(broker.bootstrap, topic)) == left


def test_a_topic_deleted_while_it_is_cleaned_disturbs_no_other(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {**EAGER, "log.cleaner.io.max.bytes.per.second": 200_000}) as broker:
        topics = [make_topic(broker.bootstrap, configs=COMPACTED) for _ in range(2)]
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
        bad = make_topic(broker.bootstrap, configs=COMPACTED)
        write(broker.bootstrap, bad, rounds=30)
        good = make_topic(broker.bootstrap, configs=COMPACTED)
        left = write(broker.bootstrap, good, rounds=5)
        assert broker.stop() == 0
        path = broker.data_dir / f"{bad}-0" / f"{0:020d}.log"
        data = bytearray(path.read_bytes())
        data[CORRUPT_AT] ^= 1
        path.write_bytes(data)
        broker.properties["log.cleaner.enable"] = "true"
        broker.start()
        eventually(lambda: is_clean(broker, good, 5), "the good one is cleaned")
        eventually(lambda: "a log cannot be compacted" in broker.output(), "the bad one is told of")
        cleanings = broker.metrics()["moldau_cleanings_total"]
        left |= write(broker.bootstrap, good, rounds=5)
        eventually(lambda: broker.metrics()["moldau_cleanings_total"] > cleanings, "rounds go on")
        assert broker.output().count("a log cannot be compacted") == 1
        assert table(read(broker.bootstrap, good)) == left


class Writers:
    """A transactional and an idempotent producer that go on whatever becomes of the log, and what must be left."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.latest: dict[bytes, bytes] = {}
        self._errors: list[object] = []
        self._count = 0
        common = {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 200}
        self._plain = confluent_kafka.Producer({**common, "enable.idempotence": True})
        self._transactional = confluent_kafka.Producer({**common, "transactional.id": f"{topic}-writer"})
        self._transactional.init_transactions(30)

    def write(self, rounds: int) -> int:
        """In each round a transaction that commits, one that is aborted, and some records of neither.

        Returns an offset that is sure to come into a segment that can be cleaned.
        """
        for _ in range(rounds):
            for name, commits in (("committed", True), ("aborted", False)):
                self._transactional.begin_transaction()
                values = self._produce(self._transactional, name)
                if commits:
                    self._transactional.commit_transaction(30)
                    self.latest |= values
                else:
                    self._transactional.flush(30)
                    self._transactional.abort_transaction(30)
            self.latest |= self._produce(self._plain, "plain")
            assert self._plain.flush(30) == 0
        last = self._last_offset
        for _ in range(2):  # the active segment is never cleaned: pushes all else out of it
            self._send(self._plain, b"end", bytes(40_000))
            self.latest[b"end"] = bytes(40_000)
            assert self._plain.flush(30) == 0
        assert not self._errors
        return last

    def _produce(self, producer: confluent_kafka.Producer, name: str) -> dict[bytes, bytes]:
        """Keys of its own and keys that all write to."""
        values = {}
        for number in range(10):
            for key in (b"%s-%d" % (name.encode(), number), b"shared-%d" % number):
                self._count += 1
                values[key] = b"%s %d" % (name.encode(), self._count) + bytes(300)
                self._send(producer, key, values[key])
        return values

    def _send(self, producer: confluent_kafka.Producer, key: bytes, value: bytes) -> None:
        def delivered(error: object, message: confluent_kafka.Message) -> None:
            if error is not None:
                self._errors.append(error)
            else:
                self._last_offset = present(message.offset())

        producer.produce(self.topic, value, key, on_delivery=delivered)
        producer.poll(0)


@pytest.mark.parametrize("way", ["stop", "kill", "without snapshots"])
def test_producers_go_on_after_their_records_were_compacted_and_the_broker_was_restarted(
    tmp_path: Path, way: str
) -> None:
    with BrokerProcess(tmp_path, EAGER) as broker:
        topic = make_topic(broker.bootstrap, configs=COMPACTED)
        writers = Writers(broker.bootstrap, topic)
        for _ in range(2):
            last = writers.write(rounds=5)
            eventually(lambda: cleaned_upto(broker, topic) > last, "what was written is cleaned")  # noqa: B023
            if way == "stop":
                assert broker.stop() == 0
            else:
                broker.kill()
            if way == "without snapshots":  # then the cleaned log is all that tells of producers
                for path in (broker.data_dir / f"{topic}-0").glob("*.snapshot"):
                    path.unlink()
            broker.start()
        last = writers.write(rounds=2)
        rows = read(broker.bootstrap, topic)
        assert table(rows) == writers.latest
        assert not any(value.startswith(b"aborted") for _, _, value in rows if value)
        eventually(lambda: cleaned_upto(broker, topic) > last, "what was written is cleaned")
        assert table(read(broker.bootstrap, topic)) == writers.latest
        rest = read(broker.bootstrap, topic, "read_uncommitted")
        assert len(rest) < 4 * len(writers.latest)
        assert "Traceback" not in broker.output()


@pytest.mark.apache
@pytest.mark.skipif(apache._missing() is not None, reason=str(apache._missing()))
def test_apache_reads_a_cleaned_folder(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "ours", EAGER) as broker:
        topic = make_topic(broker.bootstrap, name="compacted", configs=COMPACTED)
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
        make_topic(kafka.bootstrap, 1, name=topic, configs={"cleanup.policy": "compact"})
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
