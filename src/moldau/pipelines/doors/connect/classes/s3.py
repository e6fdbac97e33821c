"""Confluent's S3 connectors: their keys, as options of the pipelines' connector `s3`.

The sink's objects lie where that connector stores them, with the same names. What differs: an object is closed at the
end of a micro-batch, too, so a topic that gets no more records is flushed after a minute if nothing else is set; and
objects are stored exactly once with every partitioner and timestamp extractor, also with `Wallclock`. JSON has no
fields that are null: of records without a schema, nothing tells a field that is null from one that is missing.

The source reads objects that the sink has stored (mode RESTORE_BACKUP): their names say topic and partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from moldau.pipelines.connectors.object_store.connector import PATH_FORMAT, TIME_ZONE
from moldau.pipelines.connectors.object_store.formats import FORMATS
from moldau.pipelines.connectors.object_store.layout import NOW, PATH_FORMATS
from moldau.pipelines.doors.connect.config import LONG, TOPICS, TOPICS_REGEX, TRANSFORMS
from moldau.pipelines.doors.connect.plugins import (
    SCHEMALESS,
    ConnectorConfig,
    Frames,
    Plugin,
    PluginKind,
    SinkParts,
    SourceParts,
)
from moldau.pipelines.model.kinds import BOOLEAN, NAMES, Kind, choice, has_reference, whole
from moldau.pipelines.model.options import Given, Option, OptionTable, Value
from moldau.pipelines.model.pipeline import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FLUSH_MS = 60_000  # after which a quiet topic is flushed, if no rotation is set
_CLASS_FORMATS = {"JsonFormat": "json", "AvroFormat": "avro", "ParquetFormat": "parquet", "ByteArrayFormat": "bytes"}
_PARTITIONERS = ("Default", "Field", "TimeBased", "Hourly", "Daily")
_EXTRACTORS = ("Wallclock", "Record", "RecordField")
_STORED_NAME = r"^(?:.*/)?([^/]+)\+(\d+)\+\d+\.[^/]*$"  # <topic>+<partition>+<offset>.<extension>
_AVRO_CODECS = {"null": "none", "deflate": "deflate", "bzip2": "bzip2"}


def _class(package: str, known: Mapping[str, str]) -> Kind:
    """A class of Connect's as our word for it; its package may be left out."""

    def convert(value: object) -> str:
        word = known.get(str(value).strip().rpartition(".")[2])
        if word is None:
            raise ValueError(f"expected one of {', '.join(package.format(name) for name in known)}")
        return word

    return Kind("class", convert)


