"""What every store of metadata promises, on each of them, with real processes and a real ZooKeeper."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from moldau.errors import ConfigError, FencedControllerError, StorageError
from moldau.metadata.image import MetadataImage
from moldau.metadata.stores.store import ControllerTerm
from moldau.metadata.stores.zookeeper_store import ZooKeeperStore
from tests.integration.store_process import SESSION_TIMEOUT_MS, Member, MemberProcess, facts, keys_of
from tests.integration.waiting import eventually
from tests.integration.zookeeper import ZooKeeper

_numbers = itertools.count()

LONG_SESSION_MS = 10_000
AT_ONCE_S = 5.0  # on a busy machine too; whoever waited for a session of that length would need longer


def place_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if kind != "zookeeper":
        return f"{kind}:{tmp_path}"
    zookeeper: ZooKeeper = request.getfixturevalue("zookeeper")
    return f"zookeeper:{zookeeper.connect}/clusters/{next(_numbers)}"


@pytest.fixture(params=["shared", "zookeeper"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that several brokers use."""
    return place_of(request.param, request, tmp_path)


@pytest.fixture(params=["local", "shared", "zookeeper"])
def any_place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return place_of(request.param, request, tmp_path)


@pytest.fixture
def join() -> Iterator[Callable[..., Member]]:
    """Makes candidates in this process."""
    with contextlib.ExitStack() as stack:

        def make(place: str, node_id: int, **options: int) -> Member:
            member = Member(place, node_id, **options)
            stack.callback(member.store.close)
            return member

        yield make


@pytest.fixture
def spawn() -> Iterator[Callable[..., MemberProcess]]:
    """Makes candidates in processes of their own."""
    with contextlib.ExitStack() as stack:

        def make(place: str, node_id: int, **options: int) -> MemberProcess:
            member = MemberProcess(place, node_id, **options)
            stack.callback(member.kill)
            return member

        yield make


Join = Callable[..., Member]
Spawn = Callable[..., MemberProcess]


def leader_of(members: list[Member]) -> Member:
    """Waits until all agree on a controller."""

    def agreed() -> bool:
        told = {member.term for member in members}
        return len(told) == 1 and None not in told and any(member.leads for member in members)

    eventually(agreed, "all agree on a controller")
    return next(member for member in members if member.leads)


class TestElection:
    def test_one_of_many_candidates_leads_and_all_know_it(self, place: str, join: Join) -> None:
        members = [join(place, node_id) for node_id in range(5)]
        leader = leader_of(members)
        assert leader.term == ControllerTerm(1, leader.node_id, "localhost", 9000 + leader.node_id)

    def test_a_newcomer_is_told_the_present_controller_first(self, place: str, join: Join) -> None:
        leader = leader_of([join(place, 1)])
        assert join(place, 2).told[0] == leader.term

    def test_each_epoch_has_one_controller_and_epochs_grow(self, place: str, join: Join) -> None:
        members = [join(place, node_id) for node_id in range(4)]
        standing = list(members)
        while standing:
            leader = leader_of(standing)
            leader.load()
            leader.append(f"by-{leader.node_id}")
            standing.remove(leader)
            leader.store.resign()
        for member in members:
            epochs = [told.epoch for told in member.told if told is not None]
            assert epochs == sorted(set(epochs))
        told_by_epoch = {(told.epoch, told.node_id) for member in members for told in member.told if told is not None}
        assert len(told_by_epoch) == len({epoch for epoch, _ in told_by_epoch}) == 4

    def test_who_resigns_is_followed_at_once_and_writes_no_more(self, place: str, join: Join) -> None:
        members = [join(place, node_id, session_timeout_ms=LONG_SESSION_MS) for node_id in (1, 2)]
        leader = leader_of(members)
        other = next(member for member in members if member is not leader)
        leader.load()
        leader.store.resign()
        eventually(lambda: other.leads, "the other leads", AT_ONCE_S)
        with pytest.raises(FencedControllerError):
            leader.append("too-late")

    def test_who_resigned_leads_no_more_until_it_stands_again(self, place: str, join: Join) -> None:
        leader = leader_of([join(place, 1)])
        leader.store.resign()
        eventually(lambda: leader.term is None, "nobody leads")
        leader.store.campaign_again()
        eventually(lambda: leader.leads, "it leads again")
        epochs = [told.epoch for told in leader.told if told is not None]
        assert len(epochs) == 2
        assert epochs[0] < epochs[1]

    def test_a_killed_controller_has_a_successor_in_time(self, place: str, join: Join, spawn: Spawn) -> None:
        process = spawn(place, 1)
        eventually(lambda: process.leads, "the process leads")
        process.ask("load")
        other = join(place, 2)
        process.kill()
        eventually(lambda: other.leads, "the other leads")

    def test_a_killed_controller_that_comes_back_leads_again_without_waiting(
        self, place: str, join: Join, spawn: Spawn
    ) -> None:
        process = spawn(place, 1, session_timeout_ms=LONG_SESSION_MS)
        eventually(lambda: process.leads, "the process leads")
        process.kill()
        again = join(place, 1, session_timeout_ms=LONG_SESSION_MS)
        eventually(lambda: again.leads, "it leads again", AT_ONCE_S)
        assert again.term is not None
        assert again.term.epoch == 2

    def test_a_dead_controller_can_be_replaced_before_its_time_out(self, place: str, join: Join, spawn: Spawn) -> None:
        process = spawn(place, 1, session_timeout_ms=LONG_SESSION_MS)
        eventually(lambda: process.leads, "the process leads")
        process.ask("load")
        other = join(place, 2, session_timeout_ms=LONG_SESSION_MS)
        process.send_signal(signal.SIGSTOP)
        other.store.take_over(1)
        eventually(lambda: other.leads, "the other leads", AT_ONCE_S)
        other.load()
        other.append("by-2")
        process.send_signal(signal.SIGCONT)
        assert "deposed" in process.ask("append", "by-1")
        eventually(lambda: process.told[-1] == other.term, "the deposed one is told")
        other.store.take_over(1)  # it is not the controller any more
        other.append("by-2-again")


