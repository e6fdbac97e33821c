"""One real Spark for all tests of the pipeline, on the session's broker; and an Apache Kafka for those that ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import moldau.spark
from bench.servers.apache import ApacheKafka
from moldau.spark.connections import close_idle


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = moldau.spark.session("tests", "local[2]")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where Apache Kafka is; a module's alone, since it takes much of a machine."""
    kafka = ApacheKafka(tmp_path_factory.mktemp("apache"))
    kafka.start()
    try:
        yield kafka.bootstrap
    finally:
        close_idle()
        kafka.stop()
