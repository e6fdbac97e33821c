"""Objects of S3, of Google's storage or of a local folder: new ones are read as they come; batches become objects."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from moldau.errors import ConfigError
from moldau.pipelines.connectors.base import BatchSink, Connector, Guarantee, ReadRequest, Request, WriteRequest
from moldau.pipelines.connectors.object_store.formats import FORMATS, default_compression
from moldau.pipelines.connectors.object_store.layout import (
    HOURLY,
    PATH_FORMATS,
    Layout,
    parse_path_format,
    time_zone_mistake,
)
from moldau.pipelines.model.kinds import BOOLEAN, DURATION, NAMES, TEXT, Kind, choice, has_reference, names_of, whole
from moldau.pipelines.model.options import Given, Option, OptionTable, Value
from moldau.pipelines.model.places import Problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from moldau.pipelines.connectors.object_store.stores import Store

_BY_OFFSETS = "offsets"
_OBJECT = "object"
_NAME_COLUMNS = ("topic", "partition", "offset")


def _path_format(value: object) -> str:
    pattern = PATH_FORMATS.get(str(value), str(TEXT.convert(value)))
    parse_path_format(pattern)
    return pattern


def _time_zone(value: object) -> str:
    mistake = time_zone_mistake(str(value))
    if mistake:
        raise ValueError(mistake)
    return str(value)


PATH_FORMAT = Kind("`hour`, `day` or a pattern", _path_format, {"type": "string"})
TIME_ZONE = Kind("time zone", _time_zone, {"type": "string"})
_STORE = OptionTable.of(
    Option(
        "url",
        "Bucket and prefix: `s3://bucket/prefix` or `gs://bucket/prefix`; or a local folder.",
        required=True,
        example="s3://shop/clicks",
    ),
    Option("region", "s3: region of the bucket; by default it is asked for."),
    Option("store url", "s3: address of a server that is not Amazon's.", example="http://localhost:9000"),
    Option(
        "access key", "s3: access key; without it, the environment, AWS's files or the machine's role.", secret=True
    ),
    Option("secret key", "s3: secret key that belongs to the access key.", secret=True),
    Option("path style", "s3: with a `store url`, whether the bucket is in the path or in the host.", BOOLEAN),
)


class ObjectStoreConnector(Connector):
    name = "s3"
    summary = "Objects of S3 or Google Cloud Storage, or files of a folder: JSON, text, bytes, Parquet or Avro."
    guarantee = Guarantee.EXACTLY_ONCE
    can_share = True
    identity = ("url",)
    modes = ("append", "update")  # objects are only added
    source_options = _STORE + OptionTable.of(
        Option("format", "Format of the objects.", choice(*FORMATS), required=True, example="json"),
        Option(
            "metadata", "Columns besides those of the objects: object, its name.", names_of(_OBJECT), example=_OBJECT
        ),
        Option("maxFilesPerTrigger", "Most objects in a micro-batch.", whole(1), default=1_000),
        Option("poll", "Pause between two listings that found nothing new.", DURATION, default=10_000),
        Option(
            "late after",
            "Objects older than the newest one by more than this count as read. It has to cover the longest upload.",
            DURATION,
            default=3_600_000,
        ),
    )
    sink_options = _STORE + OptionTable.of(
        Option("format", "Format of the objects.", choice(*FORMATS), default="json"),
        Option(
            "value",
            "Column to write: its fields, if it has some. By default all columns; for text and bytes `value`.",
        ),
        Option(
            "names",
            "offsets: by topic, partition and first offset, as in Kafka Connect. Rows need these columns, one for each "
            "record of a topic. batches: by query, micro-batch and task.",
            choice(_BY_OFFSETS, "batches"),
            default="batches",
        ),
        Option("partition by", "Columns that become folders: `country=cz`.", NAMES, example="country"),
        Option(
            "partition time",
            "Timestamp that becomes a folder: a column or SQL expression, or `now`, when the micro-batch began.",
            example="at",
        ),
        Option(
            "path format", "Folder of a `partition time`: `hour`, `day`, or a pattern.", PATH_FORMAT, default=HOURLY
        ),
        Option("time zone", "Time zone of these folders.", TIME_ZONE, default="UTC"),
        Option("partition duration", "The time of day in folders is rounded down to this.", DURATION),
        Option("flush rows", "Most rows of an object.", whole(1), default=100_000),
        Option("flush bytes", "names: offsets: about how large an object gets, before compression.", whole(1)),
        Option(
            "files", "Tasks that write a micro-batch; with `names: batches` each makes a file.", whole(1), default=1
        ),
        Option("compression", "json, text, bytes: none, gzip; parquet: snappy, zstd, gzip, none; avro: none, deflate."),
        Option("null fields", "json: write fields that are null; otherwise they are left out.", BOOLEAN, default=True),
        Option("separator", "bytes: what separates the values; by default a line break."),
    )
    source_example = "url: s3://shop/clicks\nformat: json\nschema: page STRING, at TIMESTAMP\nregion: eu-central-1"
    sink_example = (
        "url: s3://shop/page-views\nformat: parquet\npartition time: at\npath format: day\nregion: eu-central-1"
    )

    def check(self, options: Mapping[str, Given], *, is_source: bool) -> Iterable[Problem]:
        if ("access key" in options) != ("secret key" in options):
            one = options.get("access key") or options["secret key"]
            yield Problem("access key and secret key belong together: give both or none", one.place)
        url = options.get("url", Given(""))
        if "://" in str(url.value) and not str(url.value).startswith(("s3://", "s3a://", "gs://", "file://", "${")):
            yield Problem(f"url {url.value}: expected s3://, gs://, file:// or a folder", url.place)
        if is_source:
            return
        compression, format_name = options.get("compression"), options.get("format", Given("json")).value
        if compression and format_name in FORMATS and not has_reference(compression.value):
            allowed = FORMATS[format_name].compressions
            if compression.value not in allowed:
                message = f"compression {compression.value}: {format_name} has {', '.join(allowed)}"
                yield Problem(message, compression.place)
        if "flush bytes" in options and options.get("names", Given("")).value != _BY_OFFSETS:
            yield Problem("flush bytes needs `names: offsets`", options["flush bytes"].place)

    def columns(self, options: Mapping[str, Value]) -> str | None:
        lines = {"text": "value STRING", "bytes": "value BINARY"}
        found = lines.get(options["format"]) or super().columns(options)
        return f"{found}, {_OBJECT} STRING" if found and options.get("metadata") else found

    def read(self, request: ReadRequest) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        from moldau.pipelines.connectors.object_store import source
        from moldau.pipelines.connectors.readers.avro_files import parsed

        options, format_name, store = request.options, request.options["format"], _store(request)
        extra = tuple(options.get("metadata", ()))
        spec = source.SourceSpec(
            format_name, options["maxFilesPerTrigger"], options["poll"], options["late after"], bool(extra)
        )
        schema = source.LINES
        if format_name not in ("text", "bytes"):
            schema = parsed(options["schema"]) if "schema" in options else source.Objects(store, spec).inferred()
        stored = source.LINES if FORMATS[format_name].has_lines else schema
        loader = request.loader(source.ObjectSource).schema(source.with_object(stored, extra))
        frame = loader.options(**source.source_options(store, spec)).load()
        line = F.col("value").cast("string")
        if format_name == "json":
            row = F.from_json(line, schema, {"mode": "FAILFAST"}).alias("row")
            return frame.where(F.length(F.trim(line)) > 0).select(row, *extra).select("row.*", *extra)
        return frame.select(line.alias("value"), *extra) if format_name == "text" else frame

    def write(self, request: WriteRequest) -> BatchSink:
        if request.mode == "complete":
            raise ConfigError(f"sink {request.name}: objects are only added: use mode append or update")
        from moldau.pipelines.connectors.object_store.encoders import Encoding
        from moldau.pipelines.connectors.object_store.writer import ObjectSink

        options, format_name = request.options, request.options["format"]
        sink = ObjectSink(
            store=_store(request),
            name=request.name,
            layout=_layout(options),
            encoding=Encoding(
                format_name,
                options.get("compression", default_compression(format_name)),
                options.get("separator", "\n").encode(),
                has_nulls=options["null fields"],
            ),
            rows_max=options["flush rows"],
            bytes_max=options.get("flush bytes"),
            tasks=options["files"],
            checkpoint=request.checkpoint,
        )

        def write(rows: DataFrame, batch_id: int) -> None:
            missing = [name for name in _NAME_COLUMNS if name not in rows.columns] if sink.layout.has_offsets else []
            if missing:
                raise ConfigError(
                    f"sink {request.name}: `names: offsets` needs the column {missing[0]}: add `metadata: "
                    f"{', '.join(_NAME_COLUMNS)}` to the source"
                )
            sink.write(rows, batch_id)

        return BatchSink(write)

    def prepare(self, request: Request) -> None:
        from moldau.pipelines.connectors.object_store.stores import require_bucket

        require_bucket(_store(request))


def _store(request: Request) -> Store:
    from moldau.pipelines.connectors.object_store.stores import Store

    options, url = request.options, request.path("url")
    return Store(
        url=url if "://" in url else os.path.abspath(url),
        region=options.get("region"),
        endpoint=options.get("store url"),
        access_key=options.get("access key"),
        secret_key=options.get("secret key"),
        is_path_style=options.get("path style"),
    )


def _layout(options: Mapping[str, Value]) -> Layout:
    return Layout(
        has_offsets=options["names"] == _BY_OFFSETS,
        value=options.get("value", ""),
        partition_by=tuple(options.get("partition by", ())),
        time=options.get("partition time", ""),
        path_format=options["path format"],
        time_zone=options["time zone"],
        duration_ms=options.get("partition duration", 0),
    )
