"""Topics to HTTP servers that fail, to a search server, and webhooks to topics: with real Spark and real sockets."""

from __future__ import annotations

import itertools
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from moldau.pipelines.doors.connect.door import to_pipeline
from moldau.pipelines.engine.bad_records.narrowing import narrow
from moldau.pipelines.engine.queries import Settings, plan_queries
from moldau.pipelines.model.options import Given
from moldau.pipelines.model.pipeline import Pipeline
from soak.broker_process import free_port
from tests.integration.conftest import NewTopic
from tests.integration.connect.http_servers import Reply, SearchServer, serving
from tests.integration.pipelines.bad_records.letters import records
from tests.integration.pipelines.parts import copy, forget_commit, run, start
from tests.integration.pipelines.processes import PipelineProcess, produce_json, read_topic
from tests.integration.spark.topics import produce
from tests.integration.waiting import eventually

PAGES = {"connector": "topic", "format": "json", "schema": "n INT"}


def to_server(bootstrap: str, folder: Path, topic: str, url: str, **sink: Any) -> Pipeline:
    quick = {"retry backoff": "10 ms", "timeout": "1 second"}
    settings = {"kafka.bootstrap.servers": bootstrap, "dead letters": f"{topic}-letters"}
    return copy(
        folder, {**PAGES, "topic": topic}, {"connector": "http", "url": url, **quick, **sink}, settings=settings
    )


