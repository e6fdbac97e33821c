"""One real Spark for all tests of connectors, on the session's broker."""

from __future__ import annotations

from tests.integration.spark.conftest import spark

__all__ = ["spark"]
