"""Producers that change their records: a new field waits for the schema, another type is a dead letter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.integration.conftest import NewTopic
from tests.integration.pipelines.bad_records.letters import records, run_once, shop, values
from tests.integration.spark.topics import produce


def test_a_new_field_waits_for_the_schema_and_another_type_is_a_dead_letter(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic()
    produce(bootstrap, topic, [b'{"page":"/a","n":1}', b'{"page":"/b","n":2,"new":true}', b'{"page":"/c","n":"two"}'])
    run_once(spark, shop(bootstrap, tmp_path, topic, source={"schema": "page STRING, n INT"}))
    assert _rows(bootstrap, topic) == [{"page": "/a", "n": 1}, {"page": "/b", "n": 2}]
    (letter,) = records(bootstrap, f"{topic}-letters")
    assert letter.value == b'{"page":"/c","n":"two"}'
    assert letter.origin == (topic, 0, 2)
    assert letter.reason

    produce(bootstrap, topic, [b'{"page":"/d","n":3,"new":true}', b'{"page":"/e"}'])
    run_once(spark, shop(bootstrap, tmp_path, topic, source={"schema": "page STRING, n INT, new BOOLEAN"}))
    assert _rows(bootstrap, topic)[2:] == [{"page": "/d", "n": 3, "new": True}, {"page": "/e"}]
    assert len(records(bootstrap, f"{topic}-letters")) == 1


def _rows(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    return [json.loads(value or b"") for value in values(bootstrap, f"{topic}-out")]
