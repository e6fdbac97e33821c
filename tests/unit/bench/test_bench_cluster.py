"""The cluster part of the bench: its nodes' properties, what a quick run leaves out, and what counts as meanwhile."""

from __future__ import annotations

import socket
from pathlib import Path

from bench.run import choose
from bench.scenarios import SCENARIOS
from bench.scenarios.cluster_partitions import between, rotated
from bench.servers.apache_cluster import KafkaNode
from bench.servers.cluster import NODES, PORTS, quiet_ports
from bench.servers.moldau_cluster import MoldauCluster
from moldau.config.broker import BrokerConfig
from moldau.config.properties import parse_properties


def test_ports_are_free_different_and_below_those_of_outgoing_connections() -> None:
    ports = quiet_ports(6)
    assert len(set(ports)) == 6
    assert set(ports) <= set(PORTS)
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_the_nodes_of_moldau_share_their_metadata_and_nothing_else(tmp_path: Path) -> None:
    cluster = MoldauCluster(tmp_path)
    cluster.extra["broker.session.timeout.ms"] = 3_000
    configs: list[BrokerConfig] = []
    for node in cluster.nodes:
        node.extra = cluster.extra
        node.prepare_directory()
        text = (node.directory / "server.properties").read_text()
        configs.append(BrokerConfig.from_properties(parse_properties(text), strict=True)[0])
    assert [config.node_id for config in configs] == [1, 2, 3]
    assert len({config.log_dirs for config in configs}) == NODES
    assert {config.moldau_metadata_dir for config in configs} == {str(tmp_path / "metadata")}
    assert {config.broker_session_timeout_ms for config in configs} == {3_000}
    assert {config.min_insync_replicas for config in configs} == {2}
    assert cluster.bootstrap == ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)


def test_every_node_of_apache_kafka_knows_all_voters(tmp_path: Path) -> None:
    nodes = [KafkaNode(number, 9000 + number, (7001, 7002, 7003), tmp_path, None) for number in (1, 2, 3)]
    voters = {str(node.properties()["controller.quorum.voters"]) for node in nodes}
    assert voters == {"1@127.0.0.1:7001,2@127.0.0.1:7002,3@127.0.0.1:7003"}
    assert [node.properties()["node.id"] for node in nodes] == [1, 2, 3]


def test_a_quick_run_has_a_short_part_of_the_cluster_and_names_bring_all() -> None:
    quick = {each.name for each in choose(None, quick=True) if each.brokers == NODES}
    assert "cluster_throughput_100b" in quick
    assert "cluster_partitions" not in quick
    assert choose(None) == list(SCENARIOS)
    assert {each.name for each in choose(["cluster"], quick=True)} == {
        each.name for each in SCENARIOS if each.brokers == NODES
    }


def test_only_records_that_were_due_meanwhile_count() -> None:
    result = {"due_at": [1.0, 2.0, 3.0, 4.0], "latencies_ms": [10.0, 20.0, 30.0, 40.0]}
    assert between(result, 2.0, 3.0) == [20.0, 30.0]


def test_a_rotated_list_has_another_leader_and_the_same_replicas() -> None:
    assert rotated((1, 2, 3)) == (2, 3, 1)
