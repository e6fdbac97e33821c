"""The archive of Spark's classes with which its JVM starts in half the time: AppCDS, or an AOT cache from Java 25 on.

A JVM loads and verifies some 15,000 classes before Spark answers its first query. Java can write them to an archive
when it exits, and map it at the next start. `moldau spark-archive make` does that: it runs a few small queries in a
session of its own and waits until its JVM has written the file. Sessions use the archive of their Java and Spark if
there is one, and never make one.

An archive belongs to one Java and one set of jars, so both are part of its name. Java checks that it fits and starts
without it otherwise.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moldau.errors import ConfigError
from moldau.spark.startup.java import Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ARCHIVES_MAX = 2  # of about 160 MB each
_MAKING_TIMEOUT_S = 600  # it takes half a minute
_LAYOUT = 2  # of the class path: an archive made for another one would never be used
# Java reports problems with an archive on standard output, which belongs to the user.
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")

_log = logging.getLogger(__name__)


def spark_package() -> Path:
    """The folder of the pyspark package, which has Spark's jars. Importing pyspark would take much longer."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise ConfigError("PySpark is not installed: run pip install '.[spark]' in a checkout of Moldau")
    return Path(found.origin).parent


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "moldau"
    home = Path.home()
    return home / "Library" / "Caches" / "moldau" if sys.platform == "darwin" else home / ".cache" / "moldau"


def archive_path(java: Java) -> Path:
    jars = spark_package() / "jars"
    exactly = hashlib.sha256(f"{_LAYOUT}|{java.home}|{jars}|{jars.stat().st_mtime_ns}".encode()).hexdigest()[:8]
    return cache_folder() / f"spark-{version('pyspark')}-java-{java.version}-{exactly}.jsa"


def archive_options(java: Java) -> list[str]:
    """The flags that let a JVM use its archive, if there is one."""
    try:
        archive = archive_path(java)
        is_there = archive.exists()
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home directory
        _log.info("cannot look for an archive of Spark's classes, starting without one: %s", error)
        return []
    if not is_there:
        _log.info(
            "no archive of Spark's classes at %s: run 'moldau spark-archive make' once for a faster start", archive
        )
        return []
    _log.info("Spark's JVM uses the class archive %s", archive)
    return [*_QUIET, f"-XX:{'AOTCache' if java.feature_version >= 25 else 'SharedArchiveFile'}={archive}"]


def make_archive(java: Java) -> Path:
    """Make the archive of this Java and the installed Spark in a process of its own, and wait for it."""
    archive = archive_path(java)
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_name(f"{archive.name}.{os.getpid()}")
    environment = {**os.environ, "JAVA_HOME": str(java.home)}
    try:
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                _session_command(unfinished),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                timeout=_MAKING_TIMEOUT_S,
                check=False,
            )
            if done.returncode or not unfinished.exists():
                output.seek(0)
                said = output.read().decode(errors="replace").strip()
                raise ConfigError(f"Java {java.version} wrote no archive of Spark's classes: {said[-2000:]}")
        unfinished.replace(archive)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"no archive of Spark's classes within {_MAKING_TIMEOUT_S} seconds") from error
    finally:
        unfinished.unlink(missing_ok=True)
    newest_first = sorted(archives(), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in newest_first[ARCHIVES_MAX:]:
        old.unlink(missing_ok=True)
    return archive


def _session_command(path: Path) -> list[str]:
    return [sys.executable, "-m", __name__, str(path)]


def archives() -> list[Path]:
    """All of them, and what a process that was killed left unfinished."""
    return list(cache_folder().glob("spark-*.jsa*"))


def _run_session(path: str) -> None:
    from moldau.spark.startup.spark_session import get_or_create

    flag = "AOTCacheOutput" if find_java().feature_version >= 25 else "ArchiveClassesAtExit"
    options = {
        "spark.moldau.fastStart": "false",
        "spark.driver.extraJavaOptions": shlex.join([*_QUIET, f"-XX:{flag}={path}"]),
    }
    spark = get_or_create("moldau", "local[1]", config=options)
    jvm: subprocess.Popen[bytes] = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    try:
        _run_queries(spark)
        spark.stop()
    except BaseException:
        jvm.kill()  # or it would still write an archive
        raise
    assert jvm.stdin is not None
    jvm.stdin.close()  # which ends the JVM
    jvm.wait()


def _run_queries(spark: SparkSession) -> None:
    """What most programs use: a data source in Python, a shuffle, JSON, a stream with a window and its state."""
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):
        def read(self, partition: InputPartition) -> Iterator[Any]:
            yield pa.record_batch({"value": pa.array([b'{"a": 1}'] * 100, pa.binary())})

    class Rows(DataSource):
        def schema(self) -> str:
            return "value binary"

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    spark.dataSource.register(Rows)
    rows = spark.read.format("Rows").load()
    rows.selectExpr("from_json(cast(value as string), 'a long').a as a").groupBy("a").count().orderBy("a").toArrow()
    rows.where("length(value) > 5").limit(5).collect()
    spark.createDataFrame([(1, "a")], "id long, name string").count()
    ticks = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=10).load()
    windows = ticks.withWatermark("timestamp", "1 minute").selectExpr("window(timestamp, '1 second') as w")
    counts = windows.groupBy("w").count().writeStream.outputMode("update").foreachBatch(_count)
    with tempfile.TemporaryDirectory(prefix="moldau-checkpoint-") as folder:
        query = counts.option("checkpointLocation", folder).trigger(once=True).start()
        query.awaitTermination()


def _count(batch: DataFrame, _batch_id: int) -> None:
    batch.count()


if __name__ == "__main__":
    _run_session(sys.argv[1])
