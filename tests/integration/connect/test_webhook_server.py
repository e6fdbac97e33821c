"""The server of webhooks, over real sockets and without Spark's JVM: what it answers, and when."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from moldau.errors import MoldauError
from moldau.pipelines.connectors.readers import webhook_server
from moldau.pipelines.connectors.readers.request_journal import Journal, Request, read_requests
from moldau.pipelines.connectors.readers.webhook import WebhookSpec, WebhookStreamReader
from moldau.pipelines.connectors.readers.webhook_server import Limits, WebhookServer
from soak.broker_process import free_port
from tests.integration.waiting import eventually

LIMITS = Limits(timeout_s=30, body_bytes_max=100, waiting_max=2, connections_max=50, backlog_bytes_max=10**6)


@contextmanager
def served(folder: Path, limits: Limits = LIMITS, **more: str) -> Iterator[tuple[WebhookServer, httpx.Client]]:
    port = free_port()
    journal = Journal(str(folder))
    server = WebhookServer(("127.0.0.1", port), "/in", more.get("authorization"), limits, journal)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield server, client
    finally:
        server.stop()
        journal.close()


def test_a_request_is_answered_when_it_is_committed_and_not_before(tmp_path: Path) -> None:
    with served(tmp_path) as (server, client), ThreadPoolExecutor() as pool:
        first = pool.submit(client.post, "/in/a?b=c", content=b"one")
        end = server.wait_for_requests(0, 30)
        second = pool.submit(client.put, "/in", content=b"two")
        both = server.wait_for_requests(end, 30)
        assert [one.body for _, one in read_requests(str(tmp_path), 0, both)] == [b"one", b"two"]
        assert not first.done()
        server.committed(end)
        assert first.result(30).status_code == 200
        assert not second.done()
        server.committed(both)
        assert second.result(30).status_code == 200


def test_what_is_not_taken_is_told(tmp_path: Path) -> None:
    header = "Bearer abc"
    with served(tmp_path, authorization=hashlib.sha256(header.encode()).hexdigest()) as (server, client):
        assert client.post("/in", content=b"x").status_code == 401
        client.headers["Authorization"] = header
        assert client.post("/inside", content=b"x").status_code == 404
        assert client.get("/in").status_code == 405
        assert client.post("/in", content=b"x" * 101).status_code == 413
        assert client.post("/in", content=iter([b"x" * 60] * 2)).status_code == 413  # its length is not known before
        assert server.wait_for_requests(0, 0) == 0


def test_more_than_may_wait_is_answered_with_429(tmp_path: Path) -> None:
    with served(tmp_path) as (server, client), ThreadPoolExecutor() as pool:
        waiting = [pool.submit(client.post, "/in", content=b"x") for _ in range(2)]
        eventually(lambda: server._open_requests == 2, "two requests wait")
        refused = client.post("/in", content=b"x")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        eventually(lambda: len(list(read_requests(str(tmp_path), 0, server.wait_for_requests(0, 30)))) == 2, "on disk")
        server.committed(server.wait_for_requests(0, 30))
        assert {one.result(30).status_code for one in waiting} == {200}
    with served(tmp_path / "small", replace(LIMITS, backlog_bytes_max=1, timeout_s=0.1)) as (_, client):
        assert client.post("/in", content=b"x").status_code == 503  # not committed in time
        assert client.post("/in", content=b"x").status_code == 429


def test_requests_that_wait_when_it_stops_are_to_be_sent_again(tmp_path: Path) -> None:
    with served(tmp_path) as (server, client), ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.post, "/in", content=b"x")
        server.wait_for_requests(0, 30)
        server.stop()
        assert waiting.result(30).status_code == 503


def test_a_port_in_use_is_waited_for_and_then_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path) as (server, client):
        address = client.base_url.host, int(client.base_url.port or 0)
        opened: list[WebhookServer] = []
        journal = Journal(str(tmp_path / "other"))
        thread = threading.Thread(
            target=lambda: opened.append(WebhookServer(address, "/in", None, LIMITS, journal)), daemon=True
        )
        thread.start()
        server.stop()
        thread.join(30)
        monkeypatch.setattr(webhook_server, "_BIND_S", 0.0)
        with pytest.raises(MoldauError, match="the address is in use"):
            WebhookServer(address, "/in", None, LIMITS, journal)
        opened[0].stop()
        journal.close()


def spec(folder: Path, port: int, **more: str | None) -> WebhookSpec:
    fields: dict[str, str | None] = {"format": "text", "schema": None, **more}
    return WebhookSpec(
        host="127.0.0.1",
        port=port,
        path="/",
        journal=str(folder),
        authorization=None,
        timeout_ms=30_000,
        body_bytes_max=100,
        waiting_max=10,
        connections_max=10,
        backlog_bytes_max=10**6,
        errors={"errors.tolerance": "skip"},
        **fields,  # type: ignore[arg-type]
    )


def rows(reader: WebhookStreamReader, start: dict[str, int], end: dict[str, int]) -> list[dict[str, object]]:
    (part,) = reader.partitions(start, end)
    return [row for batch in reader.read(part) for row in batch.to_pylist()]


def test_the_question_for_what_comes_next_says_that_the_last_batch_is_committed(tmp_path: Path) -> None:
    port = free_port()
    reader = WebhookStreamReader(spec(tmp_path, port))
    with ThreadPoolExecutor() as pool, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        start = reader.initialOffset()
        post = pool.submit(client.post, "/a", content="é".encode(), headers={"X-A": "1", "Authorization": "secret"})
        end = start
        while end == start:
            end = reader.latestOffset(start, ReadAllAvailable())
        assert reader.initialOffset() == start  # Spark asks twice
        (row,) = rows(reader, start, end)
        assert (row["value"], row["path"]) == ("é", "/a")
        headers = dict(row["headers"])  # type: ignore[call-overload]
        assert headers["x-a"] == "1"
        assert "authorization" not in headers
        assert not post.done()
        reader.stop()  # killed before the batch was done: it is read again, and its sender was told to send it again
        assert post.result(30).status_code == 503
        again = WebhookStreamReader(spec(tmp_path, port))
        assert again.initialOffset() == start
        assert rows(again, start, end) == [row]
        next_end = again.latestOffset(end, ReadAllAvailable())  # it listens from now on
        assert next_end == end
        post = pool.submit(client.post, "/b", content=b"two")
        while next_end == end:
            next_end = again.latestOffset(end, ReadAllAvailable())
        assert [one["value"] for one in rows(again, end, next_end)] == ["two"]
        assert again.latestOffset(next_end, ReadAllAvailable()) == next_end
        assert post.result(30).status_code == 200
        again.commit(next_end)
        again.stop()


def test_bodies_are_fields_or_bytes(tmp_path: Path) -> None:
    bodies = [b'{"n": 1}', b"{", b'{"n": 2}']
    journal = Journal(str(tmp_path))
    journal.append([Request("/in", {"a": "b"} if body == b"{" else {}, 7, body).encoded() for body in bodies])
    end = {"position": journal.end}
    typed = WebhookStreamReader(spec(tmp_path, 1, format="json", schema="n INT"))
    assert [row["value"] for row in rows(typed, {"position": 0}, end)] == [{"n": 1}, {"n": 2}]
    plain = WebhookStreamReader(spec(tmp_path, 1, format="bytes"))
    found = rows(plain, {"position": 0}, end)
    assert [row["value"] for row in found] == bodies
    assert [row["headers"] for row in found] == [[], [("a", "b")], []]
