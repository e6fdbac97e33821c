"""Sinks to Elasticsearch and OpenSearch, by Confluent's and Aiven's keys.

With `key.ignore=false` the key is the document's id and the offset its external version, so that neither a retry nor
another order brings back an older value. With `key.ignore=true` the id is topic+partition+offset, as there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from moldau.errors import ConfigError
from moldau.pipelines.doors.connect.classes.http import any_case, json_text
from moldau.pipelines.doors.connect.plugins import ConnectorConfig, Plugin, PluginKind, SinkParts
from moldau.pipelines.model.kinds import BOOLEAN, NAMES, whole
from moldau.pipelines.model.options import Given, Option, OptionTable, Value

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_NO_EFFECT = "Accepted without effect."
_WITHOUT_EFFECT = {
    "schema.ignore": "Mappings are the server's: it makes them from the first document, or an index template does.",
    "topic.schema.ignore": "See schema.ignore.",
    "type.name": "Types are gone from current servers.",
    "drop.invalid.message": "A record that cannot be converted fails the batch, or becomes a dead letter.",
    "compact.map.entries": "Maps are objects of JSON.",
    "linger.ms": "A request is sent when a micro-batch has rows.",
    "max.in.flight.requests": "Each task sends one request at a time.",
    "max.buffered.records": "Memory is bounded by batch.size and bulk.size.bytes.",
    "flush.timeout.ms": "A micro-batch is done when all its documents are.",
    "flush.synchronously": "A micro-batch is done when all its documents are.",
    "connection.timeout.ms": "See read.timeout.ms.",
    "connection.compression": "Requests are not compressed.",
    "max.connection.idle.time.ms": "Idle connections are closed by the client.",
}


def _options(nulls: str) -> OptionTable:
    """`nulls` is the default of `behavior.on.null.values`."""
    return OptionTable.of(
        Option("connection.url", "One or more URLs of the same cluster, with commas between.", NAMES, required=True),
        Option("connection.username", "Basic authentication: the user."),
        Option("connection.password", "Basic authentication: the password.", secret=True),
        Option("key.ignore", "The id is topic+partition+offset instead of the key.", BOOLEAN, default=False),
        Option("topic.key.ignore", "Topics for which key.ignore is true.", NAMES),
        Option("batch.size", "Most documents in a request.", whole(1), default=2000),
        Option("bulk.size.bytes", "About the most bytes in a request.", whole(1), default=5 * 1024 * 1024),
        Option("max.retries", "Attempts after the first.", whole(), default=5),
        Option("retry.backoff.ms", "Pause before the first retry; it doubles each time.", whole(), default=100),
        Option("read.timeout.ms", "Longest wait for an answer, in milliseconds.", whole(1), default=3000),
        Option(
            "write.method", "insert: replace; upsert: merge fields.", any_case("insert", "upsert"), default="insert"
        ),
        Option(
            "behavior.on.null.values",
            "What to do with tombstones: ignore, delete the document, or fail.",
            any_case("ignore", "delete", "fail"),
            default=nulls,
        ),
        Option(
            "behavior.on.malformed.documents",
            "What to do with documents that the server refuses; report: as fail, which makes dead letters of them.",
            any_case("ignore", "warn", "fail", "report"),
            default="fail",
        ),
        Option("external.version.header", "The header with the version, instead of the offset."),
        Option("data.stream.type", "Write to a data stream.", any_case("none", "logs", "metrics"), default="none"),
        Option("data.stream.dataset", "The data stream's dataset."),
        Option("data.stream.namespace", "The data stream's namespace; `${topic}` is the topic.", default="${topic}"),
        Option("data.stream.timestamp.field", "Fields for @timestamp, best first; else the record's timestamp.", NAMES),
        Option("elastic.https.ssl.*", f"{_NO_EFFECT} Certificates are checked with the authorities of the system."),
        Option("elastic.security.protocol", f"{_NO_EFFECT} The URL says it."),
        *(Option(name, f"{_NO_EFFECT} {why}") for name, why in _WITHOUT_EFFECT.items()),
    )


def _build(config: ConnectorConfig) -> SinkParts:
    values = config.values
    is_stream = values["data.stream.type"] != "none"
    is_upsert = values["write.method"] == "upsert" and not is_stream
    malformed = values["behavior.on.malformed.documents"]
    options = {
        "url": config.unresolved("connection.url"),
        "index column": Given("_index"),
        "key": Given("_id"),
        "delete": Given("_is_delete"),
        "document": Given("_document"),
        "write": Given("upsert" if is_upsert else "create" if is_stream else "index"),
        "malformed documents": Given("fail" if malformed == "report" else malformed),
        "batch rows": Given(values["batch.size"]),
        "batch bytes": Given(values["bulk.size.bytes"]),
        "max retries": Given(values["max.retries"]),
        "retry backoff": Given(f"{values['retry.backoff.ms']} ms"),
        "timeout": Given(f"{values['read.timeout.ms']} ms"),
    }
    if not is_upsert and not is_stream:
        options["version"] = Given("_version")
    for key, option in (("connection.username", "user"), ("connection.password", "password")):
        if key in config.given:
            options[option] = config.unresolved(key)
    return SinkParts("elasticsearch", options, lambda frame: documents(frame, values))


def documents(frame: DataFrame, values: Mapping[str, Value]) -> DataFrame:
    """Records as rows with the columns that the options name."""
    from pyspark.sql import functions as F  # noqa: N812

    nulls = values["behavior.on.null.values"]
    is_null = F.col("value").isNull()
    if nulls == "ignore":
        frame = frame.where(~is_null)
    if nulls == "fail":
        failed = F.raise_error(F.lit("the value of a record is null: see behavior.on.null.values")).cast("boolean")
        frame = frame.where(F.when(is_null, failed).otherwise(F.lit(True)))
    is_stream = values["data.stream.type"] != "none"
    document = _with_timestamp(frame, values) if is_stream else json_text(frame, "value").cast("string")
    return frame.select(
        _index(values).alias("_index"),
        _id(frame, values).alias("_id"),
        _version(values).alias("_version"),
        F.col("value").isNull().alias("_is_delete"),
        document.alias("_document"),
    )


def _index(values: Mapping[str, Value]) -> Column:
    """Names of indices have small letters, and begin with a letter or a digit."""
    from pyspark.sql import functions as F  # noqa: N812

    topic = F.regexp_replace(F.lower("topic"), "^[-_+]+", "")
    kind = values["data.stream.type"]
    if kind == "none":
        return topic
    before, template, after = values["data.stream.namespace"].partition("${topic}")
    namespace = F.concat(F.lit(before), topic, F.lit(after)) if template else F.lit(before)
    return F.concat(F.lit(f"{kind}-{values['data.stream.dataset']}-"), namespace)


def _id(frame: DataFrame, values: Mapping[str, Value]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

    by_offset = F.concat_ws("+", "topic", "partition", "offset")
    if values["key.ignore"]:
        return by_offset
    kind = frame.schema["key"].dataType
    if isinstance(kind, StructType | MapType | ArrayType):
        raise ConfigError(
            f"the key of a document has to be a single value, and here it is {kind.simpleString()}: take a field of it "
            "with the transform ExtractField$Key, or set key.ignore=true"
        )
    key = F.decode("key", "utf-8") if isinstance(kind, BinaryType) else F.col("key").cast("string")
    missing = F.raise_error(F.lit("a record has no key for the document's id: see key.ignore")).cast("string")
    key = F.coalesce(key, missing)
    ignored = list(values.get("topic.key.ignore", ()))
    return F.when(F.col("topic").isin(ignored), by_offset).otherwise(key) if ignored else key


def _version(values: Mapping[str, Value]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    header = values.get("external.version.header")
    if header:
        found = F.filter("headers", lambda one: one["key"] == header)
        return F.try_element_at(found, F.lit(1))["value"].cast("string").cast("bigint")
    # An id of topic+partition+offset has one version only.
    return F.col("offset") if not values["key.ignore"] else F.lit(None).cast("bigint")


def _with_timestamp(frame: DataFrame, values: Mapping[str, Value]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StructType

    kind = frame.schema["value"].dataType
    if not isinstance(kind, StructType):
        raise ConfigError(f"a document of a data stream needs fields, and the value is {kind.simpleString()}")
    fields = [F.col(f"value.`{name}`") for name in values.get("data.stream.timestamp.field", ()) if name in kind.names]
    when = F.coalesce(
        *(field.cast("string") for field in fields), F.date_format("timestamp", "yyyy-MM-dd'T'HH:mm:ss.SSSXXX")
    )
    return F.to_json(F.col("value").withField("`@timestamp`", when), {"ignoreNullFields": "false"})


def _check(given: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    if given.get("data.stream.type", "none").lower() != "none" and not given.get("data.stream.dataset"):
        yield "data.stream.dataset", "data.stream.type needs it"
    for key, other in (("connection.username", "connection.password"), ("connection.password", "connection.username")):
        if given.get(key) and not given.get(other):
            yield other, f"{key} needs it"
    is_upsert = given.get("write.method", "").lower() == "upsert"
    if is_upsert and given.get("key.ignore", "").lower() == "true":
        yield "write.method", "upsert needs keys: set key.ignore=false"


PLUGINS = (
    Plugin(
        ("io.confluent.connect.elasticsearch.ElasticsearchSinkConnector",),
        PluginKind.SINK,
        _options("fail"),
        _build,
        _check,
    ),
    Plugin(
        ("io.aiven.connect.elasticsearch.ElasticsearchSinkConnector",),
        PluginKind.SINK,
        _options("ignore"),
        _build,
        _check,
    ),
)
