"""One real Spark for all tests of the pipeline, on the session's broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import moldau.spark


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = moldau.spark.session("tests", "local[2]")
    yield session
    session.stop()
