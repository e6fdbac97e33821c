"""Topics to objects and back, on an S3 server: each record exactly once, whatever is repeated or killed."""

from __future__ import annotations

import gzip
import io
import json
import random
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from moldau.errors import MoldauError
from moldau.pipelines.connectors.object_store.layout import HOURLY, Layout
from moldau.pipelines.connectors.object_store.stores import Store, put
from moldau.pipelines.doors.connect.door import to_pipeline
from moldau.pipelines.model.pipeline import Pipeline
from soak.broker_process import BrokerProcess
from tests.integration.conftest import NewTopic, make_topic
from tests.integration.connect.object_server import ACCESS_KEY, SECRET_KEY, ObjectServer, object_server
from tests.integration.pipelines.parts import copy, forget_commit, read_batch, run, start
from tests.integration.pipelines.processes import PipelineProcess, produce_json, read_topic
from tests.integration.waiting import eventually

SCHEMA = "n INT, word STRING, tags ARRAY<STRING>"


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    with object_server() as running:
        yield running


def rows_of(count: int, partition: int) -> list[dict[str, Any]]:
    return [
        {"n": 1_000 * partition + n, "word": None if n % 3 else f"č-{n}", "tags": ["x"] * (n % 3)} for n in range(count)
    ]


def decoded(name: str, content: bytes) -> list[dict[str, Any]]:
    if name.endswith(".parquet"):
        return list(pq.read_table(io.BytesIO(content)).to_pylist())
    if name.endswith(".avro"):
        return list(fastavro.reader(io.BytesIO(content)))  # type: ignore[arg-type]
    return [json.loads(line) for line in content.splitlines()]


def topic_copy(folder: Path, server: ObjectServer, topic: str, bootstrap: str, **sink: Any) -> Pipeline:
    source = {
        "connector": "topic",
        "topic": topic,
        "format": "json",
        "schema": SCHEMA,
        "metadata": "topic, partition, offset",
        "maxOffsetsPerTrigger": 500,
    }
    options = {"connector": "s3", **server.options, **{name.replace("_", " "): value for name, value in sink.items()}}
    return copy(folder, source, options, settings={"kafka.bootstrap.servers": bootstrap})


class Filled(NamedTuple):
    bootstrap: str
    topic: str  # with `rows_of(125, …)` in each of its two partitions


@pytest.fixture
def filled(bootstrap: str, new_topic: NewTopic) -> Filled:
    topic = new_topic(2)
    for partition in range(2):
        produce_json(bootstrap, topic, rows_of(125, partition), partition)
    return Filled(bootstrap, topic)


@pytest.mark.parametrize("format_name", ["json", "parquet", "avro"])
def test_each_record_is_once_in_objects_of_each_format_and_comes_back(
    spark: SparkSession, server: ObjectServer, filled: Filled, tmp_path: Path, format_name: str
) -> None:
    bootstrap, topic = filled
    pipeline = topic_copy(
        tmp_path, server, topic, bootstrap, url="s3://bucket/out", format=format_name, names="offsets", flush_rows=50
    )
    run(spark, pipeline)
    objects = server.objects(f"out/{topic}")
    extension = {"parquet": "snappy.parquet"}.get(format_name, format_name)
    assert list(objects) == [
        f"partition={partition}/{topic}+{partition}+{start:010d}.{extension}"
        for partition in range(2)
        for start in (0, 50, 100)
    ]
    rows = [row for name, content in objects.items() for row in decoded(name, content)]
    expected = [
        {**row, "topic": topic, "partition": partition, "offset": offset}
        for partition in range(2)
        for offset, row in enumerate(rows_of(125, partition))
    ]
    assert rows == expected

    forget_commit(tmp_path / "checkpoints/copy/out/commits", 0)
    run(spark, pipeline)
    assert server.objects(f"out/{topic}") == objects

    back = {"connector": "s3", **server.options, "url": f"s3://bucket/out/{topic}", "format": format_name}
    found = read_batch(spark, copy(tmp_path, back, {"connector": "console"})).orderBy("partition", "offset").collect()
    assert [row.asDict() for row in found] == expected


def test_a_source_reads_new_objects_once_over_restarts_and_repeated_batches(
    spark: SparkSession, server: ObjectServer, tmp_path: Path
) -> None:
    source = {"connector": "s3", **server.options, "url": "s3://bucket/in", "format": "json", "schema": "n INT"}
    pipeline = copy(tmp_path, source | {"maxFilesPerTrigger": 2}, {"connector": "lines", "path": "out.jsonl"})
    sent = 0
    for round_name in ("z", "m", "a"):  # names say nothing about what is new
        for each in range(3):
            server.write(f"in/{round_name}/{each}.json", f'{{"n": {sent}}}\n\n{{"n": {sent + 1}}}'.encode())
            sent += 2
        run(spark, pipeline)
        lines = (tmp_path / "out.jsonl").read_text().splitlines()
        assert sorted(json.loads(line)["n"] for line in lines) == list(range(sent))
    last = max(int(path.name) for path in (tmp_path / "checkpoints/copy/out/commits").iterdir() if path.name.isdigit())
    forget_commit(tmp_path / "checkpoints/copy/out/commits", last)
    run(spark, pipeline)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == sent


