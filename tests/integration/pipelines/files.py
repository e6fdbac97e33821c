"""Pipelines as files, run under supervision, and what they wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
from pyspark.sql import SparkSession

from moldau.pipelines.doors.yaml_file import load_pipeline
from moldau.pipelines.engine.supervisor import Listener, Supervisor
from tests.integration.spark.topics import produce
from tests.integration.waiting import eventually

RUN_S = 40


def send(bootstrap: str, topic: str, *rows: dict[str, Any]) -> None:
    produce(bootstrap, topic, [json.dumps(row).encode() for row in rows])


@contextmanager
def running(spark: SparkSession, files: Iterable[Path], listeners: Sequence[Listener] = ()) -> Iterator[Supervisor]:
    supervisor = Supervisor(spark, [load_pipeline(file) for file in files], listeners)
    supervisor.start()
    try:
        yield supervisor
    finally:
        supervisor.stop()
        assert supervisor.wait(RUN_S), "a query has not ended"


class Output:
    """The records of a topic, read as they come. It sees only what was committed."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": f"read-{topic}", "auto.offset.reset": "earliest"}
        )
        self._consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        self.rows: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        while (message := self._consumer.poll(0.05)) is not None:
            if not message.error():
                self.rows.append(json.loads(message.value() or b"null"))
        return self.rows

    def wait_for(self, *rows: dict[str, Any]) -> None:
        """Until exactly these rows were written, in any order."""
        expected = sorted(map(json.dumps, rows))
        eventually(lambda: len(self.read()) >= len(rows), f"{len(rows)} rows, not {self.rows}", RUN_S)
        assert sorted(map(json.dumps, self.rows)) == expected, self.rows

    def close(self) -> None:
        self._consumer.close()
