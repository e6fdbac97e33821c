"""Spark looks for data sources in packages named `pyspark_*`: with this one, connectors' own work in every session."""

from moldau.pipelines.connectors.readers.data_source import ConnectorDataSource as DefaultSource

__all__ = ["DefaultSource"]
