"""Three real brokers lose nothing: kills, pauses, cuts, a full disk, a late request, whatever the seed says.

Short forms; the long ones with their figures are `python -m soak --cluster 300` and `python -m soak --cluster-jobs`.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from moldau import Cluster
from moldau.errors import ErrorCode, KafkaError
from moldau.local_cluster import BrokerProcess
from moldau.testing.faults import Network
from moldau.wire.apis import ApiKey
from moldau.wire.messages import request_schema
from soak.cluster_jobs import (
    Load,
    Outcome,
    bad_network,
    cut_follower,
    exactly_once,
    hard_bounces,
    isr_of,
    paused_leader,
    under_load,
    whole_cluster_killed,
)
from soak.cluster_run import Schedule, make_topic, run_mixed_faults
from soak.load import ConfluentWriter, KafkaPythonWriter
from tests.integration.conftest import cluster_at
from tests.integration.raw import RawClient, batch_of, produce_request
from tests.integration.raw_txn import RawProducer, committed_values, last_stable_offset, persist
from tests.integration.waiting import eventually
from tests.integration.zookeeper import ZooKeeper

CONFIG = {
    "broker.session.timeout.ms": 1_500,
    "broker.heartbeat.interval.ms": 300,
    "replica.lag.time.max.ms": 1_500,
    "replica.fetch.wait.max.ms": 300,
    "offsets.topic.num.partitions": 5,
    "transaction.state.log.num.partitions": 5,
}
LOAD = Load(3_000, (ConfluentWriter, KafkaPythonWriter))

Running = tuple[Cluster, Network]


@contextmanager
def running(folder: Path, **options: Any) -> Iterator[Running]:
    cluster = Cluster(3, CONFIG, data_dir=folder, **options)
    with Network(cluster) as network, cluster:
        yield cluster, network


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("cluster")) as three:
        yield three


@pytest.fixture(autouse=True)
def _healed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test did to the brokers of all tests is undone, and none of them had an error of its own."""
    yield
    if "brokers" in request.fixturenames:
        cluster, network = request.getfixturevalue("brokers")
        network.heal()
        for broker in cluster.brokers:
            if not broker.is_alive:
                broker.start()
            elif broker.is_paused:
                broker.resume()
        cluster.wait_until_ready()
        assert tracebacks(cluster) == []


def tracebacks(cluster: Cluster) -> list[str]:
    texts = [broker.log_path.read_text(errors="replace") for broker in cluster.brokers if broker.log_path is not None]
    return [text[text.index("Traceback") :][:3000] for text in texts if "Traceback" in text]


def good(outcome: Outcome) -> dict[str, object]:
    print(outcome.figures)
    assert outcome.problems == []
    return outcome.figures


def values(broker: BrokerProcess, topic: str) -> list[bytes | None]:
    with RawClient(broker.address) as client:
        return [record.value for record in client.read_all(topic)]


def leader_id(broker: BrokerProcess, topic: str) -> int:
    """-1 where nobody leads, or that broker cannot say."""
    try:
        with cluster_at(broker.address) as client:
            return client.metadata([topic]).topics[topic].partitions[0].leader
    except (KafkaError, KeyError):
        return -1


# -- one fault at a time


def test_hard_bounces_of_leader_and_controller_lose_nothing(brokers: Running) -> None:
    good(hard_bounces(*brokers, bounces=2, load=LOAD, pause_s=0.5))


def test_a_cluster_that_was_killed_at_once_has_lost_nothing(brokers: Running) -> None:
    good(whole_cluster_killed(*brokers, load=LOAD))


def test_a_cut_follower_leaves_the_in_sync_set_and_catches_up_to_the_same_bytes(brokers: Running) -> None:
    good(cut_follower(*brokers, load=LOAD, lasts_s=2.0))


def test_delays_cuts_and_resets_lose_nothing(brokers: Running) -> None:
    good(bad_network(*brokers, load=LOAD, lasts_s=1.0))


def test_a_leader_that_slept_has_its_clients_served_by_another(brokers: Running) -> None:
    good(paused_leader(*brokers, load=LOAD, lasts_s=2.0))


def test_a_leader_that_slept_through_its_fall_acknowledges_nothing(brokers: Running) -> None:
    cluster, _ = brokers
    make_topic(cluster.bootstrap_servers, "asleep", 1)
    leader = cluster.leader_of("asleep")
    with RawClient(leader.address) as client:
        assert client.produce("asleep", batch_of(b"before")).error_code == 0
        leader.pause()
        late = produce_request("asleep", batch_of(b"late"))
        client.send(late)
        eventually(lambda: cluster.leader_of("asleep") is not leader, "another broker leads")
        successor = cluster.leader_of("asleep")
        with RawClient(successor.address) as other:
            eventually(lambda: other.produce("asleep", batch_of(b"after")).error_code == 0, "it knows that it leads")
        leader.resume()
        _, answer = client.receive(late)
        assert answer.responses[0].partition_responses[0].error_code != 0
    eventually(lambda: len(isr_of(successor, "asleep")) == 3, "the one that slept is back")
    assert values(successor, "asleep") == [b"before", b"after"]


