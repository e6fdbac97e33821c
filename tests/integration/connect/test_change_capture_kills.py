"""Change capture of a pipeline that is killed while its tables change."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.integration.conftest import NewTopic
from tests.integration.connect.logical_postgres import LogicalDatabase
from tests.integration.connect.test_change_capture import ORDERS, database, server
from tests.integration.pipelines.processes import PipelineProcess, read_topic

__all__ = ["database", "server"]

PIPELINE = """
name: capture
sources:
  changes:
    connector: cdc
    url: {url}
    tables: orders, users
steps:
  records:
    sql: >
      SELECT CAST(concat(table, key) AS BINARY) AS key,
             CAST(CASE WHEN op <> 'd' THEN after END AS BINARY) AS value FROM changes
sinks:
  out:
    connector: topic
    from: records
    format: bytes
    topic: {topic}
settings:
  kafka.bootstrap.servers: {bootstrap}
"""


class Writer:
    """Inserts, updates and deletes of two tables, several in a transaction, until it is stopped."""

    def __init__(self, database: LogicalDatabase) -> None:
        self._database = database
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _write(self) -> None:
        connection = self._database.connect()
        number = 0
        while not self._stopped.wait(0.01):
            number += 1
            with connection.transaction():
                connection.execute("INSERT INTO orders VALUES (%s, 'new')", (number,))
                connection.execute("INSERT INTO users VALUES (%s)", (number,))
                connection.execute("UPDATE orders SET name = name || 'x' WHERE id = %s", (number - 2,))
                connection.execute("DELETE FROM orders WHERE id = %s", (number - 5,))
        connection.close()


@pytest.mark.timeout(300)
def test_a_killed_pipeline_leaves_a_topic_that_is_the_table_by_key(
    tmp_path: Path, bootstrap: str, new_topic: NewTopic, database: LogicalDatabase
) -> None:
    database.run(ORDERS, "CREATE TABLE users (id INT PRIMARY KEY)", "INSERT INTO users VALUES (0)")
    topic = new_topic()
    (tmp_path / "capture.yaml").write_text(PIPELINE.format(url=database.url, topic=topic, bootstrap=bootstrap))

    def replayed() -> dict[bytes | None, bytes | None]:
        latest = {record.key: record.value for record in read_topic(bootstrap, topic)}
        return {key: value for key, value in latest.items() if value is not None}

    with PipelineProcess(tmp_path, "capture.yaml") as process:
        with Writer(database):
            process.until(lambda: len(replayed()) > 20, "changes in the topic")
            process.kill()
            process.start()
            before = len(replayed())
            process.until(lambda: len(replayed()) > before + 20, "changes after the kill")
        expected = {
            f'orders{{"id":{key}}}'.encode(): f'{{"id":{key},"name":"{name}"}}'.encode()
            for key, name in database.ask("SELECT id, name FROM orders")
        }
        expected |= {
            f'users{{"id":{key}}}'.encode(): f'{{"id":{key}}}'.encode()
            for (key,) in database.ask("SELECT * FROM users")
        }
        process.until(lambda: replayed() == expected, "the topic is the tables")
