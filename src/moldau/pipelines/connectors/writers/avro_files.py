"""Avro files of a batch, written by its tasks with fastavro through Arrow's file systems."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.fs as pafs
from fastavro import parse_schema
from fastavro.write import Writer
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from moldau.errors import ConfigError
from moldau.pipelines.connectors.readers.data_source import FORMAT, options_of
from moldau.pipelines.connectors.writers.published_files import COMPLETE
from moldau.spark.formats.avro_schema import avro_schema
from moldau.spark.plain_errors import plain_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CODECS = ("deflate", "null")
_NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"  # as Spark names the directory of nulls


def write_avro(rows: DataFrame, directory: str, partition_by: Sequence[str], codec: str) -> None:
    """Write a file for each task and directory, then mark the whole as complete."""
    if codec not in CODECS:
        raise ConfigError(f"compression {codec}: Avro files have {' or '.join(CODECS)}")
    options = {"directory": directory, "partition_by": json.dumps(list(partition_by)), "codec": codec}
    rows.write.format(FORMAT).options(**options_of(AvroFiles), **options).mode("append").save()


class AvroFiles(DataSource):
    @plain_errors()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        partition_by = json.loads(self.options["partition_by"])
        inside = StructType([field for field in schema if field.name not in partition_by])
        try:
            written = json.dumps(avro_schema(inside, "row"))
        except ValueError as error:
            raise ConfigError(f"format avro: {error}") from error
        return AvroWriter(self.options["directory"], partition_by, self.options["codec"], written, inside.names)


@dataclass
class AvroWriter(DataSourceArrowWriter):
    directory: str
    partition_by: list[str]
    codec: str
    schema: str
    columns: list[str]

    def __post_init__(self) -> None:
        self._write_id = str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        files, root = _file_system(self.directory)
        name = f"part-{context.partitionId():05d}-{self._write_id}.avro"
        with plain_errors(), ExitStack() as opened:
            writers: dict[str, Any] = {}
            for row in (row for batch in iterator for row in batch.to_pylist()):
                folder = "/".join([root, *(f"{column}={_segment(row[column])}" for column in self.partition_by)])
                if folder not in writers:
                    files.create_dir(folder, recursive=True)
                    file = opened.enter_context(files.open_output_stream(f"{folder}/{name}"))
                    writers[folder] = Writer(file, parse_schema(json.loads(self.schema)), self.codec)
                writers[folder].write({column: row[column] for column in self.columns})
            for writer in writers.values():
                writer.flush()
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        files, root = _file_system(self.directory)
        files.create_dir(root, recursive=True)
        files.open_output_stream(f"{root}/{COMPLETE}").close()


def _file_system(directory: str) -> tuple[Any, str]:
    if "://" not in directory:
        return pafs.LocalFileSystem(), directory
    found: tuple[Any, str] = pafs.FileSystem.from_uri(directory)
    return found


def _segment(value: Any) -> str:
    return _NULL_VALUE if value is None else quote(str(value), safe=" -_.+")
