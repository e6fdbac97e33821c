"""The pages of `moldau.metrics.port`, and the dashboard and alert rules that are made for them."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import socket
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import moldau
from moldau import Broker
from moldau.broker.monitoring.group_lag import GroupLag, GroupTopicLag
from moldau.broker.monitoring.metrics_table import HISTOGRAMS, METRICS
from moldau.client.admin import create_topic
from moldau.coordinators.offsets.commits import Commit, Offset, commit
from moldau.errors import ConfigError
from moldau.log.files import DiskSpace
from moldau.metadata.stores.shared_store import SharedStore
from moldau.metadata.stores.store import Candidate
from moldau.metadata.topics import plan_create_topic
from soak.broker_process import free_port
from tests.integration.clients import CLIENTS, Message
from tests.integration.conftest import cluster_at, make_topic
from tests.integration.raw import RawClient, batch_of
from tests.integration.servers import server_of
from tests.integration.waiting import eventually, until

FOLDER = Path(__file__).parents[2] / "monitoring"
CONFLUENT = CLIENTS[0]


def get(port: int, page: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def scrape(port: int) -> dict[str, float]:
    """Name, with labels, to value."""
    status, text = get(port, "/metrics")
    assert status == 200
    return {name: float(value) for name, value in re.findall(r"^([^#\s][^ ]*(?:\{.*\})?) (\S+)$", text, re.M)}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of a broker that everything happened to, once."""
    port = free_port()
    with Broker({"moldau.metrics.port": port}) as broker:
        topic = make_topic(broker.bootstrap_servers, 2, name="told")
        CONFLUENT.produce(broker.bootstrap_servers, topic, [Message(b"v", partition=0) for _ in range(20)])
        CONFLUENT.read(broker.bootstrap_servers, topic, 0, count=20)
        with RawClient(broker.bootstrap_servers) as client:
            damaged = bytearray(batch_of(b"v"))
            damaged[-1] ^= 1
            client.produce(topic, bytes(damaged))
        yield port


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\b(?:moldau|process)_[a-z_]+\b", text))


@pytest.mark.parametrize("file", ["grafana-dashboard.json", "alerts.yml"])
def test_every_metric_of_the_dashboard_and_the_rules_exists(port: int, file: str) -> None:
    _, text = get(port, "/metrics")
    described = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    exported = described | names_in(re.sub(r"\{[^}]*\}", "", text))
    used = names_in((FOLDER / file).read_text())
    assert len(used) > 10
    assert used <= exported


def test_a_scrape_has_every_metric_of_the_table(port: int) -> None:
    _, text = get(port, "/metrics")
    described = dict(re.findall(r"^# TYPE (\S+) (\S+)", text, re.M))
    for metric in (*METRICS, *HISTOGRAMS):
        assert described.get(metric.name) == metric.kind, metric.name
    told = scrape(port)
    assert told['moldau_request_duration_seconds_count{api="Produce"}'] >= 1
    assert told['moldau_request_duration_seconds_bucket{api="Produce",le="+Inf"}'] >= 1
    assert told["moldau_active_controller"] == told["moldau_ready"] == told["moldau_live_brokers"] == 1
    assert told["moldau_under_replicated_partitions"] == told["moldau_offline_partitions"] == 0
    assert any(name.startswith("moldau_log_dir_free_bytes") and value > 0 for name, value in told.items())


def test_the_dashboard_can_be_imported() -> None:
    dashboard = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert all(target["expr"] for panel in panels for target in panel["targets"])
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_health_and_readiness_of_a_broker_that_serves(port: int) -> None:
    assert get(port, "/health") == (200, '{"status": "healthy", "reasons": []}\n')
    assert get(port, "/ready") == (200, '{"status": "ready", "reasons": []}\n')
    status, text = get(port, "/nothing")
    assert status == 404
    assert "/ready" in text


def test_a_port_that_is_taken_ends_the_start_with_a_sentence(port: int) -> None:
    with pytest.raises(ConfigError, match=r"moldau\.metrics\.port.*choose another port"):
        Broker({"moldau.metrics.port": port}).start()