class TestFencing:
    def test_a_stopped_controller_loses_its_place_and_writes_nothing_when_it_wakes(
        self, place: str, join: Join, spawn: Spawn
    ) -> None:
        process = spawn(place, 1)
        eventually(lambda: process.leads, "the process leads")
        process.ask("load")
        process.ask("append", "early")
        other = join(place, 2)
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: other.leads, "the other leads")
        assert keys_of(other.load()) == {"early"}
        other.append("successor")
        process.send_signal(signal.SIGCONT)
        assert "deposed" in process.ask("append", "late")
        assert "deposed" in process.ask("append", "later")
        other.append("successor-2")
        other.store.resign()
        eventually(lambda: process.leads, "the first one leads again")
        assert process.ask("load")["keys"] == ["early", "successor", "successor-2"]

    @pytest.mark.parametrize("how", ["stopped", "replaced"])
    def test_what_a_controller_acknowledged_until_the_last_moment_is_found_by_the_next(
        self, place: str, join: Join, spawn: Spawn, how: str
    ) -> None:
        process = spawn(place, 1, snapshot_min_bytes=4_000)
        eventually(lambda: process.leads, "the process leads")
        process.ask("load")
        other = join(place, 2)
        process.tell("append-until-refused", "3")
        eventually(lambda: len(process.acked) > 60, "some appends")
        if how == "stopped":
            process.send_signal(signal.SIGSTOP)
        else:
            other.store.take_over(1)
        eventually(lambda: other.leads, "the other leads")
        other.load()
        other.append("successor")
        process.send_signal(signal.SIGCONT)
        eventually(lambda: process.answers[1:], "the deposed one is refused")
        assert process.answers[1].keys() & {"deposed", "error"}
        eventually(lambda: process.told[-1] == other.term, "the deposed one is told")
        other.append("successor-2")
        other.store.resign()
        eventually(lambda: process.leads, "the first one leads again")
        kept = set(process.ask("load")["keys"])
        assert set(process.acked) <= kept
        assert kept - set(process.acked) <= keys_of(other.image)
        assert keys_of(other.image) == kept

    def test_another_epoch_reads_and_writes_nothing(self, any_place: str, join: Join) -> None:
        leader = leader_of([join(any_place, 1)])
        leader.load()
        image = leader.image.apply(facts("x"))
        for epoch in (leader.epoch - 1, leader.epoch + 1):
            with pytest.raises(FencedControllerError):
                leader.store.append(epoch, facts("x"), image)
            with pytest.raises(FencedControllerError):
                leader.store.load(epoch)


