"""A real standalone cluster, a master and two workers from the pyspark package: jobs on it, and a worker that dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.servers.server import free_port
from moldau.spark.startup.class_archive import spark_package
from moldau.spark.startup.java import find_java, home_for_scripts
from tests.integration.conftest import NewTopic
from tests.integration.spark.scripts import SCRIPT_TIMEOUT_S, next_line, start_script
from tests.integration.spark.topics import numbered, produce
from tests.integration.waiting import eventually

JOBS = """
import json, sys
import moldau.spark

master, bootstrap, topic, copy, checkpoint = sys.argv[1:]
spark = moldau.spark.session("cluster", master, config={
    "spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m", "spark.executor.cores": 1,
    "spark.sql.shuffle.partitions": 2,
})

def offsets(topic):
    frame = spark.read.format("moldau").options(**servers, subscribe=topic).load()
    return [int(row.value) for row in frame.selectExpr("cast(value as string) as value").collect()]

servers = {"kafka.bootstrap.servers": bootstrap}
read = offsets(topic)
query = (
    spark.readStream.format("moldau")
    .options(**servers, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=200).load()
    .select("value").writeStream.format("moldau")
    .options(**servers, topic=copy, checkpointLocation=checkpoint).trigger(availableNow=True).start()
)
while query.isActive and not query.awaitTermination(0.1):
    if query.lastProgress and query.lastProgress["batchId"] == 1:
        print("half way", flush=True)
        break
sys.stdin.readline()
query.awaitTermination()
executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
print(json.dumps([sorted(read), sorted(offsets(copy)), len(executors) - 1]))
"""


class Cluster(NamedTuple):
    master: str
    web: str
    workers: list[subprocess.Popen[bytes]]

    def workers_alive(self) -> int:
        try:
            with urllib.request.urlopen(f"{self.web}/json/", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (OSError, ValueError):  # a page for people comes before the one for machines
            return 0


def start(folder: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """One process of Spark's, as its scripts in sbin/ would start it."""
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("SPARK", "PYSPARK"))},
        "JAVA_HOME": str(home_for_scripts(find_java(), Path(tempfile.mkdtemp(dir=folder)))),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "SPARK_LOCAL_DIRS": str(folder),
        "PYSPARK_PYTHON": sys.executable,
    }
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [
                spark_package() / "bin" / "spark-class",
                f"org.apache.spark.deploy.{name.lower()}.{name}",
                *("--host", "127.0.0.1", *arguments),
            ],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    port, web_port = free_port(), free_port()
    master = f"spark://127.0.0.1:{port}"
    started = [start(tmp_path, "Master", "--port", str(port), "--webui-port", str(web_port))]
    try:
        for number in (1, 2):
            work = str(tmp_path / f"work-{number}")
            options = ("--webui-port", "0", "--cores", "1", "--memory", "600m", "--work-dir", work)
            started.append(start(tmp_path, "Worker", *options, master))
        cluster = Cluster(master, f"http://127.0.0.1:{web_port}", started[1:])
        eventually(lambda: cluster.workers_alive() == 2, "two workers", within_s=60)
        yield cluster
    finally:
        for process in reversed(started):
            process.kill()
            process.wait(10)


@pytest.mark.timeout(240)  # three JVMs and what they run, on a machine that may have two cores
def test_a_cluster_reads_and_writes_topics_though_a_worker_dies(
    cluster: Cluster, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, copy = new_topic(2), new_topic(2)
    produce(bootstrap, topic, numbered(0, 500) + numbered(500, 1000, partition=1))
    arguments = (cluster.master, bootstrap, topic, copy, str(tmp_path / "checkpoint"))
    with start_script(JOBS, tmp_path, *arguments) as process:
        assert next_line(process) == "half way"
        cluster.workers[0].kill()
        assert process.stdin is not None
        process.stdin.write("\n")
        output, complaints = process.communicate(timeout=SCRIPT_TIMEOUT_S)
    assert process.returncode == 0, complaints
    everything = list(range(1000))
    assert json.loads(output) == [everything, everything, 1]
