"""A disk that really is full: the writer is told, readers go on, freed space is used, nothing acknowledged is lost."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.client.admin import delete_records, delete_topics
from moldau.errors import ErrorCode
from moldau.wire.topic_partition import TopicPartition
from soak.broker_process import BrokerProcess
from tests.integration.clients import CLIENTS
from tests.integration.conftest import cluster_at, make_topic
from tests.integration.raw import RawClient, batch_of, records_in
from tests.integration.waiting import eventually

DISK_MB = 8
VALUE = bytes(range(256)) * 400  # 100 KB


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if mounted.returncode != 0:
        pytest.skip(f"a small tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def broker(small_disk: Path, tmp_path: Path) -> Iterator[BrokerProcess]:
    properties = {"log.dirs": small_disk / "data", "log.segment.bytes": 1 << 20, "log.segment.delete.delay.ms": 0}
    with BrokerProcess(tmp_path / "broker", properties) as process:
        yield process


def fill(client: RawClient, topic: str) -> int:
    """Writes until the disk is full; how many records were acknowledged."""
    for count in range(1000):
        answer = client.produce(topic, batch_of(VALUE))
        if answer.error_code:
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "No space left on device" in answer.error_message
            assert topic in answer.error_message
            return count
        assert answer.base_offset == count
    raise AssertionError("the disk never was full")


def values(client: RawClient, topic: str, start: int = 0) -> list[bytes | None]:
    found: list[bytes | None] = []
    while True:
        partition = client.fetch(topic, start)
        assert partition.error_code == ErrorCode.NONE
        records = records_in(bytes(partition.records or b""))
        if not records:
            return found
        found += [record.value for record in records]
        start = records[-1].offset + 1


def test_a_full_disk_is_told_to_writers_and_readers_go_on(broker: BrokerProcess) -> None:
    topic = make_topic(broker.bootstrap)
    with RawClient(broker.bootstrap) as client:
        count = fill(client, topic)
        assert count > 20
        assert values(client, topic) == [VALUE] * count
        for reader in CLIENTS:
            assert len(reader.read(broker.bootstrap, topic, count=count)) == count
        for _ in range(5):  # still refused, still not half written
            assert client.produce(topic, batch_of(VALUE)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert client.fetch(topic, 0).high_watermark == count
        assert broker.metrics()['moldau_produce_errors_total{error="KAFKA_STORAGE_ERROR"}'] >= 6
    assert "Traceback" not in broker.output()


def test_after_records_are_deleted_writing_goes_on(broker: BrokerProcess) -> None:
    topic = make_topic(broker.bootstrap)
    with RawClient(broker.bootstrap) as client:
        count = fill(client, topic)
        with cluster_at(broker.bootstrap) as cluster:
            assert delete_records(cluster, {TopicPartition(topic, 0): count - 5}) == {(topic, 0): count - 5}
        eventually(lambda: client.produce(topic, batch_of(b"again")).error_code == 0, "writing goes on")
        found = values(client, topic, start=count - 5)
        assert found[:5] == [VALUE] * 5
        assert found[5] == b"again"


def test_after_a_topic_is_deleted_writing_goes_on(broker: BrokerProcess) -> None:
    kept, doomed = make_topic(broker.bootstrap), make_topic(broker.bootstrap)
    with RawClient(broker.bootstrap) as client:
        assert client.produce(kept, batch_of(b"first")).base_offset == 0
        fill(client, doomed)
        with cluster_at(broker.bootstrap) as cluster:
            delete_topics(cluster, [doomed])
        eventually(lambda: client.produce(kept, batch_of(VALUE)).error_code == 0, "writing goes on")
        found = values(client, kept)
        assert found[0] == b"first"
        assert found[-1] == VALUE


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_nothing_acknowledged_is_lost_by_a_restart_on_a_full_disk(broker: BrokerProcess, end: str) -> None:
    topic = make_topic(broker.bootstrap)
    with RawClient(broker.bootstrap) as client:
        count = fill(client, topic)
    getattr(broker, end)()
    broker.start()
    with RawClient(broker.bootstrap) as client:
        assert values(client, topic) == [VALUE] * count
        with cluster_at(broker.bootstrap) as cluster:
            delete_records(cluster, {TopicPartition(topic, 0): count - 5})
        eventually(lambda: client.produce(topic, batch_of(b"again")).error_code == 0, "writing goes on")
        assert values(client, topic, start=count - 5)[:6] == [*[VALUE] * 5, b"again"]


def fill_up(path: Path) -> None:
    """Not even a small file fits afterwards."""

    def write_on() -> None:
        with path.open("wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(512))

    with pytest.raises(OSError, match="No space"):
        write_on()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_still_fits_after_a_refused_roll_is_there_after_a_restart(
    broker: BrokerProcess, small_disk: Path, end: str
) -> None:
    topic = make_topic(broker.bootstrap)
    with RawClient(broker.bootstrap) as client:
        for count in range(10):  # ten of 100 KB: one more does not fit into the segment of 1 MB
            assert client.produce(topic, batch_of(VALUE)).base_offset == count
        fill_up(small_disk / "ballast")
        assert client.produce(topic, batch_of(VALUE)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        # The page that the segment ends in has room for it: it is taken, at the next offset.
        assert client.produce(topic, batch_of(b"small")).base_offset == 10
        assert client.produce(topic, batch_of(VALUE)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    getattr(broker, end)()
    (small_disk / "ballast").unlink()
    broker.start()
    with RawClient(broker.bootstrap) as client:
        assert values(client, topic) == [*[VALUE] * 10, b"small"]
        assert client.produce(topic, batch_of(VALUE)).base_offset == 11
    assert "Traceback" not in broker.output()


def test_a_topic_made_on_a_full_disk_gets_its_logs_once_there_is_space(broker: BrokerProcess, small_disk: Path) -> None:
    # The page that the metadata ends in has room for the topic; its folders find none.
    fill_up(small_disk / "ballast")
    make_topic(broker.bootstrap, 3, name="early")
    with RawClient(broker.bootstrap) as client:
        assert client.produce("early", batch_of(b"v"), 2).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert client.fetch("early", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        (small_disk / "ballast").unlink()
        for partition in range(3):
            eventually(
                lambda partition=partition: client.produce("early", batch_of(b"v"), partition).error_code == 0,
                f"partition {partition} can be written to",
            )
            assert client.fetch("early", 0, partition).high_watermark == 1
    assert "Traceback" not in broker.output()