class TestKeeping:
    def test_a_restart_finds_everything_under_a_later_epoch(self, any_place: str) -> None:
        image, epoch = MetadataImage(), 0
        for life in range(3):
            member = Member(any_place, 1, snapshot_min_bytes=3_000)
            leader_of([member])
            assert member.load() == image
            assert member.epoch > epoch
            for number in range(40):
                member.append(f"{life}-{number}", f"{life}-{number}-b")
            image, epoch = member.image, member.epoch
            member.store.close()
        assert image.version == 240

    def test_the_next_controller_finds_what_the_last_one_appended(self, place: str, join: Join) -> None:
        members = [join(place, node_id, snapshot_min_bytes=3_000) for node_id in range(3)]
        image = MetadataImage()
        while members:
            leader = leader_of(members)
            assert leader.load() == image
            for number in range(50):
                leader.append(f"{leader.node_id}-{number}")
            image = leader.image
            leader.store.resign()
            members.remove(leader)
        assert len(keys_of(image)) == image.version == 150

    def test_a_large_append_is_kept(self, any_place: str) -> None:
        member = Member(any_place, 1)
        leader_of([member])
        member.load()
        member.append(*(f"{number:040d}" for number in range(25_000)))
        member.append("after")
        member.store.close()
        again = Member(any_place, 1)
        leader_of([again])
        assert again.load() == member.image
        again.store.close()

    def test_a_large_append_is_there_as_a_whole_or_not_at_all(self, place: str, join: Join, spawn: Spawn) -> None:
        size = 20_000  # 3 MB
        process = spawn(place, 1)
        eventually(lambda: process.leads, "the process leads")
        other = join(place, 2)
        process.ask("load")
        process.tell("append-until-refused", str(size))
        eventually(lambda: process.acked, "the first append")
        time.sleep(0.1)  # into the middle of the next one
        process.kill()
        eventually(lambda: other.leads, "the other leads")
        kept = keys_of(other.load())
        assert set(process.acked) <= kept
        assert len(kept) % size == 0


class TestSharedFolder:
    def test_two_brokers_of_one_id_are_noticed(self, tmp_path: Path, join: Join) -> None:
        join(f"shared:{tmp_path}", 1)
        with pytest.raises(ConfigError, match=r"another broker with this node\.id is running"):
            join(f"shared:{tmp_path}", 1)

    def test_epochs_go_on_when_the_claims_are_gone(self, tmp_path: Path, join: Join) -> None:
        for life in (1, 2):
            member = leader_of([Member(f"shared:{tmp_path}", 1)])
            member.load()
            member.append(f"life-{life}")
            member.store.close()
        (tmp_path / "controllers").unlink()
        member = leader_of([join(f"shared:{tmp_path}", 1)])
        assert keys_of(member.load()) == {"life-1", "life-2"}
        assert member.epoch == 3

    def test_a_removed_folder_ends_the_writing(self, tmp_path: Path, join: Join) -> None:
        member = leader_of([join(f"shared:{tmp_path / 'shared'}", 1)])
        member.load()
        shutil.rmtree(tmp_path / "shared")
        with pytest.raises(StorageError, match="was removed while the broker was running"):
            member.append("x")
        eventually(lambda: not member.leads, "nobody leads")
        assert not (tmp_path / "shared").exists()


