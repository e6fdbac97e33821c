"""What references of a connector stand for is in no checkpoint, log line, message or object."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from moldau.pipelines.doors.connect.door import to_pipeline
from moldau.pipelines.engine.supervisor import Supervisor
from tests.integration.conftest import NewTopic
from tests.integration.connect.object_server import object_server
from tests.integration.pipelines.processes import produce_json
from tests.integration.waiting import eventually

SECRETS = {"S3_KEY": "key-nobody-may-know", "S3_SECRET": "secret-nobody-may-know"}
STOP_S = 60


def test_keys_of_an_object_store_are_nowhere(
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    topic, told = new_topic(), list[str]()
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: told.append(handler.format(record)))
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [*root.handlers, handler])
    with object_server() as server:
        config = {
            "connector.class": "S3Sink",
            "topics": topic,
            "s3.bucket.name": "bucket",
            "store.url": server.endpoint,
            "aws.access.key.id": "${env:S3_KEY}",
            "aws.secret.access.key": "${env:S3_SECRET}",
            "flush.size": "1",
            "format.class": "io.confluent.connect.s3.format.json.JsonFormat",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
        }
        pipeline = to_pipeline("archive", config, {"bootstrap.servers": bootstrap}, str(tmp_path / "checkpoints"))
        told.append(repr(pipeline))
        supervisor = Supervisor(spark, [pipeline])
        supervisor.start()
        try:
            produce_json(bootstrap, topic, [{"n": 1}])
            eventually(lambda: server.names(f"topics/{topic}"), "the record is stored")
            told += [content.decode(errors="replace") for content in server.objects("").values()]
            produce_json(bootstrap, topic, [{"n": 2}])
        finally:
            supervisor.stop()
            assert supervisor.wait(STOP_S), "a query has not ended"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "metadata" for path in files)
    told += [path.read_text(errors="replace") for path in files]
    assert [text for text in told for value in SECRETS.values() if value in text] == []
