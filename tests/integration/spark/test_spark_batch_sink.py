"""`batch_sink` and versioned writes: every batch once, and an error wherever rows could be lost or doubled."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import moldau.spark
from moldau.client.groups import delete_groups, list_groups
from tests.integration.conftest import NewTopic, cluster_at
from tests.integration.spark.sinks import options, values

STREAM_S = 60
ROWS = 10  # of a batch


class Query:
    """A batch for each file, into whatever `foreachBatch` is given."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._files = folder / "files"
        self._files.mkdir()
        self._began_s = int(time.time())
        self.checkpoint = folder / "checkpoint"

    def add(self, batch: int) -> None:
        lines = "\n".join(str(batch * ROWS + row) for row in range(ROWS))
        file = self._files / f"{batch}.txt"
        file.write_text(lines)
        # Spark takes files by their time, and two of the same millisecond in any order.
        os.utime(file, (self._began_s + batch, self._began_s + batch))

    def run(self, into: Callable[[DataFrame, int], None]) -> None:
        source = self._spark.readStream.option("maxFilesPerTrigger", 1).text(str(self._files))
        writer = source.writeStream.foreachBatch(into).option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(STREAM_S)
        finally:
            query.stop()

    def forget_last_commit(self) -> None:
        """As after a kill between the end of the batch and Spark's note of it."""
        commits = self.checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        for path in commits.glob(f"*{last}*"):
            path.unlink()


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Query:
    found = Query(spark, tmp_path)
    for batch in range(2):
        found.add(batch)
    return found


def sink(bootstrap: str, topic: str, **given: object) -> Callable[[DataFrame, int], None]:
    return moldau.spark.batch_sink(**options(bootstrap, topic, given))


def both(*sinks: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    def write(rows: DataFrame, batch_id: int) -> None:
        for one in sinks:
            one(rows, batch_id)

    return write


def test_two_sinks_in_one_batch_write_to_both_topics_however_often_it_is_repeated(
    query: Query, bootstrap: str, new_topic: NewTopic
) -> None:
    topics = [new_topic(2), new_topic(2)]
    into = both(*(sink(bootstrap, topic) for topic in topics))
    query.run(into)
    query.forget_last_commit()
    query.run(into)
    for topic in topics:
        assert values(bootstrap, topic) == list(range(2 * ROWS))


def test_two_sinks_on_one_topic_need_a_txn_app_id_each(query: Query, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    with pytest.raises(StreamingQueryException, match="a txnAppId of its own"):
        query.run(both(sink(bootstrap, topic), sink(bootstrap, topic)))
    assert values(bootstrap, topic) == list(range(ROWS))
    query.run(both(sink(bootstrap, topic), sink(bootstrap, topic, txnAppId="second", failOnDoubt=False)))
    assert values(bootstrap, topic) == sorted(2 * list(range(2 * ROWS)))


def test_a_fixed_txn_app_id_loses_nothing_with_a_new_checkpoint_and_refuses_a_restored_one(
    query: Query, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(2)
    into = sink(bootstrap, topic, txnAppId="fixed")
    query.run(into)
    shutil.copytree(query.checkpoint, tmp_path / "copy")
    for batch in (2, 3):
        query.add(batch)
    query.run(into)
    assert values(bootstrap, topic) == list(range(4 * ROWS))

    shutil.rmtree(query.checkpoint)
    shutil.copytree(tmp_path / "copy", query.checkpoint)
    with pytest.raises(StreamingQueryException, match="the checkpoint is older than the topic"):
        query.run(into)
    assert values(bootstrap, topic) == list(range(4 * ROWS))

    shutil.rmtree(query.checkpoint)
    query.run(into)  # another query: it reads everything, and writes it
    assert values(bootstrap, topic) == sorted(2 * list(range(4 * ROWS)))


def test_a_record_that_is_gone_is_an_error_and_not_a_guess(query: Query, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    query.run(sink(bootstrap, topic, transactionalIdPrefix=topic))
    query.forget_last_commit()
    with cluster_at(bootstrap) as cluster:
        ours = [group.group for group in list_groups(cluster) if group.group.startswith(topic)]
        delete_groups(cluster, ours)
    with pytest.raises(StreamingQueryException, match="batch 1 may be in the topic already"):
        query.run(sink(bootstrap, topic, transactionalIdPrefix=topic))
    assert values(bootstrap, topic) == list(range(2 * ROWS))


def test_a_version_of_an_app_is_written_once_to_each_topic(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic
) -> None:
    topics = [new_topic(2), new_topic(2)]

    def write(rows: int, version: int) -> None:
        df = spark.range(0, rows, 1, 2).select(F.col("id").cast("string").alias("value"))
        for topic in topics:
            given = options(bootstrap, topic, {"txnAppId": topics[0], "txnVersion": version})
            df.write.format("moldau").options(**given).mode("append").save()

    for version in (0, 3, 3):
        write(100, version)
    for rows, version, words in [(90, 3, "committed 50 rows"), (100, 2, "txnVersion did not grow")]:
        with pytest.raises(PySparkException, match=words):
            write(rows, version)
    for topic in topics:
        assert values(bootstrap, topic) == sorted(2 * list(range(100)))
