"""A pipeline that is changed from run to run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from moldau.errors import ConfigError
from moldau.pipelines.doors.yaml_file import load_pipeline
from tests.integration.conftest import NewTopic
from tests.integration.pipelines.files import send
from tests.integration.pipelines.parts import run

SOURCE = "  {name}: {{connector: topic, topic: {topic}, format: json, schema: '{schema}', watermark: {watermark}}}"
SCHEMA = "page STRING, at TIMESTAMP, k INT, user STRING, since TIMESTAMP"
UNION = "SELECT page FROM a UNION ALL SELECT page FROM b"
WINDOWS = "SELECT page, count(*) AS n FROM a GROUP BY window(at, '1 minute'), page"
JOIN = "SELECT a.page, b.k FROM a JOIN b ON a.page = b.page AND a.at = b.at"


class Changing:
    """A pipeline file that is rewritten and run until there is nothing left to read."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path, new_topic: NewTopic) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.file = folder / "changing.yaml"
        self.topics = {name: new_topic() for name in ("a", "b", "c", "out", "other")}

    def write(
        self,
        sql: str,
        sources: str = "a b",
        *,
        mode: str = "append",
        sink: str = "out",
        watermark: str = "at 1 minute",
        partitions: int = 1,
    ) -> None:
        """`sources` are names; `b=c` is the source b with the topic of c."""
        pairs = [(name, topic or name) for name, _, topic in (each.partition("=") for each in sources.split())]
        lines = [
            SOURCE.format(name=name, topic=self.topics[topic], schema=SCHEMA, watermark=watermark)
            for name, topic in pairs
        ]
        self.file.write_text(
            "\n".join(["sources:", *lines, "steps:", f'  s: {{sql: "{sql}"}}', "sinks:"])
            + f"\n  sink: {{connector: topic, topic: {self.topics[sink]}, mode: {mode}}}\n"
            + f"settings: {{trigger: available now, kafka.bootstrap.servers: '{self.bootstrap}',"
            + f" spark: {{spark.sql.shuffle.partitions: {partitions}}}}}\n"
        )

    def run(self, sql: str, sources: str = "a b", **more: object) -> None:
        self.write(sql, sources, **more)  # type: ignore[arg-type]
        query = run(self.spark, load_pipeline(self.file))
        assert query.exception() is None

    def refuses(self, sql: str, sources: str, words: str) -> None:
        self.write(sql, sources)
        with pytest.raises(
            ConfigError, match=f"does not fit the pipeline any more: .*({words}).*--to (committed|earliest)"
        ):
            run(self.spark, load_pipeline(self.file))

    def start_over(self) -> None:
        shutil.rmtree(self.file.parent / "checkpoints")

    def send(self, page: str, minute: int, *topics: str) -> None:
        for topic in topics:
            send(self.bootstrap, self.topics[topic], {"page": page, "at": f"2026-01-01T00:{minute:02}:00Z", "k": 1})
