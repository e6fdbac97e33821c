"""The HTTP port for metrics: what a client can ask of it, and what it cannot take from the broker."""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress

import pytest
from prometheus_client import Metric as Family

from moldau.broker.monitoring import metrics_endpoint
from moldau.broker.monitoring.metrics_endpoint import OPENMETRICS, PLAIN_TEXT, Monitor, serve_metrics
from soak.broker_process import free_port
from tests.unit.broker.offline import DEADLINE_S, OfflineBroker, until

AT_ONCE_S = 5.0
"""Less than a silent client is given."""


@pytest.fixture
async def port(offline_broker: OfflineBroker) -> AsyncIterator[int]:
    port = free_port()
    stop = serve_metrics(offline_broker.node, "127.0.0.1", port)
    yield port
    await asyncio.to_thread(stop)
    await until(lambda: not handlers())


def handlers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]


def get(port: int, page: str = "/metrics", accept: str = "*/*") -> tuple[int, str, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)) as connection:
        connection.request("GET", page, headers={"Accept": accept})
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=AT_ONCE_S)


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", PLAIN_TEXT),
        ("text/plain;version=abc", PLAIN_TEXT),
        ("text/plain;version=1.0.0;escaping=dots", PLAIN_TEXT),
        ("*/*;q=,;;=,", PLAIN_TEXT),
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;q=0.1", OPENMETRICS),
        ("application/openmetrics-text; version=x.y.z", OPENMETRICS),
    ],
)
async def test_any_accept_header_gets_metrics(port: int, accept: str, content_type: str) -> None:
    status, told, body = await asyncio.to_thread(get, port, accept=accept)
    assert (status, told) == (200, content_type)
    assert b"\nmoldau_ready 1.0\n" in body
    assert body.endswith(b"# EOF\n") == (content_type == OPENMETRICS)


async def test_a_request_that_drips_is_cut_off(
    port: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metrics_endpoint, "REQUEST_S", 0.1)

    def drip() -> bool:
        """Whether the connection ends, though there is another byte of the request every 10 ms."""
        with connect(port) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: ")
            client.settimeout(0.01)
            ends_s = time.monotonic() + AT_ONCE_S
            while time.monotonic() < ends_s:
                try:
                    client.sendall(b"x")
                    if not client.recv(1):
                        return True
                except TimeoutError:
                    continue
                except OSError:
                    return True
            return False

    assert await asyncio.to_thread(drip)
    await until(lambda: not handlers())
    assert "Traceback" not in capfd.readouterr().err


async def test_a_request_that_is_complete_may_take_longer_to_answer(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is the client's, not that of a scrape of many partitions."""
    monkeypatch.setattr(metrics_endpoint, "REQUEST_S", 0.1)
    may_go = threading.Event()
    collect = Monitor.collect

    def slow(monitor: Monitor) -> Iterator[Family]:
        may_go.wait(DEADLINE_S)
        yield from collect(monitor)

    monkeypatch.setattr(Monitor, "collect", slow)
    asking = asyncio.create_task(asyncio.to_thread(get, port))
    await until(handlers)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(asking), 0.5)
    may_go.set()
    assert (await asking)[0] == 200


async def test_connections_over_the_limit_are_closed_at_once(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_endpoint, "CONNECTIONS_MAX", 2)
    held = [connect(port) for _ in range(2)]
    await until(lambda: len(handlers()) == 2)
    with connect(port) as one_more:
        assert await asyncio.to_thread(one_more.recv, 1) == b""
    assert len(handlers()) == 2
    for client in held:
        client.close()
    await until(lambda: not handlers())
    assert (await asyncio.to_thread(get, port, "/health"))[0] == 200


async def test_a_stop_ends_connections_that_are_open(offline_broker: OfflineBroker) -> None:
    port = free_port()
    stop = serve_metrics(offline_broker.node, "127.0.0.1", port)
    with connect(port) as client:
        await until(handlers)
        await asyncio.to_thread(stop)
        with suppress(ConnectionError):
            assert await asyncio.to_thread(client.recv, 1) == b""


async def test_those_who_ask_at_once_share_one_scrape(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_endpoint, "SHARED_S", 60.0)
    may_go = threading.Event()
    scrapes: list[Monitor] = []
    collect = Monitor.collect

    def counted(monitor: Monitor) -> Iterator[Family]:
        scrapes.append(monitor)
        may_go.wait(DEADLINE_S)
        yield from collect(monitor)

    monkeypatch.setattr(Monitor, "collect", counted)
    asking = [asyncio.create_task(asyncio.to_thread(get, port)) for _ in range(5)]
    await until(lambda: len(handlers()) == 5)
    may_go.set()
    assert len({body for _, _, body in await asyncio.gather(*asking)}) == 1
    assert len(scrapes) == 1, "those who asked meanwhile"
    await asyncio.to_thread(get, port)
    assert len(scrapes) == 1, "those who ask shortly after"
    monkeypatch.setattr(metrics_endpoint, "SHARED_S", 0.0)
    await asyncio.to_thread(get, port)
    assert len(scrapes) == 2


async def test_a_disk_that_hangs_is_seen_and_holds_up_no_scrape(
    offline_broker: OfflineBroker, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = offline_broker.node
    (log_dir,) = node.logs.log_dirs
    answers = threading.Event()

    def hang(path: str) -> os.statvfs_result:
        answers.wait(AT_ONCE_S)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "statvfs", hang)
    measuring = node.threads.disk(log_dir.path)(log_dir.measure)
    await until(lambda: node.threads.disk(log_dir.path).busy_s > 0)
    _, _, body = await asyncio.to_thread(get, port)
    told = dict(line.split(" ") for line in body.decode().splitlines() if line.startswith("moldau_log_dir"))
    assert not measuring.done()
    label = f'{{directory="{log_dir.path}"}}'
    assert float(told[f"moldau_log_dir_free_bytes{label}"]) == log_dir.space.usable_bytes > 0, "as last known"
    assert float(told[f"moldau_log_dir_waiting_seconds{label}"]) > 0
    answers.set()
    await measuring
    assert "Input/output error" in log_dir.space.error