def test_a_controller_that_sleeps_and_its_partitions_are_taken_over_within_seconds(brokers: Running) -> None:
    cluster, _ = brokers
    make_topic(cluster.bootstrap_servers, "dozing", 3)
    controller = cluster.controller()
    partition = next(index for index in range(3) if cluster.leader_of("dozing", index) is controller)
    controller.pause()
    # The controller's session, and then the session of the leader that it was, too.
    eventually(lambda: cluster.leader_of("dozing", partition) is not controller, "another broker leads")


@pytest.mark.parametrize("unclean", [False, True])
def test_a_replica_that_missed_records_leads_only_where_unclean_elections_are_wanted(
    brokers: Running, unclean: bool
) -> None:
    cluster, _ = brokers
    topic = f"unclean-{unclean}".lower()
    make_topic(
        cluster.bootstrap_servers, topic, 1, min_insync_replicas=1, unclean_leader_election_enable=str(unclean).lower()
    )
    leader = cluster.leader_of(topic)
    behind, other = (broker for broker in cluster.brokers if broker is not leader)
    with RawClient(leader.address) as client:
        assert client.produce(topic, batch_of(b"everywhere")).error_code == 0
        for broker in (behind, other):
            broker.kill()
        eventually(lambda: isr_of(leader, topic) == (leader.node_id,), "the leader is alone")
        assert client.produce(topic, batch_of(b"here alone")).error_code == 0
    leader.kill()
    behind.start()
    if unclean:
        eventually(lambda: leader_id(behind, topic) == behind.node_id, "the one that lives leads")
        assert values(behind, topic) == [b"everywhere"]
    else:
        eventually(lambda: leader_id(behind, topic) == -1, "nobody else may lead")
        leader.start()
        eventually(lambda: leader_id(behind, topic) == leader.node_id, "the one with all records leads")
        assert values(leader, topic) == [b"everywhere", b"here alone"]


# -- transactions


def coordinator_of(cluster: Cluster, transactional_id: str) -> BrokerProcess:
    schema = request_schema(ApiKey.FIND_COORDINATOR, 4)
    found: list[BrokerProcess] = []

    def ask() -> bool:
        alive = next(broker for broker in cluster.brokers if broker.is_alive)
        with RawClient(alive.address) as client:
            answer = client.ask(schema.FindCoordinatorRequest(key_type=1, coordinator_keys=(transactional_id,)))
        one = answer.coordinators[0]
        if one.error_code == 0 and cluster.broker(one.node_id).is_alive:
            found.append(cluster.broker(one.node_id))
        return bool(found)

    eventually(ask, "there is a coordinator")
    return found[0]