_FORMAT = _class(
    "io.confluent.connect.s3.format.{0}",
    _CLASS_FORMATS,
)
_PARTITIONER = _class(
    "io.confluent.connect.storage.partitioner.{0}", {f"{name}Partitioner": name for name in _PARTITIONERS}
)
_STORE = OptionTable.of(
    Option("s3.bucket.name", "The S3 bucket.", required=True),
    Option("s3.region", "The AWS region of the bucket; by default it is asked for."),
    Option("store.url", "Address of an object store that is not Amazon's."),
    Option("s3.path.style.access.enabled", "With a store.url: the bucket is in the path.", BOOLEAN, default=True),
    Option("aws.access.key.id", "Access key; without it, as AWS's own clients find one.", secret=True),
    Option("aws.secret.access.key", "Secret key that belongs to the access key.", secret=True),
    Option("topics.dir", "Folder of all objects in the bucket.", default="topics"),
    Option("format.class", "Class of the format of objects.", _FORMAT, required=True),
)
_SOURCE = _STORE + OptionTable.of(
    Option("mode", "What names of objects mean.", choice("RESTORE_BACKUP"), default="RESTORE_BACKUP"),
    Option("s3.poll.interval.ms", "Pause between two listings that found nothing new.", whole(1), default=60_000),
    Option("record.batch.max.size", "Has no effect: micro-batches have whole objects.", whole(1)),
)
_SINK = _STORE + OptionTable.of(
    Option("flush.size", "Most records of an object.", whole(1), required=True),
    Option("rotate.interval.ms", "Longest time to collect records of an object.", LONG, default=-1),
    Option("rotate.schedule.interval.ms", "Longest time to collect records of an object.", LONG, default=-1),
    Option("partitioner.class", "How records become folders.", _PARTITIONER, default="DefaultPartitioner"),
    Option("partition.field.name", "FieldPartitioner: the fields.", NAMES),
    Option("path.format", "TimeBasedPartitioner: pattern of the folders.", PATH_FORMAT),
    Option("partition.duration.ms", "TimeBasedPartitioner: the time is rounded down to this.", LONG, default=-1),
    Option("locale", "Has no effect: folders have numbers only."),
    Option("timezone", "Time zone of the folders.", TIME_ZONE, default="UTC"),
    Option("timestamp.extractor", "Where the time comes from.", choice(*_EXTRACTORS), default="Wallclock"),
    Option("timestamp.field", "RecordField: the field with the time.", default="timestamp"),
    Option("behavior.on.null.values", "What happens to tombstones.", choice("fail", "ignore", "write"), default="fail"),
    Option("s3.compression.type", "JSON and bytes: none or gzip.", choice("none", "gzip"), default="none"),
    Option("parquet.codec", "Parquet: compression.", choice("snappy", "gzip", "zstd", "none"), default="snappy"),
    Option("avro.codec", "Avro: compression.", choice(*_AVRO_CODECS), default="null"),
    Option("format.bytearray.separator", "Bytes: what separates the values; by default a line break."),
    Option("s3.part.size", "Has no effect: Arrow chooses the parts of an upload.", whole(1)),
    Option("storage.class", "Has no effect: it is always S3."),
    Option("schema.compatibility", "Has no effect: each object has the schema of its micro-batch."),
    Option("store.kafka.keys", "Not supported yet.", BOOLEAN, default=False),
    Option("store.kafka.headers", "Not supported yet.", BOOLEAN, default=False),
)


def _sink(config: ConnectorConfig) -> SinkParts:
    values, given = config.values, config.given
    options = _store(config) | {
        "names": Given("offsets"),
        "value": Given("value"),
        "compression": Given(_compression(values)),
        "null fields": Given(False),
        "flush rows": Given(values["flush.size"]),
        "files": Given(given.get("tasks.max", "1")),
        **_folders(values),
    }
    if given.get("format.bytearray.separator"):
        options["separator"] = config.unresolved("format.bytearray.separator")
    waits = [values[key] for key in ("rotate.interval.ms", "rotate.schedule.interval.ms") if values[key] > 0]
    return SinkParts(
        "s3",
        options,
        _rows(values["behavior.on.null.values"]),
        source={
            "minOffsetsPerTrigger": Given(values["flush.size"]),
            "maxTriggerDelay": Given(f"{min(waits, default=_FLUSH_MS)}ms"),
        },
    )


_PASSED = {
    "s3.region": "region",
    "store.url": "store url",
    "aws.access.key.id": "access key",
    "aws.secret.access.key": "secret key",
}


def _store(config: ConnectorConfig) -> dict[str, Given]:
    """References stay as they are: they are resolved when the query starts."""
    given = config.given
    found = {name: config.unresolved(key) for key, name in _PASSED.items() if given.get(key)}
    return found | {
        "url": Given(f"s3://{given['s3.bucket.name']}/{given.get('topics.dir', 'topics').strip('/')}"),
        "format": Given(config.values["format.class"]),
        "path style": Given(config.values["s3.path.style.access.enabled"]),
    }


def _compression(values: Mapping[str, Value]) -> str:
    format_name = values["format.class"]
    if FORMATS[format_name].has_lines:
        return str(values["s3.compression.type"])
    return str(values["parquet.codec"]) if format_name == "parquet" else _AVRO_CODECS[values["avro.codec"]]


