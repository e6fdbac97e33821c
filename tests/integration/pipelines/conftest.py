"""One real Spark for all tests of pipelines, on the session's broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.conftest import NewTopic
from tests.integration.pipelines.changing import Changing
from tests.integration.spark.conftest import spark

__all__ = ["spark"]


@pytest.fixture
def changing(spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path) -> Changing:
    return Changing(spark, bootstrap, tmp_path, new_topic)
