"""The data source as Spark sees it: `format("moldau")`, for reading and writing, in batches and streams.

Spark creates it in a Python process for each step (schema, plan, write) and pickles it for the next one, so it holds
only the options. Each step imports what it needs: Spark imports this module whenever it looks for data sources.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from moldau.errors import ConfigError, MoldauError
from moldau.spark.hang_ups import ignore_hang_ups
from moldau.spark.options import Options
from moldau.spark.plain_errors import plain_errors

# Here, since every Python process of Spark that plans or reads with this source imports it.
ignore_hang_ups()


class MoldauDataSource(DataSource):
    def __init__(self, options: dict[str, str]) -> None:
        """Once for each `load()` and `save()`: all other processes get a copy."""
        super().__init__(options)
        Options(options).warn_of_unknown_properties()

    @classmethod
    def name(cls) -> str:
        return "moldau"

    @plain_errors()
    def schema(self) -> StructType:
        from moldau.spark.source.projection import source_schema
        from moldau.spark.source.read_options import ReadOptions

        options = Options(self.options)
        return source_schema(options, ReadOptions.for_either(options))

    @plain_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        from moldau.spark.source.batch_reader import PruningTopicReader, TopicReader
        from moldau.spark.source.projection import RowReader
        from moldau.spark.source.read_options import ReadOptions

        options = Options(self.options)
        read = ReadOptions.for_batch(options)
        reader = PruningTopicReader if read.push_down_predicate else TopicReader
        return reader(read, RowReader.of(options, read, schema))

    @plain_errors()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from moldau.spark.source.projection import RowReader
        from moldau.spark.source.read_options import ReadOptions
        from moldau.spark.source.stream_reader import RefusedStreamReader, TopicStreamReader

        options = Options(self.options)
        try:
            read = ReadOptions.for_stream(options)
            return TopicStreamReader(read, RowReader.of(options, read, schema))
        except MoldauError as error:
            return RefusedStreamReader(error)

    @plain_errors()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from moldau.client.cluster import ClusterClient
        from moldau.spark.connections import ask_patiently
        from moldau.spark.sink.writers import BatchWriter

        if overwrite:
            raise ConfigError('a topic cannot be overwritten: use .mode("append")')
        writer = BatchWriter(self.options, schema)
        ask_patiently(writer.client, ClusterClient.any_broker)  # tasks would try for longer, each of them
        return writer

    @plain_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from moldau.spark.sink.writers import StreamWriter

        return StreamWriter(self.options, schema)
