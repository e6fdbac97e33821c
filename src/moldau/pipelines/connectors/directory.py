"""Files in a directory: new ones are read as they come, each batch becomes new files.

Paths are local, or URLs of any file system that Spark's Hadoop knows (`hdfs://`, `s3a://`). Text, JSON, CSV and Parquet
are Spark's own; Avro is read and written by fastavro, without a jar.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from moldau.errors import ConfigError
from moldau.pipelines.connectors.base import BatchSink, Connector, Guarantee, ReadRequest, Request, WriteRequest
from moldau.pipelines.model.kinds import BOOLEAN, NAMES, choice, names_of, whole
from moldau.pipelines.model.options import Given, Option, OptionTable, Value
from moldau.pipelines.model.places import Problem
from moldau.spark.options import option_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_FORMATS = ("text", "json", "csv", "parquet", "avro")
_OTHER = "spark."
_METADATA = {  # name: Spark's hidden column, the column of binaryFile, type
    "file": ("_metadata.file_path", "path", "STRING"),
    "modified": ("_metadata.file_modification_time", "modificationTime", "TIMESTAMP"),
    "size": ("_metadata.file_size", "length", "BIGINT"),
}
_STREAM_ONLY = OptionTable.of(
    Option("maxFilesPerTrigger", "Most files in a micro-batch.", whole(1)),
    Option("maxBytesPerTrigger", "About how many bytes to read in a micro-batch.", whole(1)),
    Option("latestFirst", "Read the newest files first.", BOOLEAN),
    Option("maxFileAge", "Ignore files that are older than the newest by this much.", example="7d"),
    Option("cleanSource", "What becomes of files that were read.", choice("archive", "delete", "off")),
    Option("sourceArchiveDir", "Where `cleanSource: archive` moves them."),
)
_SHARED = OptionTable.of(
    Option("header", "csv: the first line has the names of the columns.", BOOLEAN),
    Option("sep", "csv: what separates the columns.", example=";"),
    Option("nullValue", "csv: the text that stands for null."),
    Option("dateFormat", "json, csv: how dates are written.", example="yyyy-MM-dd"),
    Option("timestampFormat", "json, csv: how timestamps are written.", example="yyyy-MM-dd HH:mm:ss"),
    Option("encoding", "json, csv: the encoding of the text, if it is not UTF-8."),
    Option(f"{_OTHER}*", "Any other option of Spark's format, after `spark.`.", example="multiLine"),
)


class DirectoryConnector(Connector):
    name = "directory"
    summary = "Files in a directory: text, JSON, CSV, Parquet or Avro."
    guarantee = Guarantee.EXACTLY_ONCE
    can_share = True
    identity = ("path",)
    sink_columns = ("partition by",)
    modes = ("append", "update")  # files are only added
    source_options = (
        OptionTable.of(
            Option("path", "The directory, or a pattern with `*`.", required=True, example="incoming"),
            Option("format", "Format of the files.", choice(*_FORMATS), required=True, example="json"),
            Option(
                "metadata",
                f"Columns besides those of the files: {', '.join(_METADATA)}.",
                names_of(*_METADATA),
                example="file",
            ),
            Option("pathGlobFilter", "Read only files whose names match.", example="*.json"),
            Option("recursiveFileLookup", "Read the directories in it, too.", BOOLEAN),
            Option(
                "mode",
                "json, csv: FAILFAST stops at a record that cannot be read, DROPMALFORMED leaves it out, PERMISSIVE "
                "makes it a row of nulls.",
                choice("FAILFAST", "DROPMALFORMED", "PERMISSIVE"),
                default="FAILFAST",
            ),
        )
        + _STREAM_ONLY
        + _SHARED
    )
    sink_options = (
        OptionTable.of(
            Option("path", "The directory to write to.", required=True, example="page-counts"),
            Option("format", "Format of the files.", choice(*_FORMATS), default="parquet"),
            Option("partition by", "Columns that become directories: `day=2026-01-01`.", NAMES, example="day"),
            Option(
                "files", "Most files of a batch, in each directory; by default as many as there are tasks.", whole(1)
            ),
            Option("compression", "How files are compressed, as in Spark; avro: deflate or null.", example="zstd"),
        )
        + _SHARED
    )
    source_example = "path: incoming\nformat: json\nschema: page STRING, at TIMESTAMP\nmaxFilesPerTrigger: 100"
    sink_example = "path: page-counts\nformat: parquet\npartition by: day"

    def check(self, options: Mapping[str, Given], *, is_source: bool) -> Iterable[Problem]:
        if is_source and options.get("cleanSource", Given("")).value == "archive" and "sourceArchiveDir" not in options:
            yield Problem("cleanSource: archive needs a sourceArchiveDir", options["cleanSource"].place)

    def columns(self, options: Mapping[str, Value]) -> str | None:
        schema = options.get("schema", "value STRING" if options["format"] == "text" else None)
        if schema is None:
            return None
        return ", ".join([schema, *(f"{name} {_METADATA[name][2]}" for name in options.get("metadata", ()))])

    def read(self, request: ReadRequest) -> DataFrame:
        options, path = request.options, request.path("path")
        if "://" not in path and "*" not in path:
            Path(path).mkdir(parents=True, exist_ok=True)  # a directory that is empty yet
        if options["format"] == "avro":
            frame = self._read_avro(request, path)
        else:
            loader = request.loader(options["format"]).options(
                **_spark_options(request, is_streaming=request.is_streaming)
            )
            frame = loader.schema(self._schema(request, path)).load(path)
        extra = [f"{_METADATA[name][0]} AS {name}" for name in options.get("metadata", ())]
        return frame.selectExpr("*", *extra) if extra and options["format"] != "avro" else frame

    def _schema(self, request: ReadRequest, path: str) -> str | StructType:
        """As given, or inferred from the files that are there."""
        if "schema" in request.options:
            return str(request.options["schema"])
        if request.options["format"] == "text":
            return "value STRING"
        from pyspark.errors import AnalysisException

        options = _spark_options(request, is_streaming=False) | {"inferSchema": "true"}
        try:
            schema = request.spark.read.format(request.options["format"]).options(**options).load(path).schema
        except AnalysisException as error:
            raise ConfigError(_no_schema(request.name, path)) from error
        if not schema.fields:
            raise ConfigError(_no_schema(request.name, path))
        return schema

    def _read_avro(self, request: ReadRequest, path: str) -> DataFrame:
        from moldau.pipelines.connectors.readers import avro_files

        options = _spark_options(request, is_streaming=request.is_streaming)
        if "schema" in request.options:
            schema = avro_files.parsed(request.options["schema"])
        else:
            sample = request.spark.read.format("binaryFile").options(**_spark_options(request, is_streaming=False))
            found = avro_files.inferred(sample.load(path))
            if found is None:
                raise ConfigError(_no_schema(request.name, path))
            schema = found
        binary = request.loader("binaryFile").options(**options)
        frame = binary.schema("path STRING, modificationTime TIMESTAMP, length LONG, content BINARY").load(path)
        extra = {name: _METADATA[name][1] for name in request.options.get("metadata", ())}
        return avro_files.decoded(frame, schema, extra)

    def write(self, request: WriteRequest) -> BatchSink:
        if request.mode == "complete":
            raise ConfigError(f"sink {request.name}: a directory is only added to: use mode append or update")
        from moldau.pipelines.connectors.writers.published_files import PublishedFiles

        options = request.options
        files = PublishedFiles(
            directory=request.path("path"),
            name=request.name,
            format=options["format"],
            partition_by=tuple(options.get("partition by", ())),
            files_max=options.get("files"),
            options=_spark_options(request, is_streaming=False, known=(*_SHARED.names, "compression")),
        )
        return BatchSink(files.write)


def _spark_options(request: Request, *, is_streaming: bool, known: tuple[str, ...] | None = None) -> dict[str, str]:
    """What Spark gets, by its own names."""
    options = request.options
    if "sourceArchiveDir" in options:
        options = {**options, "sourceArchiveDir": request.path("sourceArchiveDir")}
    names = known or tuple(set(DirectoryConnector.source_options.names) - {"path", "format", "metadata"})
    if not is_streaming:
        names = tuple(name for name in names if name not in _STREAM_ONLY.names)
    other = {name.removeprefix(_OTHER): value for name, value in options.items() if name.startswith(_OTHER)}
    return {
        name: option_text(value) for name, value in {**{n: options[n] for n in names if n in options}, **other}.items()
    }


def _no_schema(source: str, path: str) -> str:
    return (
        f"source {source}: no file in {path} to infer the schema from: give it, such as `schema: page STRING, ms INT`"
    )