class TestZooKeeper:
    def test_an_ensemble_that_does_not_answer_is_reported_in_time(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            connect = f"127.0.0.1:{silent.getsockname()[1]}"
            store = ZooKeeperStore(connect, session_timeout_ms=60_000, connection_timeout_ms=700)
            with pytest.raises(
                StorageError, match=f"no ZooKeeper server of zookeeper.connect={connect} responded within 0.7 s"
            ):
                store.open()
            store.close()

    def test_a_missing_package_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "kazoo.client", None)
        with pytest.raises(ConfigError, match=r"pip install '\.\[zookeeper\]'"):
            ZooKeeperStore("localhost:2181").open()

    def test_an_address_that_is_none_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"zookeeper\.connect=localhost:many is invalid"):
            ZooKeeperStore("localhost:many").open()

    def test_tools_find_controller_and_brokers_where_kafka_put_them(self, zookeeper: ZooKeeper, join: Join) -> None:
        member = leader_of([join(f"zookeeper:{zookeeper.connect}/kafka", 7)])
        member.store.announce(7, [("SSL", "h", 9093, "SSL"), ("OUT", "h", 9092, "PLAINTEXT")], "r1")
        with kazoo(zookeeper) as client:
            eventually(lambda: client.exists("/kafka/brokers/ids/7"), "the broker is announced")
            broker = json.loads(client.get("/kafka/brokers/ids/7")[0])
            controller = json.loads(client.get("/kafka/controller")[0])
            assert client.get("/kafka/controller_epoch")[0] == b"1"
            assert int(broker.pop("timestamp")) > 0
            assert broker == {
                "version": 5,
                "host": "h",
                "port": 9092,
                "jmx_port": -1,
                "rack": "r1",
                "features": {},
                "endpoints": ["SSL://h:9093", "OUT://h:9092"],
                "listener_security_protocol_map": {"SSL": "SSL", "OUT": "PLAINTEXT"},
            }
            assert controller["brokerid"] == 7
            assert controller["version"] == 1
            member.store.close()
            assert not client.exists("/kafka/brokers/ids/7")

    def test_snapshots_and_what_they_replace_leave_nothing_behind(self, zookeeper: ZooKeeper, join: Join) -> None:
        member = leader_of([join(f"zookeeper:{zookeeper.connect}/tidy", 1)])
        member.load()
        member.append(*(f"{number:040d}" for number in range(12_000)))
        for number in range(6):
            member.append(*(f"{number}-{each:040d}" for each in range(4_000)))
        with kazoo(zookeeper) as client:
            (snapshot,) = client.get_children("/tidy/moldau/snapshots")
            named = client.get(f"/tidy/moldau/snapshots/{snapshot}")[0].split()[1:]
            entries = client.get_children("/tidy/moldau/entries")
            assert all(name > snapshot for name in entries)
            assert len(client.get_children("/tidy/moldau/parts")) == len(named) > 2

    def test_an_expired_session_deposes_the_controller_and_a_new_epoch_begins(
        self, zookeeper: ZooKeeper, join: Join
    ) -> None:
        member = leader_of([join(f"zookeeper:{zookeeper.connect}/expiry", 1)])
        member.store.announce(1, [("PLAINTEXT", "h", 9092, "PLAINTEXT")], None)
        member.load()
        member.append("early")
        with kazoo(zookeeper) as client:
            eventually(lambda: client.exists("/expiry/brokers/ids/1"), "the broker is announced")
            session = client.get("/expiry/brokers/ids/1")[1].ephemeralOwner
            expire(zookeeper, member)
            eventually(lambda: member.term and member.term.epoch == 2, "a new epoch")
            with pytest.raises(FencedControllerError):
                member.append("late")
            eventually(lambda: client.exists("/expiry/brokers/ids/1"), "the broker is announced again")
            assert client.get("/expiry/brokers/ids/1")[1].ephemeralOwner != session
        assert member.told == [
            None,
            ControllerTerm(1, 1, "localhost", 9001),
            None,
            ControllerTerm(2, 1, "localhost", 9001),
        ]
        assert keys_of(member.load()) == {"early"}

    def test_nodes_that_somebody_spoilt_and_mended_end_no_candidacy(self, zookeeper: ZooKeeper, join: Join) -> None:
        member = leader_of([join(f"zookeeper:{zookeeper.connect}/spoilt", 1)])
        with kazoo(zookeeper) as client:
            client.set("/spoilt/controller_epoch", b"many")
            client.delete("/spoilt/controller")
            eventually(lambda: member.term is None, "nobody leads")
            with pytest.raises(StorageError):
                member.append("late")
            client.set("/spoilt/controller_epoch", b"1")
            eventually(lambda: member.leads, "it leads again")
            client.delete("/spoilt/moldau/entries", recursive=True)
            with pytest.raises(StorageError, match="is missing"):
                member.load()

    def test_a_server_that_restarts_interrupts_nobody_for_long(self, tmp_path: Path, join: Join) -> None:
        with ZooKeeper(tmp_path) as own:
            members = [join(f"zookeeper:{own.connect}", node_id, session_timeout_ms=4_000) for node_id in (1, 2)]
            leader = leader_of(members)
            leader.load()
            leader.append("before")
            (server,) = own.servers
            server.kill()
            restarting = threading.Timer(0.3, server.start)
            restarting.start()
            acked = {"before"}
            # A server that accepts us while it starts may never answer; then a session ends, and an epoch.
            with contextlib.suppress(StorageError):
                leader.append("meanwhile")
                acked.add("meanwhile")
            restarting.join()
            leader = leader_of(members)
            assert acked <= keys_of(leader.load()) <= {"before", "meanwhile"}
            leader.append("after")
            for member in members:
                member.store.close()

    def test_nobody_knows_the_controller_while_zookeeper_is_gone(self, tmp_path: Path, join: Join) -> None:
        with ZooKeeper(tmp_path) as own:
            members = [join(f"zookeeper:{own.connect}", node_id) for node_id in (1, 2)]
            leader = leader_of(members)
            leader.load()
            leader.append("before")
            (server,) = own.servers
            server.kill()
            with pytest.raises(StorageError, match="does not respond"):
                leader.append("in-doubt")
            eventually(lambda: all(member.term is None for member in members), "nobody knows")
            server.start()
            leader = leader_of(members)
            assert leader.term is not None
            assert leader.term.epoch == 2
            assert {"before"} <= keys_of(leader.load()) <= {"before", "in-doubt"}
            leader.append("after")
            for member in members:
                member.store.close()

    def test_a_controller_counts_as_deposed_when_its_session_ends_for_a_silent_zookeeper(
        self, tmp_path: Path, join: Join
    ) -> None:
        with ZooKeeper(tmp_path) as own:
            leader = leader_of([join(f"zookeeper:{own.connect}", 1, session_timeout_ms=4_000)])
            own.servers[0].pause()
            eventually(lambda: leader.term is None, "it doubts itself")
            leader.store.close()

    def test_a_broker_starts_while_other_servers_do_not_answer(
        self, zookeeper: ZooKeeper, join: Join, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("random.shuffle", lambda _: None)  # the silent ones come first
        with swallowing_connections() as vanished, socket.create_server(("127.0.0.1", 0)) as hanging:
            silent = f"127.0.0.1:{vanished},127.0.0.1:{hanging.getsockname()[1]}"
            member = join(f"zookeeper:{silent},{zookeeper.connect}/silent", 1, session_timeout_ms=8_000)
            leader_of([member])

    def test_a_server_that_falls_silent_is_left_for_the_next_one(
        self, tmp_path: Path, join: Join, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("random.shuffle", lambda _: None)
        # By its own pings kazoo would notice as well, but only after two thirds of the session.
        monkeypatch.setattr("kazoo.protocol.connection.ConnectionHandler._send_ping", lambda *_: None)
        with ZooKeeper(tmp_path, servers=3) as own:
            member = join(f"zookeeper:{own.connect}/c", 1, session_timeout_ms=10_000)
            leader = leader_of([member])
            leader.load()
            before = leader.term
            own.servers[0].pause()  # the one that it is connected to
            leader.append("after")
            assert leader.term == before, "in the same session"
            leader.store.close()

    def test_one_of_three_servers_can_die(self, tmp_path: Path, join: Join) -> None:
        with ZooKeeper(tmp_path, servers=3) as own:
            members = [join(f"zookeeper:{own.connect}/c", node_id, session_timeout_ms=8_000) for node_id in (1, 2)]
            leader = leader_of(members)
            leader.load()
            for server in own.servers[:2]:
                leader.append(f"before-{server.number}")
                server.kill()
                leader.append(f"without-{server.number}")
                server.start()
                eventually(server.is_serving, "the server is back")
            leader.store.resign()
            other = next(member for member in members if member is not leader)
            eventually(lambda: other.leads, "the other leads")
            assert keys_of(other.load()) == {"before-1", "without-1", "before-2", "without-2"}
            for member in members:
                member.store.close()


@contextlib.contextmanager
def swallowing_connections() -> Iterator[int]:
    """A port that neither accepts nor refuses: the queue of those who wait to be accepted is full."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = listening.getsockname()
        while True:
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0.2)
            try:
                waiting.connect(address)
            except TimeoutError:
                break
        yield address[1]


@contextlib.contextmanager
def kazoo(zookeeper: ZooKeeper) -> Iterator[Any]:
    client = KazooClient(zookeeper.connect)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def expire(zookeeper: ZooKeeper, member: Member) -> None:
    """Ends the member's session from elsewhere: connect and close in one breath, before its own client comes back."""
    store: Any = member.store
    session_id, password = store._client._client.client_id
    connect = struct.pack(">iqiqi", 0, 0, SESSION_TIMEOUT_MS, session_id, len(password)) + password + b"\0"
    close = struct.pack(">ii", 1, -11)

    def close_it() -> bool:
        with socket.create_connection(("127.0.0.1", zookeeper.servers[0].port)) as connection:
            connection.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in (connect, close)))
            while connection.recv(4096):
                pass
        return store._client.session_id not in (0, session_id)  # 0: it has none while it reconnects

    eventually(close_it, "the session has ended")