def test_leaders_that_move_are_counted_and_logged(tmp_path: Path) -> None:
    config = {"moldau.metrics.port": free_port(2), "default.replication.factor": 2, "broker.session.timeout.ms": 3_000}
    with moldau.Cluster(2, config, data_dir=tmp_path) as cluster:
        ports = [int(broker.properties["moldau.metrics.port"]) for broker in cluster.brokers]
        with cluster_at(cluster.bootstrap_servers) as client:
            create_topic(client, "moves", partitions=4, replication_factor=2)

        def total(name: str) -> float:
            return sum(scrape(port)[name] for port, one in zip(ports, cluster.brokers, strict=True) if one.is_alive)

        eventually(lambda: total("moldau_leader_partitions") >= 4, "the partitions are led")
        assert total("moldau_active_controller") == 1
        assert total("moldau_live_brokers") == 4, "both know both"
        controller = next(index for index, port in enumerate(ports) if scrape(port)["moldau_active_controller"])
        other = cluster.brokers[1 - controller]
        other.kill()
        eventually(lambda: total("moldau_under_replicated_partitions") >= 4, "what it had is under-replicated")
        assert total("moldau_leader_elections_total") >= 2, "it led half of them"
        assert total("moldau_isr_shrinks_total") >= 4
        text = cluster.brokers[controller].log_path
        assert text is not None
        eventually(lambda: text.read_text().count("leader moved") >= 2, "each move is in the log")
        lines = text.read_text()
        assert lines.count("in-sync replicas changed") >= 4
        assert re.search(rf"leader moved.*moves-\d.*broker {other.node_id} is not alive", lines)


async def test_the_lag_of_a_group_is_known_to_a_coordinator_without_a_replica(tmp_path: Path) -> None:
    config = {"offsets.topic.num.partitions": 1, "offsets.topic.replication.factor": 1}
    servers = [server_of(tmp_path, node_id, config) for node_id in (1, 2)]
    try:
        for server in servers:
            await server.start()
        first, second = (server.node for server in servers)
        await first.groups.ready()
        await until(lambda: first.groups.leads("g") or second.groups.leads("g"), "a broker coordinates the group")
        coordinator, leader = (first, second) if first.groups.leads("g") else (second, first)
        await until(lambda: not coordinator.groups.is_loading, "its shard is loaded")
        await first.controller.change(
            lambda image: plan_create_topic(
                image,
                "t",
                topic_id=uuid.uuid4(),
                broker_config=first.local.config,
                assignments=[(0, (leader.node_id,))],
            )
        )
        for _ in range(10):
            leader.find_partition("t", None, 0).append(memoryview(bytearray(batch_of(b"v"))), leader.clock())
        request = Commit("g", "", None, -1, [Offset("t", 0, 3)])
        reply = coordinator.groups.ask("g", lambda shard, waiter, now_ms: commit(shard, waiter, request, now_ms))
        if inspect.isawaitable(reply):
            await reply
        lag = GroupLag(coordinator)
        await lag.measure()
        assert lag.series == [GroupTopicLag(7, "g", "t")]
    finally:
        for server in reversed(servers):
            await server.stop()


async def test_the_space_of_a_disk_is_measured_again_and_again(tmp_path: Path) -> None:
    server = server_of(tmp_path, 1, {})
    try:
        await server.start()
        (log_dir,) = server.node.logs.log_dirs
        log_dir.space = DiskSpace()
        await until(lambda: log_dir.space.total_bytes > 0, "the disk is measured")
    finally:
        await server.stop()


async def test_a_broker_that_waits_for_its_cluster_is_healthy_and_not_ready(tmp_path: Path) -> None:
    port = free_port()
    store = SharedStore(tmp_path / "metadata")
    store.open()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the controller: it takes connections and says nothing
        store.campaign(Candidate(9, "127.0.0.1", silent.getsockname()[1]), lambda _: None)
        server = server_of(tmp_path, 1, {"moldau.metrics.port": port})
        starting = asyncio.ensure_future(server.start())
        try:
            await asyncio.to_thread(eventually, lambda: _is_open(port), "the port is open before the broker is ready")
            assert (await asyncio.to_thread(get, port, "/health"))[0] == 200
            status, text = await asyncio.to_thread(get, port, "/ready")
            assert status == 503
            assert json.loads(text)["reasons"] == [
                "the logs are not loaded yet",
                "the broker is not registered with the controller yet",
            ]
            assert (await asyncio.to_thread(scrape, port))["moldau_ready"] == 0
        finally:
            server.give_up()
            await asyncio.gather(starting, return_exceptions=True)
            await server.stop()
            store.close()
    assert not await asyncio.to_thread(_is_open, port)


def _is_open(port: int) -> bool:
    try:
        return get(port, "/health")[0] == 200
    except OSError:
        return False
