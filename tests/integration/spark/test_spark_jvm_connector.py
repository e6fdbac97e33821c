"""`connector=jvm`: Spark's own connector behind our options, and through it Spark's real-time mode on our broker."""

from __future__ import annotations

import json
import time
from pathlib import Path

import confluent_kafka
import pytest

from bench.jvm_connector import JARS, jar_paths
from tests.integration.clients import present
from tests.integration.conftest import NewTopic
from tests.integration.spark.scripts import next_line, run_script, start_script
from tests.integration.spark.topics import numbered, produce

pytestmark = [
    pytest.mark.apache,
    pytest.mark.skipif(not JARS.are_here, reason=f"no jars in {JARS.directory}; `make bench-quick` fetches them"),
]

RECORDS = 200

REAL_TIME = """
import sys
from moldau.spark import apply_options, session

bootstrap, topic, copy, folder, jars = sys.argv[1:]
spark = session(master="local[4]", short_job=True, config={"spark.jars": jars})
options = {"kafka.bootstrap.servers": bootstrap, "connector": "jvm"}
source = options | {"subscribe": topic, "startingOffsets": "earliest"}
print(apply_options(spark.read, source).load().count(), flush=True)
rows = apply_options(spark.readStream, source).load().select("key", "value")
sink = options | {"topic": copy, "processing.guarantee": "at_least_once", "checkpointLocation": folder}
query = apply_options(rows.writeStream, sink).outputMode("update").trigger(realTime="1 minute").start()
sys.stdin.readline()
query.stop()
"""

# Keys and values that are null or empty, headers, times; one topic for each codec.
BOTH_READ = """
import sys
from moldau.spark import session

bootstrap, jars, *topics = sys.argv[1:]
spark = session(master="local[2]", short_job=True, config={"spark.jars": jars})
rows = spark.range(1000).selectExpr(
    "if(id % 3 = 0, null, binary(string(id % 50))) AS key",
    "if(id % 7 = 0, null, repeat(string(id), int(id % 11))) AS value",
    "array(struct('a' AS key, binary('x') AS value), struct('a' AS key, binary(null) AS value)) AS headers",
    "timestamp_millis(1700000000000 + id) AS timestamp",
).selectExpr("key", "value", "if(key IS NULL, null, headers) AS headers", "timestamp")
kafka = {"kafka.bootstrap.servers": bootstrap}
for topic in topics:
    sink = kafka | {"topic": topic, "kafka.compression.type": topic.rsplit("-")[-1]}
    rows.write.format("moldau").mode("append").options(**sink).save()
source = kafka | {"subscribe": ",".join(topics), "includeHeaders": "true"}
ours = spark.read.format("moldau").options(**source).load()
theirs = spark.read.format("kafka").options(**source).option("kafka.isolation.level", "read_committed").load()
print(theirs.count(), theirs.exceptAll(ours).count(), ours.exceptAll(theirs).count())
"""


# Three runs of one query, from one checkpoint.
TAKING_TURNS = """
import json, sys
import confluent_kafka
from moldau.spark import session

bootstrap, jars, topic, checkpoint = sys.argv[1:]
spark = session(master="local[2]", short_job=True, config={"spark.jars": jars})
kafka = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
found = []
for turn, source in enumerate(("moldau", "kafka", "moldau")):
    for number in range(10 * turn, 10 * turn + 10):
        producer.produce(topic, b"%d" % number, partition=number % 2)
    producer.flush()
    rows = spark.readStream.format(source).options(**kafka).load().selectExpr("int(string(value)) AS number")
    keep = lambda frame, _: found.append(sorted(row.number for row in frame.collect()))
    query = rows.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query.start().awaitTermination()
print(json.dumps(found))
"""


def consume(bootstrap: str, topic: str, records: int, within_s: float = 60) -> set[bytes]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: set[bytes] = set()
    deadline = time.monotonic() + within_s
    try:
        while len(found) < records and time.monotonic() < deadline:
            found |= {present(message.value()) for message in consumer.consume(records, 0.2) if message.error() is None}
    finally:
        consumer.close()
    return found


def test_what_our_sink_wrote_is_the_same_to_sparks_own_connector(
    bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topics = [new_topic(3, name=f"both-read-{codec}") for codec in ("none", "gzip", "snappy", "lz4", "zstd")]
    output, _ = run_script(BOTH_READ, tmp_path, bootstrap, ",".join(jar_paths()), *topics)
    assert output.split() == ["5000", "0", "0"]


def test_either_connector_continues_from_the_others_checkpoint(
    bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    arguments = (bootstrap, ",".join(jar_paths()), new_topic(2), str(tmp_path / "checkpoint"))
    output, _ = run_script(TAKING_TURNS, tmp_path, *arguments)
    assert json.loads(output) == [list(range(start, start + 10)) for start in (0, 10, 20)]


def test_real_time_mode_runs_on_our_broker(bootstrap: str, new_topic: NewTopic, tmp_path: Path) -> None:
    """Its one batch lasts a minute, so what arrives sooner arrived in real time."""
    topic, copy = new_topic(2), new_topic(2)
    produce(bootstrap, topic, numbered(0, RECORDS))
    arguments = (bootstrap, topic, copy, str(tmp_path / "checkpoint"), ",".join(jar_paths()))
    with start_script(REAL_TIME, tmp_path, *arguments) as process:
        try:
            assert next_line(process) == str(RECORDS)
            assert consume(bootstrap, copy, RECORDS) == {b"%d" % number for number in range(RECORDS)}
            assert process.poll() is None
        finally:
            process.communicate("\n", timeout=60)
    assert process.returncode == 0