def test_text_and_bytes_without_offsets(spark: SparkSession, server: ObjectServer, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(f"line {n}\n" for n in range(100)))
    source = {"connector": "lines", "path": "in.txt"}
    sink = {"connector": "s3", **server.options, "url": "s3://bucket/text", "format": "text", "compression": "gzip"}
    pipeline = copy(tmp_path, source, sink | {"flush rows": 30, "partition time": "now"})
    run(spark, pipeline)
    objects = server.objects("text")
    forget_commit(tmp_path / "checkpoints/copy/out/commits", 0)
    run(spark, pipeline)
    assert list(server.objects("text")) == list(objects)
    offsets = (tmp_path / "checkpoints/copy/out/offsets/0").read_text().split("\n")[1]
    began = datetime.fromtimestamp(json.loads(offsets)["batchTimestampMs"] / 1000, UTC)
    assert {name.rpartition("/")[0] for name in objects} == {began.strftime("year=%Y/month=%m/day=%d/hour=%H")}
    assert [name.rpartition("+")[2] for name in objects] == [f"{start:010d}.txt.gz" for start in (0, 30, 60, 90)]
    assert gzip.decompress(next(iter(objects.values()))).count(b"line") == 30
    back = {"connector": "s3", **server.options, "url": "s3://bucket/text", "format": "bytes"}
    rows = read_batch(spark, copy(tmp_path, back, sink)).collect()
    assert sorted(bytes(row.value).decode() for row in rows) == sorted(f"line {n}" for n in range(100))


@pytest.mark.parametrize(
    ("layout", "folder"),
    [
        (Layout(True), "t/partition=7"),
        (Layout(True, partition_by=("country", "city")), "t/country=cz/city=a%2Fb"),
        (Layout(False, partition_by=("nothing",)), "nothing=__HIVE_DEFAULT_PARTITION__"),
        (Layout(True, time="at", path_format=HOURLY), "t/year=2026/month=03/day=29/hour=00"),
        (Layout(True, time="at", time_zone="Europe/Prague", path_format="YYYY-MM-dd/HH'h'mm"), "t/2026-03-29/01h45"),
        (Layout(False, time="ms + 3600000", time_zone="Europe/Prague", path_format="H-m-s"), "3-45-6"),
        (Layout(False, time="iso", path_format="yy/M/d/DDD"), "26/3/29/088"),
        (Layout(False, time="at", path_format="HHmmss", duration_ms=600_000), "004000"),
        (Layout(False, time="at", path_format="dd/HH", duration_ms=86_400_000), "29/00"),
    ],
)
def test_folders_are_made_of_columns_and_time(spark: SparkSession, layout: Layout, folder: str) -> None:
    rows = spark.sql(
        "SELECT 't' AS topic, 7 AS partition, 'cz' AS country, 'a/b' AS city, CAST(NULL AS INT) AS nothing, "
        "TIMESTAMP '2026-03-29 00:45:06Z' AS at, 1774745106000 AS ms, '2026-03-29T00:45:06Z' AS iso"
    )
    assert rows.select(layout.folder(rows, lambda: 0)).first()[0] == folder  # type: ignore[index]


def test_a_bucket_that_does_not_exist_is_said_before_anything_runs(
    spark: SparkSession, server: ObjectServer, tmp_path: Path
) -> None:
    sink = {"connector": "s3", **server.options, "url": "s3://elsewhere/out"}
    with pytest.raises(MoldauError, match="there is no bucket elsewhere: create it"):
        run(spark, copy(tmp_path, {"connector": "generator", "schema": "n INT", "rows": 1}, sink))


def connector_config(server: ObjectServer, topic: str, **more: str) -> dict[str, str]:
    return {
        "connector.class": "io.confluent.connect.s3.S3SinkConnector",
        "topics": topic,
        "s3.bucket.name": "bucket",
        "store.url": server.endpoint,
        "aws.access.key.id": ACCESS_KEY,
        "aws.secret.access.key": SECRET_KEY,
        "flush.size": "1000",
        "rotate.schedule.interval.ms": "300",
        "behavior.on.null.values": "ignore",
        "format.class": "io.confluent.connect.s3.format.json.JsonFormat",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
    } | more


