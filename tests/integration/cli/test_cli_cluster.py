"""Administrators' commands on a cluster of three brokers, in Kafka's words."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import moldau
from soak.broker_process import free_port
from tests.integration.cli.conftest import Commands
from tests.integration.waiting import eventually

Write = Callable[[object], str]


@pytest.fixture(scope="module")
def cluster() -> Iterator[moldau.Cluster]:
    with moldau.Cluster(3) as three:
        yield three


@pytest.fixture
def commands(cluster: moldau.Cluster) -> Iterator[Commands]:
    yield Commands(cluster.bootstrap_servers)
    for broker in cluster.brokers:
        if not broker.is_alive:
            broker.start()
    cluster.wait_until_ready()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(value: object) -> str:
        path = tmp_path / f"{uuid.uuid4().hex}.json"
        path.write_text(json.dumps(value))
        return str(path)

    return to_file


def new_topic(commands: Commands, assignment: str) -> str:
    name = f"cli-{uuid.uuid4().hex[:12]}"
    commands.ok("topics", "--create", "--topic", name, "--replica-assignment", assignment)
    return name


def partitions_of(commands: Commands, topic: str) -> list[dict[str, object]]:
    (described,) = json.loads(commands.ok("topics", "--describe", "--topic", topic, "--json"))
    return list(described["partitions"])


def test_partitions_move_to_the_brokers_of_a_plan(commands: Commands, write: Write) -> None:
    topic = new_topic(commands, "1:2,2:3")
    targets = {0: [3, 2], 1: [1, 2, 3]}
    plan = write({"partitions": [{"topic": topic, "partition": p, "replicas": ids} for p, ids in targets.items()]})
    started = commands.ok("reassign-partitions", "--execute", "--reassignment-json-file", plan, "--throttle", "9000000")
    head, empty, current, *rest = started.splitlines()
    assert (head, empty) == ("Current partition replica assignment", "")
    assert [entry["replicas"] for entry in json.loads(current)["partitions"]] == [[1, 2], [2, 3]]
    assert rest == [
        "",
        "Save this to use as the --reassignment-json-file option during rollback",
        "Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle "
        "is removed.",
        "The inter-broker throttle limit was set to 9000000 B/s",
        f"Successfully started partition reassignments for {topic}-0,{topic}-1",
    ]

    def verify() -> str:
        return commands.ok("reassign-partitions", "--verify", "--reassignment-json-file", plan)

    eventually(lambda: "in progress" not in verify(), "the partitions have moved")
    assert verify().splitlines() == [
        "Status of partition reassignment:",
        f"Reassignment of partition {topic}-0 is completed.",
        f"Reassignment of partition {topic}-1 is completed.",
        "",
        "Clearing broker-level throttles on brokers 1,2,3",
        f"Clearing topic-level throttles on topic {topic}",
    ]
    assert [entry["replicas"] for entry in partitions_of(commands, topic)] == list(targets.values())
    assert "throttled" not in commands.ok("configs", "--describe", "--topic", topic)
    assert "throttled" not in commands.ok("configs", "--describe", "--broker", "1")
    # What --execute printed brings them back, log directories included.
    back = write(json.loads(current))
    again = commands.ok("reassign-partitions", "--execute", "--reassignment-json-file", back)
    assert f"for replica {topic}-0 with broker 1" in again
    eventually(lambda: partitions_of(commands, topic)[0]["replicas"] == [1, 2], "they are back")


def test_what_moves_is_listed_described_and_cancelled(
    cluster: moldau.Cluster, commands: Commands, write: Write
) -> None:
    topic = new_topic(commands, "1:2")
    if cluster.controller().node_id == 3:  # the one who is asked has to answer
        cluster.broker(3).stop()
        cluster.broker(3).start()
        cluster.wait_until_ready()
    cluster.broker(3).pause()  # so that nothing arrives there
    try:
        plan = write({"partitions": [{"topic": topic, "partition": 0, "replicas": [2, 3]}]})
        living = Commands(",".join(cluster.broker(node).address for node in (1, 2)))
        living.ok("reassign-partitions", "--execute", "--reassignment-json-file", plan)
        listed = living.ok("reassign-partitions", "--list").splitlines()
        assert listed[0] == "Current partition reassignments:"
        assert re.fullmatch(rf"{topic}-0: replicas: [\d,]+\. adding: 3\. removing: 1\.", listed[1])
        described = living.ok("topics", "--describe", "--topic", topic).splitlines()[1]
        assert "\tIsr: 1,2\tAdding Replicas: 3\tRemoving Replicas: 1\tElr: " in described
        assert f"{topic}" not in living.ok("topics", "--describe", "--under-replicated-partitions", "--topic", topic)
        refused = living("reassign-partitions", "--execute", "--reassignment-json-file", plan)
        assert refused.code == 1
        assert "there is an existing partition assignment" in refused.err
        status = json.loads(living("cluster", "status", "--json").out)
        assert [each["topic"] for each in status["reassignments"]] == [topic]
        cancelled = living.ok(
            "reassign-partitions", "--cancel", "--reassignment-json-file", plan, "--preserve-throttles"
        ).splitlines()
        assert cancelled == [
            f"Successfully cancelled partition reassignment for: {topic}-0",
            "None of the specified partition moves are active.",
        ]
    finally:
        cluster.broker(3).resume()
    assert commands.ok("reassign-partitions", "--list") == "No partition reassignments found.\n"
    (partition,) = partitions_of(commands, topic)
    assert partition["replicas"] == [2, 1], "as in Kafka, the plan's order stays"


def test_a_proposal_can_be_executed_as_it_is(commands: Commands, write: Write) -> None:
    topic = new_topic(commands, "1:2,1:2,1:2")
    topics = write({"version": 1, "topics": [{"topic": topic}]})
    generated = commands.ok(
        "reassign-partitions", "--generate", "--topics-to-move-json-file", topics, "--broker-list", "2,3"
    )
    lines = generated.splitlines()
    assert (lines[0], lines[2:4]) == (
        "Current partition replica assignment",
        ["", "Proposed partition reassignment configuration"],
    )
    proposed = json.loads(lines[4])
    assert all(sorted(entry["replicas"]) == [2, 3] for entry in proposed["partitions"])
    commands.ok("reassign-partitions", "--execute", "--reassignment-json-file", write(proposed))
    eventually(lambda: "No partition" in commands.ok("reassign-partitions", "--list"), "they have moved")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"topic": "cli-nowhere", "partition": 0, "replicas": [1]}, "Topic cli-nowhere not found."),
        ({"topic": "cli-nowhere", "partition": 0, "replicas": [9]}, "Unknown broker id 9"),
    ],
)
def test_a_plan_for_what_is_not_there_is_one_line(
    commands: Commands, write: Write, entry: dict[str, object], words: str
) -> None:
    result = commands("reassign-partitions", "--execute", "--reassignment-json-file", write({"partitions": [entry]}))
    assert result.code != 0
    assert result.err.endswith(f"{words}\n")
    assert result.err.count("\n") == 1


def test_preferred_leaders_are_elected_when_they_are_back(
    cluster: moldau.Cluster, commands: Commands, write: Write
) -> None:
    topic = new_topic(commands, "1:2,2:3")
    cluster.broker(1).kill()
    eventually(lambda: partitions_of(commands, topic)[0]["leader"] == 2, "another leads")
    failed = commands("leader-election", "--election-type", "preferred", "--topic", topic, "--partition", "0")
    assert failed.code == 1
    assert failed.out.startswith(f"Error completing leader election (PREFERRED) for partition: {topic}-0: ")
    assert failed.err.endswith("1 replica(s) could not be elected\n")
    cluster.broker(1).start()
    cluster.wait_until_ready()
    eventually(lambda: partitions_of(commands, topic)[0]["isr"] == [1, 2], "it is in sync again")
    both = write({"partitions": [{"topic": topic, "partition": partition} for partition in (0, 1)]})
    assert commands.ok("leader-election", "--election-type", "PREFERRED", "--path-to-json-file", both).splitlines() == [
        f"Successfully completed leader election (PREFERRED) for partitions {topic}-0",
        f"Valid replica already elected for partitions {topic}-1",
    ]
    assert partitions_of(commands, topic)[0]["leader"] == 1


def test_partitions_in_trouble_are_described_by_their_trouble(cluster: moldau.Cluster, commands: Commands) -> None:
    pair, alone, safe = (new_topic(commands, assignment) for assignment in ("1:2", "1", "2:3"))
    cluster.broker(1).kill()

    def shown(report: str) -> set[str]:
        lines = commands.ok("topics", "--describe", report, "--topic", f"{pair}|{alone}|{safe}").splitlines()
        return {line.split("\t")[1].removeprefix("Topic: ") for line in lines}

    eventually(lambda: shown("--unavailable-partitions") == {alone}, "the broker is fenced")
    assert shown("--under-replicated-partitions") == {pair}
    assert shown("--under-min-isr-partitions") == {pair, alone}
    assert shown("--at-min-isr-partitions") == {safe}


def test_the_status_of_a_cluster_has_an_exit_code_for_machines(
    cluster: moldau.Cluster, commands: Commands, nowhere: Commands
) -> None:
    topic = new_topic(commands, "1:2:3")

    def healthy() -> bool:
        return commands("cluster", "status").code == 0

    eventually(healthy, "all replicas are in sync")
    text = commands.ok("cluster", "status").splitlines()
    assert text[0].endswith(": healthy")
    address = cluster.broker(1).address
    assert re.fullmatch(rf"Broker: 1\tAddress: {address}\tRack: -\tState: alive\tLeads: \d+\tReplicas: \d+", text[1])
    assert f"Controller: {cluster.controller().node_id}" in text

    cluster.broker(1).kill()
    eventually(lambda: not healthy(), "that a broker is gone is noticed")
    result = commands("cluster", "status", "--json")
    assert result.code == 3
    status = json.loads(result.out)
    assert [broker["is_fenced"] for broker in status["brokers"]] == [True, False, False]
    assert {"topic": topic, "partition": 0} in status["underReplicatedPartitions"]
    assert {"topic": topic, "partition": 0} not in status["offlinePartitions"]
    assert nowhere("cluster", "status").code == 1


def test_a_cluster_is_not_healthy_before_all_its_brokers_are_there(tmp_path: Path) -> None:
    port = free_port()
    config = {"moldau.cluster.brokers": 2, "moldau.metadata.dir": tmp_path / "metadata", "node.id": 1}
    with moldau.Broker(config, data_dir=tmp_path / "one", port=port):
        early = Commands(f"127.0.0.1:{port}")("cluster", "status")
        assert early.code == 3
        assert "Missing brokers: 1 (1 of 2 have joined)" in early.out
        with moldau.Broker({**config, "node.id": 2}, data_dir=tmp_path / "two"):
            assert Commands(f"127.0.0.1:{port}")("cluster", "status").code == 0


def test_the_cluster_tells_its_id_its_members_and_forgets_one_that_is_gone(
    cluster: moldau.Cluster, commands: Commands
) -> None:
    assert re.fullmatch(r"Cluster ID: [\w-]{22}\n", commands.ok("cluster", "cluster-id"))
    cluster.broker(3).kill()
    assert commands.ok("cluster", "unregister", "--id", "3") == "Broker 3 is no longer registered.\n"
    listed = commands.ok("cluster", "list-endpoints", "--include-fenced-brokers").splitlines()
    assert listed[0].split() == ["ID", "HOST", "PORT", "RACK", "STATE", "ENDPOINT_TYPE"]
    assert [line.split()[0] for line in listed[1:]] == ["1", "2"]


def test_who_keeps_the_metadata_and_how_far_others_have_read_it(cluster: moldau.Cluster, commands: Commands) -> None:
    status = dict(line.split(":", 1) for line in commands.ok("metadata-quorum", "describe", "--status").splitlines())
    assert status["LeaderId"].strip() == str(cluster.controller().node_id)
    assert int(status["HighWatermark"]) > 0
    head, *rows = commands.ok("metadata-quorum", "describe", "--replication").splitlines()
    assert head.split() == [
        "NodeId", "DirectoryId", "LogEndOffset", "Lag", "LastFetchTimestamp", "LastCaughtUpTimestamp", "Status",
    ]  # fmt: skip
    assert sorted(row.split()[0] for row in rows) == ["1", "2", "3"]
    assert rows[0].split()[-1] == "Leader"
