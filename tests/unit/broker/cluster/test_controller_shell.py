"""The shell around the controller: what becomes of changes when stores fail, clocks jump and leadership moves."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.broker.cluster import controller_shell as shell
from moldau.broker.cluster.broker_lifecycle import HEARTBEATS_PER_SESSION
from moldau.broker.cluster.leader_lease import LeaderLease
from moldau.broker.cluster.standalone import Standalone
from moldau.cluster.controller import Controller
from moldau.errors import KafkaError
from moldau.log.meta_properties import read_cluster_id
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import BrokerRecord, ClusterRecord, ConfigRecord, Record
from moldau.metadata.stores.local_store import LocalStore
from moldau.metadata.stores.store import ControllerTerm
from moldau.wire.apis import ApiKey
from moldau.wire.messages import encode_request, request_schema
from tests.unit.broker.offline import OfflineBroker

SESSION_MS = 9_000


def put(key: str, value: str) -> Callable[[MetadataImage], tuple[list[Record], str]]:
    return lambda _: ([ConfigRecord("broker", "", key, value)], value)


def machine_of(broker: OfflineBroker) -> Controller:
    machine = broker.node.controller.machine
    assert machine is not None
    return machine


async def test_a_slip_in_one_step_costs_the_others_nothing(offline_broker: OfflineBroker) -> None:
    def slip(_: MetadataImage) -> tuple[list[Record], None]:
        raise IndexError("a slip")

    controller = offline_broker.node.controller
    good, bad = await asyncio.gather(
        controller.run(put("num.partitions", "3")), controller.run(slip), return_exceptions=True
    )
    assert good == "3"
    assert isinstance(bad, KafkaError)
    assert controller.image.broker_config(None) == {"num.partitions": "3"}


async def test_a_write_that_ends_after_the_next_election_takes_no_image_back(offline_broker: OfflineBroker) -> None:
    controller = offline_broker.node.controller
    store: Any = controller._store
    written, may_return = threading.Event(), threading.Event()
    append = store.append

    def append_slowly(*args: Any) -> None:
        append(*args)
        written.set()
        assert may_return.wait(30)

    store.append = append_slowly
    waiting = asyncio.ensure_future(controller.run(put("num.partitions", "3")))
    await asyncio.to_thread(written.wait, 30)
    epoch = controller.epoch
    controller.deposed()
    later = store.load(epoch).apply([ConfigRecord("broker", "", "num.partitions", "4")])
    controller._take_over(ControllerTerm(epoch + 2, 0, "", 0), later)
    may_return.set()
    assert await waiting == "3", "it was kept"
    assert controller.image is later
    assert controller.feed._end == later.version


async def test_silence_while_the_controller_itself_stood_still_fences_nobody(
    offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, machine = offline_broker.node, machine_of(offline_broker)
    brokers = [
        BrokerRecord(one, node.metadata.image.version + one, (("PLAINTEXT", "localhost", 1, "PLAINTEXT"),))
        for one in (1, 2)
    ]
    image = node.metadata.image.apply(brokers)
    now_ms = node.monotonic_ms()
    machine._last_seen_ms = {1: now_ms, 2: now_ms}

    def ticked(later_ms: int) -> tuple[Any, bool]:
        monkeypatch.setattr(node.controller, "_monotonic_ms", lambda: now_ms + later_ms)
        return node.controller._tick(machine, image)

    assert ticked(60_000) == ([], False), "it slept for a minute"
    silent_until_ms = 60_000 + SESSION_MS + 1_000
    assert all(ticked(ms) == ([], False) for ms in range(60_100, silent_until_ms - 2_000, 100))
    assert any(ticked(ms)[0] for ms in range(silent_until_ms - 2_000, silent_until_ms + 100, 100))


async def test_who_cannot_load_lets_another_be_elected_whatever_the_reason(
    offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[str] = []

    class Unreadable(LocalStore):
        def load(self, epoch: int) -> MetadataImage:
            raise OSError(errno.EMFILE, "Too many open files")

        def resign(self) -> None:
            calls.append("resign")

        def campaign_again(self) -> None:
            calls.append("campaign_again")

    monkeypatch.setattr(shell, "RESIGNED_S", 0.0)
    controller = offline_broker.node.controller
    controller.deposed()
    controller.term = ControllerTerm(7, 1, "", 0)
    await controller.elected(Unreadable(tmp_path / "store"), controller.term)
    while len(calls) < 2:
        await asyncio.sleep(0)
    assert calls == ["resign", "campaign_again"]
    assert not controller.is_active


async def test_brokers_with_data_do_not_take_an_empty_store_for_their_clusters(offline_broker: OfflineBroker) -> None:
    node = offline_broker.node
    known = read_cluster_id(node.logs.directories)
    (formatted,) = node.controller._cluster_id_for(MetadataImage())
    assert formatted == ClusterRecord(str(known))
    await offline_broker.create("t")
    offline_broker.write("t", 1)
    (other,) = node.controller._cluster_id_for(MetadataImage())
    assert other != formatted


class Backed:
    """Broker 1 is the controller of some brokers, on a clock to turn; each of them has a connection to it."""

    def __init__(self, broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch, *ids: int) -> None:
        self.now_s = 1000.0
        self.controller = broker.node.controller
        monkeypatch.setattr(self.controller, "_loop", SimpleNamespace(time=lambda: self.now_s))
        self.controller._began_s = 900.0
        self.lease = LeaderLease(broker.node.local, self.controller, lambda: self.now_s)
        self.have(*ids)

    def have(self, *ids: int) -> None:
        records = [BrokerRecord(each, each, (), None, fenced=False, incarnation_id="") for each in ids]
        self.controller.image = MetadataImage().apply(records)
        self.connections = {each: object() for each in ids}

    def pass_s(self, elapsed_s: float) -> None:
        """Time in which the process was awake."""
        until_s = self.now_s + elapsed_s
        while self.now_s < until_s:
            self.now_s = min(self.now_s + 0.25, until_s)
            self.lease._tick(self.now_s)

    def hear(self, *ids: int) -> None:
        for one in ids:
            self.controller.on_heartbeat(one, self.connections[one])


async def test_a_controller_is_backed_while_those_without_its_answers_are_no_majority(
    offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Backed(offline_broker, monkeypatch, 1)
    controller = cluster.controller
    assert controller.majority_contact_s == cluster.now_s
    cluster.have(1, 2)
    assert controller.majority_contact_s == cluster.now_s, "one other broker outvotes nobody"
    cluster.have(1, 2, 3)
    cluster.hear(2)
    assert controller.majority_contact_s == 900.0, "whether 2 gets the answer is not known yet"
    cluster.now_s = 1002.0
    cluster.hear(2)
    assert controller.majority_contact_s == 1000.0, "2 got it, and 3 is alone"
    cluster.now_s = 1004.0
    controller.on_heartbeat(2, object())
    assert controller.majority_contact_s == 1000.0, "on a new connection: the answer before may be lost"
    cluster.have(1, 2, 3, 4, 5)
    assert controller.majority_contact_s == 900.0, "3, 4 and 5 are three of five"
    cluster.hear(5)
    cluster.now_s = 1006.0
    cluster.hear(5)
    assert controller.majority_contact_s == 1000.0, "of 2; 5 got an answer later"


async def test_heartbeats_that_waited_while_the_controller_stood_still_do_not_back_it(
    offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Backed(offline_broker, monkeypatch, 1, 2, 3)
    cluster.hear(2, 3)
    cluster.lease.on_heartbeat_answered(cluster.now_s)
    last_heard_s = cluster.now_s
    cluster.now_s += 6.5  # stopped, for less than a process has to notice
    cluster.hear(2, 3)  # sent at 2 s; from now on it is cut off from brokers and store
    cluster.lease.on_heartbeat_answered(cluster.now_s)
    while cluster.now_s < last_heard_s + SESSION_MS / 1000:  # then its successor fences it
        cluster.pass_s(0.5)
        cluster.lease.on_heartbeat_answered(cluster.now_s)
    assert cluster.lease.may_be_expired()


@pytest.mark.parametrize("others_lag_s", [0.05, 1.0, 2.2])
async def test_a_controller_that_is_heard_is_never_in_doubt(
    offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch, others_lag_s: float
) -> None:
    cluster = Backed(offline_broker, monkeypatch, 1, 2, 3)
    interval_s = SESSION_MS / 1000 / HEARTBEATS_PER_SESSION
    for _ in range(10):
        cluster.lease.on_heartbeat_answered(cluster.now_s)
        cluster.pass_s(others_lag_s)
        assert not cluster.lease.may_be_expired()
        cluster.hear(2, 3)
        cluster.pass_s(interval_s - others_lag_s)
        assert not cluster.lease.may_be_expired()
    cluster.pass_s(2.0)
    assert not cluster.lease.may_be_expired(), "heartbeats may be late"


async def test_only_registered_brokers_back_a_controller(offline_broker: OfflineBroker) -> None:
    node = offline_broker.node
    assert isinstance(node.membership, Standalone)
    await node.membership.register()
    known = node.metadata.image.brokers[node.node_id]
    for broker_id, epoch in ((999, 1), (node.node_id, known.broker_epoch + 1), (node.node_id, known.broker_epoch)):
        request = request_schema(ApiKey.BROKER_HEARTBEAT, 0).BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=epoch,
            current_metadata_offset=0,
            want_fence=False,
            want_shut_down=False,
        )
        assert list(node.controller._contacts) == []
        await offline_broker.send(encode_request(7, "broker-999", request)[4:])
    assert list(node.controller._contacts) == [node.node_id]
