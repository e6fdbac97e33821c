"""Spark looks for data sources in packages named `pyspark_*`: with this one, `format("moldau")` works unregistered."""

from moldau.spark.data_source import MoldauDataSource as DefaultSource

__all__ = ["DefaultSource"]