def _folders(values: Mapping[str, Value]) -> dict[str, Given]:
    partitioner = values["partitioner.class"].removesuffix("Partitioner")
    if partitioner == "Default":
        return {}
    if partitioner == "Field":
        return {"partition by": Given(list(values["partition.field.name"]))}
    fixed = {"Hourly": PATH_FORMATS["hour"], "Daily": PATH_FORMATS["day"]}
    field = ".".join(f"`{part}`" for part in values["timestamp.field"].split("."))
    times = {"Wallclock": NOW, "Record": "timestamp", "RecordField": f"value.{field}"}
    folders = {
        "partition time": Given(times[values["timestamp.extractor"]]),
        "path format": Given(fixed.get(partitioner) or values["path.format"]),
        "time zone": Given(values["timezone"]),
    }
    if partitioner == "TimeBased" and values["partition.duration.ms"] > 0:
        folders["partition duration"] = Given(f"{values['partition.duration.ms']} ms")
    return folders


def _rows(on_null: str) -> Frames:
    def rows(records: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        has_value = F.col("value").isNotNull()
        if on_null == "fail":
            where = F.concat_ws(" ", F.col("topic"), F.col("partition"), F.lit("offset"), F.col("offset"))
            message = F.concat(F.lit("a record without a value (behavior.on.null.values=ignore skips it): "), where)
            has_value = F.when(has_value, F.lit(True)).otherwise(F.raise_error(message).cast("boolean"))
        return records.where(has_value)

    return rows


def _check(config: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    for key in ("store.kafka.keys", "store.kafka.headers"):
        if config.get(key, "false").lower() == "true":
            yield key, "only values are stored: set it to false"
    if config.get("behavior.on.null.values") == "write":
        yield "behavior.on.null.values", "tombstones are not stored: use ignore or fail"
    partitioner = config.get("partitioner.class", "").rpartition(".")[2]
    for needed, key in (("FieldPartitioner", "partition.field.name"), ("TimeBasedPartitioner", "path.format")):
        if partitioner == needed and not config.get(key):
            yield key, f"{needed} needs it"
    yield from _check_keys(config)
    topics = config.get(TOPICS, "")
    if _has_router(config) and (TOPICS_REGEX in config or "," in topics or has_reference(topics)):
        yield TRANSFORMS, "objects are named by topic and offset, so several topics must not be routed to others"


def _check_keys(config: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    if ("aws.access.key.id" in config) != ("aws.secret.access.key" in config):
        yield "aws.access.key.id", "aws.access.key.id and aws.secret.access.key belong together: give both or none"


def _has_router(config: Mapping[str, str]) -> bool:
    aliases = (alias.strip() for alias in config.get(TRANSFORMS, "").split(","))
    return any(config.get(f"{TRANSFORMS}.{alias}.type", "").endswith("Router") for alias in aliases)


def _source(config: ConnectorConfig) -> SourceParts:
    options = _store(config) | {
        "metadata": Given("object"),
        "poll": Given(f"{config.values['s3.poll.interval.ms']} ms"),
    }
    is_schemaless = config.values["format.class"] == "json"
    return SourceParts((Source("objects", "s3", options),), partial(_restored, is_schemaless=is_schemaless))


def _restored(rows: DataFrame, *, is_schemaless: bool) -> DataFrame:
    """Records of the topic and partition that the name of their object begins with."""
    from pyspark.sql import functions as F  # noqa: N812

    fields = [name for name in rows.columns if name != "object"]
    is_bytes = [(name, rows.schema[name].dataType.simpleString()) for name in fields] == [("value", "binary")]
    value = F.col("value") if is_bytes else F.struct(*fields)
    name = F.regexp_extract("object", _STORED_NAME, 1)
    topic = F.when(name != "", name).otherwise(
        F.raise_error(F.concat(F.lit("not an object of the S3 sink connector: "), F.col("object"))).cast("string")
    )
    return rows.select(
        topic.alias("topic"),
        F.regexp_extract("object", _STORED_NAME, 2).cast("int").alias("partition"),
        value.alias("value", metadata={SCHEMALESS: True} if is_schemaless else {}),
    )


PLUGINS = (
    Plugin(("io.confluent.connect.s3.S3SinkConnector",), PluginKind.SINK, _SINK, _sink, _check),
    Plugin(("io.confluent.connect.s3.source.S3SourceConnector",), PluginKind.SOURCE, _SOURCE, _source, _check_keys),
)
