"""Many connections, too many, idle ones, slow ones, and clients that ask but do not listen."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import moldau.broker.network.client_connection
import moldau.broker.server
from moldau import Broker
from moldau.client.admin import Resource, alter_configs
from moldau.errors import ErrorCode
from moldau.wire.constants import ResourceType
from moldau.wire.messages import encode_request
from soak.broker_process import BrokerProcess
from tests.integration.conftest import cluster_at, make_topic
from tests.integration.raw import (
    RawClient,
    api_versions_request,
    batch_of,
    fetch_request,
    produce_request,
    records_in,
)
from tests.integration.waiting import eventually


def is_served(client: RawClient) -> bool:
    try:
        return bool(client.ask(api_versions_request()).error_code == ErrorCode.NONE)
    except (ConnectionError, BrokenPipeError):
        return False


def test_five_hundred_idle_and_twenty_busy_connections_are_served(tmp_path: Path) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 700:
        pytest.skip(f"only {soft} open files are allowed here")
    with BrokerProcess(tmp_path, log_level="WARNING") as broker:
        topic = make_topic(broker.bootstrap, 20)
        before_bytes = broker.rss_bytes()
        idle = [RawClient(broker.bootstrap) for _ in range(500)]
        assert all(is_served(client) for client in idle)
        assert broker.rss_bytes() - before_bytes < 500 * 64 * 1024, "an idle connection costs little"

        def work(partition: int) -> int:
            with RawClient(broker.bootstrap) as client:
                for number in range(100):
                    assert client.produce(topic, batch_of(b"%d" % number), partition).base_offset == number
                found = records_in(bytes(client.fetch(topic, 0, partition).records))
            assert [record.value for record in found] == [b"%d" % number for number in range(100)]
            return len(found)

        with ThreadPoolExecutor(20) as threads:
            assert sum(threads.map(work, range(20))) == 2000
        assert all(is_served(client) for client in idle)
        assert broker.metrics()["moldau_connections"] >= 500
        for client in idle:
            client.socket.close()
        eventually(lambda: broker.metrics()["moldau_connections"] < 10, "closed connections are forgotten")


def test_connections_over_the_limit_are_closed_and_a_free_place_is_given(tmp_path: Path) -> None:
    with Broker({"max.connections": 10}, data_dir=tmp_path) as broker:
        clients = [RawClient(broker.bootstrap_servers) for _ in range(10)]
        assert all(is_served(client) for client in clients)
        for _ in range(3):
            with RawClient(broker.bootstrap_servers) as refused:
                assert refused.is_closed()
        assert all(is_served(client) for client in clients), "those inside are not disturbed"
        clients.pop().socket.close()

        def is_let_in() -> bool:
            with RawClient(broker.bootstrap_servers) as client:
                return is_served(client)

        eventually(is_let_in, "the free place is given")
        for client in clients:
            client.socket.close()


def test_connections_are_limited_per_address(tmp_path: Path) -> None:
    with Broker({"max.connections.per.ip": 5}, data_dir=tmp_path) as broker:
        clients = [RawClient(broker.bootstrap_servers) for _ in range(5)]
        assert all(is_served(client) for client in clients)
        with RawClient(broker.bootstrap_servers) as refused:
            assert refused.is_closed()
        with socket.socket() as elsewhere:
            try:
                elsewhere.bind(("127.0.0.2", 0))
            except OSError:
                pytest.skip("127.0.0.2 is no address of this machine")
            elsewhere.settimeout(10)
            elsewhere.connect(("127.0.0.1", broker.port))
            elsewhere.sendall(encode_request(1, None, api_versions_request()))
            assert elsewhere.recv(4), "another address has places of its own"
        for client in clients:
            client.socket.close()


def test_one_address_can_have_a_limit_of_its_own(tmp_path: Path) -> None:
    config = {"max.connections.per.ip": 1, "max.connections.per.ip.overrides": "127.0.0.1:3"}
    with Broker(config, data_dir=tmp_path) as broker:
        clients = [RawClient(broker.bootstrap_servers) for _ in range(3)]
        assert all(is_served(client) for client in clients)
        with RawClient(broker.bootstrap_servers) as refused:
            assert refused.is_closed()
        for client in clients:
            client.socket.close()


def test_a_limit_changed_at_run_time_holds_for_the_next_connection(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        with cluster_at(broker.bootstrap_servers) as cluster:
            alter_configs(cluster, Resource(ResourceType.BROKER, "1"), set_values={"max.connections": "4"})
            # The administrator has two connections of its own.
            clients = [RawClient(broker.bootstrap_servers) for _ in range(2)]
            assert all(is_served(client) for client in clients)
            with RawClient(broker.bootstrap_servers) as refused:
                assert refused.is_closed()
        for client in clients:
            client.socket.close()


def test_no_limit_on_requests_in_memory_is_no_limit(tmp_path: Path) -> None:
    with Broker({"queued.max.request.bytes": -1}, data_dir=tmp_path) as broker:
        topic = make_topic(broker.bootstrap_servers, configs={"max.message.bytes": 4_000_000})
        request = encode_request(1, None, produce_request(topic, batch_of(bytes(3_000_000))))
        with RawClient(broker.bootstrap_servers) as slow, RawClient(broker.bootstrap_servers) as quick:
            slow.send_bytes(request[:2_000_000])
            assert quick.produce(topic, batch_of(bytes(3_000_000))).error_code == ErrorCode.NONE
            slow.send_bytes(request[2_000_000:])
            assert slow.receive_frame() is not None


# -- slow and idle ones, with the half minute of grace made short


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Broker]:
    monkeypatch.setattr(moldau.broker.network.client_connection, "FRAME_GRACE_S", 0.4)
    monkeypatch.setattr(moldau.broker.server, "SWEEP_INTERVAL_S", 0.05)
    with Broker({"connections.max.idle.ms": 2000}, data_dir=tmp_path) as broker:
        yield broker


def test_a_negative_idle_time_means_never(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(moldau.broker.server, "SWEEP_INTERVAL_S", 0.02)
    with (
        Broker({"connections.max.idle.ms": -1}, data_dir=tmp_path) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        assert is_served(client)
        assert not client.has_answer(within_s=0.5), "closed, or it speaks unasked"
        assert is_served(client)


def test_a_client_that_says_nothing_is_closed(strict: Broker) -> None:
    with RawClient(strict.bootstrap_servers) as client:
        assert client.is_closed()


def test_a_slowloris_is_closed_and_a_good_client_is_not(strict: Broker) -> None:
    with RawClient(strict.bootstrap_servers) as good, RawClient(strict.bootstrap_servers) as slow:
        assert is_served(good)
        assert is_served(slow)
        request = encode_request(1, "slow", produce_request("t", batch_of(bytes(10_000))))
        for byte in request:  # one every 30 ms would take five minutes
            slow.send_bytes(bytes([byte]))
            assert is_served(good)
            if slow.has_answer(within_s=0.03):
                break
        assert slow.receive_frame() is None
        assert is_served(good)


def test_an_idle_client_is_closed_after_its_time_and_a_waiting_one_is_not(strict: Broker) -> None:
    topic = make_topic(strict.bootstrap_servers)
    with RawClient(strict.bootstrap_servers) as idle, RawClient(strict.bootstrap_servers) as waiting:
        assert is_served(idle)
        request = fetch_request([(topic, 0, 0)], max_wait_ms=4000)
        waiting.send(request)
        assert idle.is_closed()
        assert waiting.receive(request)[1].error_code == ErrorCode.NONE


# -- clients that do not listen


@pytest.mark.parametrize("flush_messages", [1, 2**63 - 1], ids=["behind-fsyncs", "at-once"])
def test_a_client_that_does_not_read_does_not_grow_the_broker(tmp_path: Path, flush_messages: int) -> None:
    with BrokerProcess(tmp_path, log_level="WARNING") as broker:
        topic = make_topic(broker.bootstrap)
        flushed = make_topic(broker.bootstrap, configs={"flush.messages": flush_messages})
        with RawClient(broker.bootstrap) as writer:
            for _ in range(10):
                writer.produce(topic, batch_of(bytes(100_000)))
            before_bytes = broker.rss_bytes()
            deaf = RawClient(broker.bootstrap, receive_buffer_bytes=4096)
            # 200 MB of answers, every tenth of them an answer that may have to wait for the disk.
            write, read = produce_request(flushed, batch_of(b"v")), fetch_request([(topic, 0, 0)])
            asked = [write if number % 10 == 0 else read for number in range(220)]
            deaf.send_bytes(b"".join(encode_request(number, "deaf", one) for number, one in enumerate(asked)))
            for _ in range(200):
                assert writer.fetch(topic, 9).high_watermark == 10
            assert broker.rss_bytes() - before_bytes < 32 << 20
            for number, request in enumerate(asked):
                correlation_id, answer = deaf.receive(request)
                assert correlation_id == number
                if request is read:
                    assert len(records_in(bytes(answer.responses[0].partitions[0].records))) == 10
            deaf.socket.close()


def test_a_client_that_only_sends_does_not_grow_the_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, log_level="WARNING") as broker:
        with RawClient(broker.bootstrap) as client:
            assert is_served(client)
        before_bytes = broker.rss_bytes()
        deaf = RawClient(broker.bootstrap, receive_buffer_bytes=4096)
        deaf.socket.settimeout(0.5)
        requests = b"".join(encode_request(number, "deaf", api_versions_request()) for number in range(5000))
        with pytest.raises(TimeoutError):  # the broker stops reading, so at last sending stops, too
            deaf.send_bytes(requests * 1000)
        assert broker.rss_bytes() - before_bytes < 32 << 20
        with RawClient(broker.bootstrap) as client:
            assert is_served(client)
        deaf.socket.close()
