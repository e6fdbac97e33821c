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
from offline import OfflineBroker

from moldau.broker import controller as shell
from moldau.cluster.controller import Controller
from moldau.errors import KafkaError
from moldau.log.meta_properties import read_cluster_id
from moldau.metadata.image import MetadataImage
from moldau.metadata.local_store import LocalStore
from moldau.metadata.records import BrokerRecord, ClusterRecord, ConfigRecord, Record
from moldau.metadata.store import Leadership

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
    controller._take_over(Leadership(epoch + 2, 0, "", 0), later)
    may_return.set()
    assert await waiting == "3", "it was kept"
    assert controller.image is later
    assert controller.feed._end == later.version


async def test_silence_while_the_controller_itself_stood_still_fences_nobody(
    offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, machine = offline_broker.node, machine_of(offline_broker)
    brokers = [
        BrokerRecord(one, node.image.version + one, (("PLAINTEXT", "localhost", 1, "PLAINTEXT"),)) for one in (1, 2)
    ]
    image = node.image.apply(brokers)
    now_ms = node.monotonic_ms()
    machine._last_seen_ms = {1: now_ms, 2: now_ms}

    def ticked(later_ms: int) -> tuple[Any, bool]:
        monkeypatch.setattr(node, "monotonic_ms", lambda: now_ms + later_ms)
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

        def stand(self) -> None:
            calls.append("stand")

    monkeypatch.setattr(shell, "STAND_ASIDE_S", 0.0)
    controller = offline_broker.node.controller
    controller.deposed()
    controller.leadership = Leadership(7, 1, "", 0)
    await controller.elected(Unreadable(tmp_path / "store"), controller.leadership)
    while len(calls) < 2:
        await asyncio.sleep(0)
    assert calls == ["resign", "stand"]
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


async def test_a_controller_is_backed_while_those_it_does_not_hear_are_no_majority(
    offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = offline_broker.node
    controller = node.controller
    now_s = 1000.0
    monkeypatch.setattr(node, "loop", SimpleNamespace(time=lambda: now_s))
    controller._began_s = 900.0

    def with_brokers(*ids: int) -> None:
        records = [BrokerRecord(each, each, (), None, fenced=False, incarnation_id="") for each in ids]
        controller.image = MetadataImage().apply(records)

    for ids in ((1,), (1, 2)):
        with_brokers(*ids)
        assert controller.backed_s == now_s, "one other broker outvotes nobody"
    with_brokers(1, 2, 3)
    assert controller.backed_s == 900.0, "nobody was heard yet"
    controller.heard_from(2)
    assert controller.backed_s == now_s, "broker 3 is alone"
    with_brokers(1, 2, 3, 4, 5)
    assert controller.backed_s == 900.0, "3, 4 and 5 are three of five"
    controller.heard_from(5)
    assert controller.backed_s == now_s
