"""A disk whose fsync does not come back: what does not need that disk goes on, and the broker can be stopped."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import moldau.disk
from moldau import Broker
from moldau.broker import node as broker_node
from moldau.broker import server as broker_server
from moldau.broker.replicas.partition import Partition
from moldau.metadata.topics import plan_create_topic
from moldau.wire.apis import ApiKey
from moldau.wire.messages import ms, request_schema
from tests.integration.conftest import make_topic
from tests.integration.raw import RawClient, batch_of, produce_request
from tests.integration.servers import server_of
from tests.integration.waiting import eventually, until

PARTITIONS = 24
"""Half of them on the disk that hangs: more fsyncs than there are threads for it."""
CLEAN = ".kafka_cleanshutdown"


class HangingDisk:
    """From `hang` on, every fsync below `folder` waits for `release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder = folder
        self.waiting = 0
        self._may_go = threading.Event()
        self._may_go.set()
        real = os.fsync

        def fsync(fd: int) -> None:
            if not self._may_go.is_set() and os.readlink(f"/proc/self/fd/{fd}").startswith(str(folder)):
                self.waiting += 1
                self._may_go.wait(120)
            real(fd)

        monkeypatch.setattr(moldau.disk, "fsync", fsync)
        monkeypatch.setattr(os, "fsync", fsync)

    def hang(self) -> None:
        self._may_go.clear()

    def release(self) -> None:
        self._may_go.set()


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingDisk]:
    # A stop waits for answers, and then for the disk: here for a moment each.
    monkeypatch.setattr(broker_server, "STOP_TIMEOUT_S", 0.2)
    monkeypatch.setattr(broker_node, "DISKS_CLOSE_TIMEOUT_S", 1.0)
    hanging = HangingDisk(monkeypatch, tmp_path / "bad")
    yield hanging
    hanging.release()


def test_what_does_not_need_the_disk_goes_on_and_the_broker_stops(tmp_path: Path, disk: HangingDisk) -> None:
    good = tmp_path / "good"
    broker = Broker({"log.dirs": f"{good},{disk.folder}", "log.flush.offset.checkpoint.interval.ms": 50})
    with ExitStack() as opened:
        broker.start()
        where = broker.bootstrap_servers
        topic = make_topic(where, PARTITIONS, configs={"flush.messages": 1})
        bad = [index for index in range(PARTITIONS) if (disk.folder / f"{topic}-{index}").exists()]
        fine = [index for index in range(PARTITIONS) if (good / f"{topic}-{index}").exists()]
        assert len(bad) >= 8 <= len(fine)
        member = _member(opened.enter_context(RawClient(where)))
        disk.hang()
        stuck = [opened.enter_context(RawClient(where)) for _ in bad]
        for client, index in zip(stuck, bad, strict=True):
            client.send(produce_request(topic, batch_of(b"waits"), index, acks=-1))
        eventually(lambda: disk.waiting >= 4, "fsyncs hang")

        client = opened.enter_context(RawClient(where))
        for index in fine:
            assert client.produce(topic, batch_of(b"on the other disk"), index, acks=-1).error_code == 0
        plain = make_topic(where, 2, configs={"flush.messages": 10_000})
        for index in range(2):  # one of the two lies on the disk that hangs, and waits for no fsync
            assert client.produce(plain, batch_of(b"in the page cache"), index, acks=-1).error_code == 0
        assert member() == 0, "a heartbeat"
        assert not any(one.has_answer(0) for one in stuck), "nothing is acknowledged that is not on the disk"
        broker.stop()
    assert (good / CLEAN).exists()
    assert not (disk.folder / CLEAN).exists()


def _member(client: RawClient) -> Callable[[], int]:
    """Joins a group; what it returns sends a heartbeat."""
    find, join = request_schema(ApiKey.FIND_COORDINATOR, 2), request_schema(ApiKey.JOIN_GROUP, 3)
    sync, beat = request_schema(ApiKey.SYNC_GROUP, 2), request_schema(ApiKey.HEARTBEAT, 2)
    client.ask(find.FindCoordinatorRequest(key="g", key_type=0))
    request = join.JoinGroupRequest(
        group_id="g",
        session_timeout=ms(60_000),
        rebalance_timeout=ms(60_000),
        member_id="",
        protocol_type="consumer",
        protocols=(join.JoinGroupRequestProtocol(name="range", metadata=b""),),
    )
    joined = client.ask(request)
    me = {"group_id": "g", "generation_id": joined.generation_id, "member_id": joined.member_id}
    assert client.ask(sync.SyncGroupRequest(**me, assignments=())).error_code == 0
    return lambda: int(client.ask(beat.HeartbeatRequest(**me)).error_code)


async def test_a_member_of_a_cluster_keeps_its_place(tmp_path: Path, disk: HangingDisk) -> None:
    beats = {"broker.heartbeat.interval.ms": 100}
    controller = server_of(tmp_path, 1, beats)
    broker = server_of(tmp_path, 2, {**beats, "log.dirs": f"{tmp_path / 'good'},{disk.folder}"})
    await controller.start()
    await broker.start()

    async def create(name: str, partitions: int) -> list[Partition]:
        """Each on the second broker. Answered when both have it."""
        await controller.node.controller.change(
            lambda image: plan_create_topic(
                image,
                name,
                topic_id=uuid.uuid4(),
                broker_config=controller.node.local.config,
                assignments=[(index, (2,)) for index in range(partitions)],
            )
        )
        return [broker.node.find_partition(name, None, index) for index in range(partitions)]

    try:
        partitions = await create("t", PARTITIONS)
        disk.hang()
        for partition in partitions:
            partition.append(memoryview(bytearray(batch_of(b"v"))), broker.node.clock())
            broker.node.replication.flush(partition)
        async with asyncio.timeout(60):
            await until(lambda: disk.waiting >= 4, "fsyncs hang")
            await create("later", 4)
            machine = controller.node.controller.machine
            assert machine is not None
            before_ms = machine._last_seen_ms[2]
            await until(lambda: machine._last_seen_ms[2] != before_ms, "a heartbeat arrives")
            assert not controller.node.metadata.image.brokers[2].fenced
            await broker.stop()
    finally:
        disk.release()
        await broker.stop()
        await controller.stop()
    assert not (disk.folder / CLEAN).exists()