def test_late_requests_of_an_old_producer_are_fenced_and_hold_nothing_up(brokers: Running) -> None:
    cluster, network = brokers
    make_topic(cluster.bootstrap_servers, "late", 1)
    leader, coordinator = cluster.leader_of("late"), coordinator_of(cluster, "late-txn")
    proxy = network.for_clients[leader.node_id]
    with (
        RawClient(coordinator.address) as at_coordinator,
        RawClient(proxy.address) as on_the_way,
        RawClient(leader.address) as at_leader,
    ):
        old = RawProducer(at_coordinator, "late-txn").init()
        old.client = on_the_way
        old.write("late", b"first")
        proxy.cut("raw")
        late = produce_request(
            "late",
            batch_of(b"late", producer=(old.producer_id, old.epoch, 1), is_transactional=True),
            version=12,
            transactional_id="late-txn",
        )
        on_the_way.send(late)
        new = RawProducer(at_coordinator, "late-txn").init()
        new.client = at_leader
        new.write("late", b"second")
        new.client = at_coordinator
        new.commit()
        proxy.heal()
        _, answer = on_the_way.receive(late)
        code = answer.responses[0].partition_responses[0].error_code
        assert code in {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
        end = at_leader.fetch("late", 0).high_watermark
        eventually(lambda: last_stable_offset(at_leader, "late") == end, "nothing hangs")
    coordinator.kill()
    with RawClient(coordinator_of(cluster, "late-txn").address) as elsewhere:
        old.client = elsewhere
        assert persist(lambda: old.end(True)) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("question_waits", [False, True], ids=["between-questions", "during-a-question"])
def test_the_next_transaction_does_not_mind_the_late_marker_of_the_last_one(
    brokers: Running, question_waits: bool
) -> None:
    """In version 2 a producer goes on when the end is decided, and its partition hears of the new transaction first."""
    cluster, network = brokers
    topic = f"marker-{question_waits}".lower()
    make_topic(cluster.bootstrap_servers, topic, 1)
    leader = cluster.leader_of(topic)
    names = (f"{topic}-{number}" for number in count())
    name = next(one for one in names if coordinator_of(cluster, one) is not leader)
    coordinator = coordinator_of(cluster, name)
    markers_way, questions_way = network.for_brokers[leader.node_id], network.for_brokers[coordinator.node_id]
    with RawClient(coordinator.address) as at_coordinator, RawClient(leader.address) as at_leader:
        producer = RawProducer(at_coordinator, name).init()

        def write(value: bytes) -> None:
            producer.client = at_leader
            producer.write(topic, value)
            producer.client = at_coordinator

        for number in range(5):
            write(b"a%d" % number)
            markers_way.cut(f"broker-{coordinator.node_id}-markers")
            assert producer.end(True) is ErrorCode.NONE
            if question_waits:
                questions_way.cut(f"broker-{leader.node_id}-transactions")
            following = produce_request(
                topic,
                batch_of(b"b%d" % number, producer=(producer.producer_id, producer.epoch, 0), is_transactional=True),
                version=12,
                transactional_id=name,
            )
            at_leader.send(following)
            with RawClient(leader.address) as another:  # when this is answered, the request before is being handled
                assert last_stable_offset(another, topic) == 4 * number
            markers_way.heal()
            if question_waits:
                eventually(lambda: producer.describe().transaction_state == "CompleteCommit", "the marker is there")
                questions_way.heal()
            code = ErrorCode(at_leader.receive(following)[1].responses[0].partition_responses[0].error_code)
            if code is ErrorCode.CONCURRENT_TRANSACTIONS:  # the marker took longer than the broker's tries
                write(b"b%d" % number)
            else:
                assert code is ErrorCode.NONE
            producer.commit()
        expected = [value for number in range(5) for value in (b"a%d" % number, b"b%d" % number)]
        assert committed_values(at_leader, topic) == expected
        assert last_stable_offset(at_leader, topic) == 4 * 5


def test_records_are_copied_exactly_once_over_kills_of_brokers_and_copiers(brokers: Running) -> None:
    figures = good(exactly_once(*brokers, records=2000, seed=5))
    assert figures["copied"] == 2000


# -- disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small tmpfs cannot be mounted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_of_one_broker_does_not_stop_those_who_write_to_the_others(
    small_disk: Path, tmp_path: Path
) -> None:
    cluster = Cluster(3, {**CONFIG, "log.segment.bytes": 1 << 20}, data_dir=tmp_path / "cluster")
    full = cluster.brokers[2]
    full.properties["log.dirs"] = str(small_disk / "data")
    with cluster:
        make_topic(cluster.bootstrap_servers, "large", 3)
        leaders = {partition: cluster.leader_of("large", partition) for partition in range(3)}
        for partition in (index for index, leader in leaders.items() if leader is not full):
            with RawClient(leaders[partition].address) as client:
                for number in range(60):
                    assert client.produce("large", batch_of(bytes(100_000)), partition).base_offset == number
                assert client.fetch("large", 59, partition).high_watermark == 60
            eventually(
                lambda partition=partition: full.node_id not in isr_of(leaders[partition], "large", partition),
                "the full one is not in sync",
            )
        assert tracebacks(cluster) == []


# -- ZooKeeper


@pytest.mark.parametrize("servers", [1, 3])
def test_a_zookeeper_that_dies_stops_no_client(tmp_path: Path, servers: int) -> None:
    """The only one, for a while; one of three, for good. A broker that dies afterwards is replaced as ever."""
    with (
        ZooKeeper(tmp_path / "zookeeper", servers) as ensemble,
        running(tmp_path / "cluster", zookeeper=f"{ensemble.connect}/moldau") as (cluster, network),
    ):

        def faults() -> None:
            victim = ensemble.servers[0]
            victim.kill()
            before = leader_id(cluster.brokers[0], "kept")
            make_writes(cluster, "kept")
            assert leader_id(cluster.brokers[0], "kept") == before
            if servers == 1:
                victim.start()
                eventually(victim.is_serving, "ZooKeeper is back")
            leader = cluster.leader_of("kept")
            leader.kill()
            eventually(lambda: cluster.leader_of("kept") is not leader, "another broker leads")
            leader.start()
            cluster.wait_until_ready()

        make_topic(cluster.bootstrap_servers, "kept", 1)
        good(under_load(cluster, network, "through", LOAD, faults))
        make_topic(cluster.bootstrap_servers, "afterwards", 1)
        assert tracebacks(cluster) == []


def make_writes(cluster: Cluster, topic: str) -> None:
    with RawClient(cluster.leader_of(topic).address) as client:
        for _ in range(10):
            assert client.produce(topic, batch_of(b"written")).error_code == 0


# -- all of it


def test_mixed_faults_leave_a_history_that_one_log_explains(brokers: Running) -> None:
    seed = random.SystemRandom().randrange(2**32)
    report = run_mixed_faults(*brokers, duration_s=12.0, seed=seed, schedule=Schedule(4.0, (0.5, 2.5)), rate_per_s=30.0)
    print(f"seed {seed}: {report.history.operations} operations, {dict(report.faults)}, {report.longest_gap_s:.2f} s")
    assert report.problems == [], f"seed {seed}"
    assert report.history.operations > 1000