def test_a_quiet_topic_of_a_connector_is_flushed_by_the_clock(
    spark: SparkSession, server: ObjectServer, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic()
    by_country = {
        "partitioner.class": "io.confluent.connect.storage.partitioner.FieldPartitioner",
        "partition.field.name": "country",
    }
    pipeline = to_pipeline(
        "archive",
        connector_config(server, topic, **by_country),
        {"bootstrap.servers": bootstrap},
        str(tmp_path / "checkpoints"),
    )
    query = start(spark, pipeline)
    try:
        produce_json(bootstrap, topic, [{"country": "cz", "n": 1}, {"country": "sk"}, {"country": "cz", "n": 3}])
        eventually(lambda: len(server.names(f"topics/{topic}")) == 2 or query.exception(), "records are flushed")
        assert server.objects(f"topics/{topic}") == {
            f"country=cz/{topic}+0+0000000000.json": b'{"country":"cz","n":1}\n{"country":"cz","n":3}\n',
            f"country=sk/{topic}+0+0000000001.json": b'{"country":"sk"}\n',
        }
    finally:
        query.stop()


def test_a_source_connector_restores_what_a_sink_connector_stored(
    spark: SparkSession, server: ObjectServer, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(2)
    server.write(f"backup/{topic}/partition=1/{topic}+1+0000000000.json", b'{"n":1}\n{"n":2,"word":"x"}\n')
    config = {
        "connector.class": "io.confluent.connect.s3.source.S3SourceConnector",
        "s3.bucket.name": "bucket",
        "topics.dir": "backup",
        "store.url": server.endpoint,
        "aws.access.key.id": ACCESS_KEY,
        "aws.secret.access.key": SECRET_KEY,
        "format.class": "io.confluent.connect.s3.format.json.JsonFormat",
        "s3.poll.interval.ms": "100",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
    }
    query = start(spark, to_pipeline("restore", config, {"bootstrap.servers": bootstrap}, str(tmp_path)))
    try:
        eventually(lambda: len(read_topic(bootstrap, topic)) == 2 or query.exception(), "records are restored")
        server.write(f"backup/{topic}/partition=0/{topic}+0+0000000007.json", b'{"n":0}\n')
        eventually(lambda: len(read_topic(bootstrap, topic)) == 3 or query.exception(), "new ones, too")
        assert [record.json for record in read_topic(bootstrap, topic)] == [{"n": 0}, {"n": 1}, {"n": 2, "word": "x"}]
    finally:
        query.stop()


KILLED = """
sources:
  records: {{connector: topic, topic: numbers, format: json, schema: n INT, metadata: "topic, partition, offset",
            maxOffsetsPerTrigger: 300}}
sinks:
  objects: {{connector: s3, url: s3://bucket/killed, store url: "{endpoint}", access key: "{key}",
            secret key: "{secret}", format: json, names: offsets, flush rows: 40}}
"""


@pytest.mark.timeout(600)
def test_every_record_is_in_one_object_over_kills_at_random_points(server: ObjectServer, tmp_path: Path) -> None:
    draw = random.Random(5)
    text = KILLED.format(endpoint=server.endpoint, key=ACCESS_KEY, secret=SECRET_KEY)
    (tmp_path / "killed.yaml").write_text(text)
    sent = 0

    def stored() -> list[int]:
        found = server.objects("killed").values()
        return [json.loads(line)["n"] for content in found for line in content.splitlines()]

    def has_more(than: int) -> bool:
        return len(server.names("killed")) > than

    with BrokerProcess(tmp_path / "broker", log_level="WARNING") as broker:
        make_topic(broker.bootstrap, 3, name="numbers")

        def send(count: int) -> None:
            nonlocal sent
            for partition in range(3):
                produce_json(broker.bootstrap, "numbers", ({"n": sent + n} for n in range(count)), partition)
                sent += count

        for _ in range(2):
            send(400)
            before = len(server.names("killed"))
            with PipelineProcess(tmp_path, "killed.yaml", "--bootstrap-server", broker.bootstrap) as run_:
                run_.until(partial(has_more, before), "objects are written")
                time.sleep(draw.uniform(0, 0.5))  # anywhere in a batch
                run_.kill()
        with PipelineProcess(
            tmp_path, "killed.yaml", "--bootstrap-server", broker.bootstrap, "--available-now"
        ) as run_:
            assert run_.wait() == 0, run_.output()
    assert sorted(stored()) == list(range(sent))


def test_a_large_object_goes_up_in_parts_and_is_whole(server: ObjectServer) -> None:
    store = Store("s3://bucket/large", None, server.endpoint, ACCESS_KEY, SECRET_KEY)
    content = random.Random(1).randbytes(25 * 1024 * 1024)
    with tempfile.TemporaryFile() as file:
        file.write(content)
        put(store, "one", file)
    assert server.objects("large") == {"one": content}