def test_rows_reach_a_server_that_fails_in_every_way_in_order(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic()
    produce_json(bootstrap, topic, ({"n": number} for number in range(40)))
    accepted: list[list[dict[str, int]]] = []
    never = threading.Event()
    troubles = {
        0: Reply(503, headers={"Retry-After": "0"}),
        2: Reply(429, headers={"Retry-After": "0"}),
        4: Reply(is_dropped=True),
        6: Reply(500),
        7: Reply(408),
        9: Reply(before=lambda: never.wait(10)),  # the client gives up
    }
    count = itertools.count()

    def answer(_: str, body: bytes) -> Reply:
        reply = troubles.get(next(count))
        if reply is None:
            accepted.append(json.loads(body))
        return reply or Reply(202)

    with serving(answer) as url:
        run(spark, to_server(bootstrap, tmp_path, topic, url, **{"batch rows": 4, "method": "POST"}))
        never.set()
    assert next(count) > max(troubles)
    assert [row["n"] for rows in accepted for row in rows] == list(range(40))


def test_a_row_that_the_server_refuses_becomes_a_dead_letter_and_the_others_arrive(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(2)
    for partition in (0, 1):
        produce_json(bootstrap, topic, ({"n": number} for number in range(partition, 20, 2)), partition)
    accepted: list[int] = []

    def answer(_: str, body: bytes) -> Reply:
        rows = json.loads(body)
        if any(row["n"] in (7, 12) for row in rows):
            return Reply(422, "n is out of\nbounds " + "x" * 500)
        accepted.extend(row["n"] for row in rows)
        return Reply()

    with serving(answer) as url:
        pipeline = to_server(bootstrap, tmp_path, topic, url, **{"batch rows": 3})
        with pytest.raises(
            StreamingQueryException, match=r"refused 2 rows of the batch: it answered 422: n is out of"
        ) as failed:
            run(spark, pipeline)
        assert "x" * 201 not in str(failed.value)
        (plan,) = plan_queries(pipeline)
        found = narrow(spark, plan, Settings.of(pipeline))
        assert {record.partition for record in found} == {0, 1}
        accepted.clear()
        run(spark, pipeline)
    assert sorted(accepted) == [number for number in range(20) if number not in (7, 12)]
    letters = records(bootstrap, f"{topic}-letters")
    assert sorted(json.loads(letter.value or b"")["n"] for letter in letters) == [7, 12]
    assert all("it answered 422: n is out of bounds" in letter.reason for letter in letters)


def connected(bootstrap: str, folder: Path, **keys: str) -> Pipeline:
    """As Connect's door makes it, for what is there now."""
    config = {key.replace("_", "."): text for key, text in keys.items()}
    worker = {
        "bootstrap.servers": bootstrap,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
    }
    pipeline = to_pipeline("connected", config, worker, str(folder / "checkpoints"), folder)
    return replace(pipeline, settings={**pipeline.settings, "trigger": Given("available now")})


def document(key: str, value: Any) -> dict[str, Any]:
    return {"key": key.encode(), "value": None if value is None else json.dumps(value).encode(), "partition": 0}


def test_documents_are_once_in_a_search_server_by_key_and_offset(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(name=f"Pages-{tmp_path.name}")
    updates = [document(f"k{number % 7}", {"n": number, "page": "/a"}) for number in range(50)]
    produce(bootstrap, topic, [*updates, document("k3", None), document("bad", {"n": None, "page": "/b"})])
    server = SearchServer(
        interfere={0: Reply(429), 1: Reply(is_dropped=True), 3: Reply(503, headers={"Retry-After": "0"})}.get,
        interfere_item=lambda number, key: 429 if number in (2, 4) and key in ("k1", "k3") else None,
        drop_after=lambda number: number == 5,
    )
    with serving(server) as url:
        pipeline = connected(
            bootstrap,
            tmp_path,
            connector_class="io.confluent.connect.elasticsearch.ElasticsearchSinkConnector",
            topics=topic,
            connection_url=url,
            batch_size="20",
            retry_backoff_ms="10",
            max_retries="10",
            behavior_on_null_values="DELETE",
            behavior_on_malformed_documents="warn",
        )
        run(spark, pipeline)
        assert server.requests > 6
        last = {f"k{number % 7}": number for number in range(50)}
        expected = {(topic.lower(), key): {"n": n, "page": "/a"} for key, n in last.items() if key != "k3"}
        assert server.documents == expected
        written = server.written
        forget_commit(tmp_path / "checkpoints/connected/sink/commits", 0)  # killed after the batch was written
        run(spark, pipeline)
    assert (server.documents, server.written) == (expected, written)


def test_aivens_http_sink_sends_values_as_they_are(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    produce_json(bootstrap, topic, ({"n": number} for number in range(5)))
    monkeypatch.setenv("HTTP_SINK_TOKEN", "Bearer abc")
    bodies: list[bytes] = []

    def answer(path: str, body: bytes) -> Reply:
        bodies.append(body)
        return Reply()

    with serving(answer) as url:
        keys = {
            "connector_class": "io.aiven.kafka.connect.http.HttpSinkConnector",
            "topics": topic,
            "http_url": url,
            "http_authorization_type": "static",
            "http_headers_authorization": "${env:HTTP_SINK_TOKEN}",
            "batching_enabled": "true",
            "batch_max_size": "3",
        }
        run(spark, connected(bootstrap, tmp_path, **keys))
    assert bodies == [b'{"n":0}\n{"n":1}\n{"n":2}\n', b'{"n":3}\n{"n":4}\n']


def webhooks(folder: Path, bootstrap: str, port: int, topic: str, **source: Any) -> Pipeline:
    return copy(
        folder,
        {"connector": "http", "listen": f"127.0.0.1:{port}", **source},
        {"connector": "topic", "topic": topic},
        settings={"trigger": "0 seconds", "kafka.bootstrap.servers": bootstrap, "dead letters": f"{topic}-letters"},
    )


def is_listening(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/").status_code > 0
    except httpx.TransportError:
        return False


def test_a_webhook_is_a_row_when_it_is_answered_also_after_a_restart_on_the_same_port(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, port = new_topic(), free_port()
    pipeline = webhooks(
        tmp_path, bootstrap, port, topic, format="json", schema="n INT", metadata="path, headers", token="abc"
    )
    headers = {"Authorization": "Bearer abc", "X-From": "test"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
        for run_number in range(2):
            query = start(spark, pipeline)
            try:
                eventually(lambda: is_listening(port), "the source listens")
                assert client.post("/", json={"n": 1}, headers={"Authorization": "Bearer abd"}).status_code == 401
                assert client.post("/a/b", json={"n": run_number}).status_code == 200
                assert len(read_topic(bootstrap, topic)) == run_number + 1  # at once, although nothing more comes
                assert client.post("/", content=b"{").status_code == 200
            finally:
                query.stop()
    rows = [record.json for record in read_topic(bootstrap, topic)]
    assert [(row["n"], row["path"], row["headers"]["x-from"]) for row in rows] == [
        (0, "/a/b", "test"),
        (1, "/a/b", "test"),
    ]
    assert all("authorization" not in row["headers"] for row in rows)
    assert [record.value for record in records(bootstrap, f"{topic}-letters")] == [b"{", b"{"]


@pytest.mark.timeout(400)
def test_every_webhook_that_was_answered_is_in_the_topic_after_a_kill(
    bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, port = new_topic(), free_port()
    (tmp_path / "hooks.yaml").write_text(
        f"sources:\n  hooks: {{connector: http, listen: '127.0.0.1:{port}'}}\n"
        f"sinks:\n  out: {{connector: topic, topic: {topic}}}\n"
    )
    answered: set[str] = set()
    is_over = threading.Event()

    def post(sender: int) -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            for number in itertools.count():
                body = f"{sender}-{number}"
                while not is_over.is_set():
                    try:
                        if client.post("/", content=body).status_code == 200:
                            answered.add(body)
                            break
                    except httpx.TransportError:
                        is_over.wait(0.05)
                if is_over.is_set():
                    return

    senders = [threading.Thread(target=post, args=(sender,)) for sender in range(4)]
    with PipelineProcess(tmp_path, "hooks.yaml", "--bootstrap-server", bootstrap) as process:
        for sender in senders:
            sender.start()
        try:
            process.until(lambda: len(answered) > 20, "requests are answered")
            process.kill()
            before = len(answered)
            process.start()
            process.until(lambda: len(answered) > before + 20, "requests are answered after the kill")
        finally:
            is_over.set()
            for sender in senders:
                sender.join()
    values = [record.json["value"] for record in read_topic(bootstrap, topic)]
    assert answered <= set(values)
    assert len(values) - len(set(values)) <= len(senders)  # what was not answered when it was killed was sent again
