"""Topics of any Kafka, through Spark's data source `moldau`: typed columns in, typed columns out, exactly once.

A source with a `format` has the fields of the value as columns; what else a record has comes as columns with Spark's
names when `metadata` asks for it, because every column that is read costs time. A sink writes all columns as the value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from moldau.errors import ErrorCode, KafkaError
from moldau.pipelines.connectors.base import (
    BatchSink,
    Connector,
    Guarantee,
    ReadRequest,
    Request,
    StreamSink,
    WriteRequest,
)
from moldau.pipelines.model.kinds import BOOLEAN, SQL, choice, names_of, whole
from moldau.pipelines.model.options import Given, Option, OptionTable, Value
from moldau.pipelines.model.places import Problem
from moldau.spark.options import option_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.datasource import DataSource

_METADATA = ("key", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_RAW = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
_RAW_TYPES = dict(column.split(" ") for column in _RAW.split(", ")) | {
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>"
}
# For queries of the engine: the whole record beside the columns, under a name that no user's column has.
RECORD = "__record"
_RECORD_COLUMNS = ("topic", "partition", "offset", "timestamp", "headers")
_BYTES = {"rawKey": "key", "rawValue": "value"}  # beside the typed columns
_SUBSCRIPTIONS = ("topic", "subscribe", "subscribePattern", "assign")
_KAFKA = Option("kafka.*", "Client properties with Kafka's names after `kafka.`; they win over the settings.")
_FORMATS = ("json", "string", "avro", "protobuf")
BYTES = "bytes"  # of a sink: records as they are
_PASSED_TO_SOURCE = OptionTable.of(
    Option("subscribe", "Several topics, with commas between.", example="clicks,orders"),
    Option("subscribePattern", "Topics by regular expression.", example="clicks-.*"),
    Option("assign", 'Partitions: `{"clicks": [0, 1]}`.'),
    Option("startingOffsets", "Where a new pipeline starts: `earliest`, `latest`, or JSON.", default="earliest"),
    Option("startingTimestamp", "Where a new pipeline starts, in milliseconds."),
    Option("maxOffsetsPerTrigger", "Most records in a micro-batch.", whole(1)),
    Option("minOffsetsPerTrigger", "Wait for this many records, at most `maxTriggerDelay`.", whole(1)),
    Option("maxTriggerDelay", "Longest wait for `minOffsetsPerTrigger`.", example="15m"),
    Option(
        "minPartitions", "Read with at least this many tasks; a `static` source has one for each partition.", whole(1)
    ),
    Option("maxRecordsPerPartition", "Most records of one task; not for a `static` source.", whole(1)),
    Option("failOnDataLoss", "Fail if records were deleted before they were read.", BOOLEAN, default=True),
    Option("value.writer.schema", "Avro: the schema of the producers, if it differs."),
    Option("value.descriptor", "Protobuf: a descriptor file of `protoc`."),
    Option("value.message", "Protobuf: the message type."),
    Option("key.format", "Format of the key: json, string, avro or protobuf.", choice(*_FORMATS)),
    Option("key.schema", "Columns and types of the key."),
    Option("commitGroupId", "Consumer group that shows the lag; by default `<pipeline>.<query>.<source>`."),
    Option(
        "errors.tolerance",
        "`skip` leaves out records that cannot be decoded. By default they go to the dead letters or, if the settings "
        "name no topic for them, fail the query (`none`).",
        choice("none", "skip"),
    ),
    _KAFKA,
)
_PASSED_TO_SINK = (
    "topic",
    "processing.guarantee",
    "transactionalIdPrefix",
    "failOnDoubt",
    "value.descriptor",
    "value.message",
)
_STARTS = ("startingOffsets", "startingTimestamp")
_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "commitGroupId")
# A query that cannot reach its brokers says so soon, and is restarted until it can. Clients try for a minute.
_PATIENCE = {"kafka.default.api.timeout.ms": "20000"}
# Only a preview infers it: what is inferred from other records at the next start may not fit the steps.
NEEDS_SCHEMA = "format json needs a schema"
_TOPIC_CREATION = "topic.creation.default."  # as in Kafka Connect
_OF_TYPED_RECORDS = ("key", "partition", "timestamp", "tombstone", "schema")


class TopicConnector(Connector):
    name = "topic"
    summary = "A topic of any Kafka."
    guarantee = Guarantee.EXACTLY_ONCE
    identity = _SUBSCRIPTIONS
    can_start_at = True
    can_share = True
    origin = ("topic", "partition", "offset")
    sink_expressions = ("key", "partition", "timestamp", "tombstone")
    source_options = (
        OptionTable.of(
            Option("topic", "The topic to read.", example="clicks"),
            Option(
                "format",
                "Format of the value; json needs a `schema`. Without it, columns are those of Spark's Kafka source.",
                choice(*_FORMATS),
            ),
            Option(
                "metadata",
                f"Columns besides the value's: {', '.join(_METADATA)}.",
                names_of(*_METADATA, hidden=RECORD),
                example="key, timestamp",
            ),
        )
        + _PASSED_TO_SOURCE
    )
    sink_options = OptionTable.of(
        Option(
            "topic", "The topic to write to. With `format: bytes` a column `topic` can say it.", example="page-counts"
        ),
        Option("key", "Column or SQL expression for the key.", SQL, example="page"),
        Option(
            "format",
            "Format of the value: all columns, as one record. `bytes`: the columns are those of Spark's Kafka sink "
            "(key, value, headers, topic, partition) and `timestamp`, and are written as they are.",
            choice(*_FORMATS, BYTES),
            default="json",
        ),
        Option("schema", "Avro: the schema to write."),
        Option(
            "partition",
            "SQL expression for the partition; by default the key decides.",
            SQL,
            example="IF(level = 'critical', 0, 1)",
        ),
        Option("timestamp", "Column or SQL expression for the timestamp; by default now.", SQL),
        Option(
            "tombstone",
            "SQL condition: rows that meet it are written as a key without a value.",
            SQL,
            example="deleted",
        ),
        Option(
            "processing.guarantee",
            "exactly_once or at_least_once.",
            choice("exactly_once", "at_least_once"),
            default="exactly_once",
        ),
        Option("transactionalIdPrefix", "Prefix of transactional ids."),
        Option("failOnDoubt", "Fail if it is unknown whether a batch was written.", BOOLEAN, default=True),
        Option("value.descriptor", "Protobuf: a descriptor file of `protoc`."),
        Option("value.message", "Protobuf: the message type."),
        Option(f"{_TOPIC_CREATION}partitions", "Partitions, if the topic does not exist.", whole(1)),
        Option(f"{_TOPIC_CREATION}replication.factor", "Replicas, if the topic does not exist.", whole(1)),
        Option(f"{_TOPIC_CREATION}*", "Configuration of the topic, if it does not exist.", example="compact"),
        _KAFKA,
    )
    source_example = "topic: clicks\nformat: json\nschema: page STRING, at TIMESTAMP\nwatermark: at 1 minute"
    sink_example = "topic: page-counts\nkey: page"

    def check(self, options: Mapping[str, Given], *, is_source: bool) -> Iterable[Problem]:
        if not is_source:
            yield from _check_sink(options)
            return
        given = [name for name in _SUBSCRIPTIONS if name in options]
        if len(given) != 1:
            found = f"it has {' and '.join(given)}" if given else "it has none"
            place = options[given[1]].place if len(given) > 1 else None
            yield Problem(f"a topic source needs exactly one of {', '.join(_SUBSCRIPTIONS)}: {found}", place)
        if "schema" in options and options.get("format", Given("string")).value == "string":
            message = "schema has no effect without a format that has fields: add for example `format: json`"
            yield Problem(message, options["schema"].place)
        if "schema" not in options and options.get("format", Given(None)).value == "json":
            yield Problem(f"{NEEDS_SCHEMA}: add one, as `moldau pipeline preview` prints it", options["format"].place)

    def columns(self, options: Mapping[str, Value]) -> str | None:
        metadata = tuple(options.get("metadata", ()))
        has_fields = options.get("format") == "json" and "schema" in options
        names = metadata if has_fields else _columns_with_value(options, metadata)
        types = {name: _column_type(name, options) for name in names}
        if None in types.values():
            return None
        columns = [f"{name} {kind}" for name, kind in types.items()]
        return ", ".join([options["schema"], *columns] if has_fields else columns)

    def preview_options(self, options: Mapping[str, Value]) -> Iterable[Mapping[str, Value]]:
        return (options,) if "format" in options else ({**options, "format": "json"}, options)

    def read(self, request: ReadRequest) -> DataFrame:
        options = request.options
        metadata = tuple(options.get("metadata", ()))
        if options.get("static"):
            return self._read_table(request, metadata)
        if RECORD in metadata:
            return self._read_with_record(request, tuple(name for name in metadata if name != RECORD))
        shown = _columns_with_value(options, metadata)
        frame = self._load(request, shown)
        return frame.select(*_fields(frame, shown)) if "format" in options else frame

    def _read_table(self, request: ReadRequest, metadata: tuple[str, ...]) -> DataFrame:
        """The last record of each key, unless it is a tombstone; records without a key are a row each."""
        from pyspark.sql import functions as F  # noqa: N812

        from moldau.pipelines.connectors.readers.topic_table import TopicTableSource

        names = tuple(dict.fromkeys((*metadata, "key", "partition", "offset")))
        # Read with each batch, a bad record would become a dead letter each time: it is an error instead.
        all_options = {**request.options, "metadata": names}
        wanted = replace(request, options=all_options, dead_letters=None)
        shown = _columns_with_value(request.options, metadata)
        frame = self._load(wanted, tuple(dict.fromkeys((*shown, *names))), TopicTableSource)
        last = F.max_by(F.struct(*shown), "offset").alias("last")
        without_key = F.when(F.col("key").isNull(), F.struct("partition", "offset"))
        frame = frame.groupBy("key", without_key).agg(last).where("last.value IS NOT NULL").select("last.*")
        return frame.select(*_fields(frame, shown))

    def _read_with_record(self, request: ReadRequest, metadata: tuple[str, ...]) -> DataFrame:
        """The columns of `read`, and one more with the record as it is in the topic."""
        from pyspark.sql import functions as F  # noqa: N812

        shown = _columns_with_value(request.options, metadata)
        raw = (*(_BYTES if "format" in request.options else _BYTES.values()), *_RECORD_COLUMNS)
        frame = self._load(request, tuple(dict.fromkeys((*shown, *raw))))
        record = F.struct(*(F.col(name).alias(_BYTES.get(name, name)) for name in raw)).alias(RECORD)
        return frame.select(*_fields(frame, shown), record)

    def _load(
        self, request: ReadRequest, columns: Sequence[str], source: str | type[DataSource] = "moldau"
    ) -> DataFrame:
        options = source_options(request)
        types = {name: _column_type(name, request.options) for name in columns}
        if None not in types.values():
            schema = ", ".join(f"{name} {kind}" for name, kind in types.items())
            return request.loader(source).options(**options).schema(schema).load()
        known = request.loader(source).options(**options).load().schema  # asks the topic
        chosen = type(known)()
        for name in columns:
            chosen = chosen.add(known[name]) if name in known.names else chosen.add(name, _RAW_TYPES[_BYTES[name]])
        return request.loader(source).options(**options).schema(chosen).load()

    def write(self, request: WriteRequest) -> StreamSink | BatchSink:
        options = sink_options(request)

        def records(rows: DataFrame) -> DataFrame:
            return _records(rows, request.options)

        def trial(rows: DataFrame) -> DataFrame:
            from moldau.pipelines.connectors.writers.record_sizes import refuse_large

            return refuse_large(rows, options)

        if request.mode == "append" and not request.is_shared:
            return StreamSink("moldau", options, rows=records, trial=trial)
        import moldau.spark

        # Spark has no update mode for sinks in Python.
        return BatchSink(moldau.spark.batch_sink(**options), rows=records, trial=trial)

    def continues(self, before: Mapping[str, str], now: Mapping[str, str]) -> bool:
        """More topics may join; one that goes would be lost records."""
        return bool(_topics(before)) and _topics(before) <= _topics(now)

    def start_at(self, position: str) -> str:
        return _plain_offsets(position)

    def backlog(self, request: ReadRequest, position: str | None) -> int | None:
        from moldau.spark.options import Options
        from moldau.spark.source.offsets import StreamOffset
        from moldau.spark.source.planning import TopicOffsets
        from moldau.spark.source.read_options import ReadOptions

        at = position if position and position.startswith("{") else None
        start = None if at else position
        options = ReadOptions.for_stream(Options(source_options(replace(request, start=start))))
        topics = TopicOffsets(options)
        known = StreamOffset.from_json(json.loads(at)).positions if at else {}
        ends = topics.ends_now(known)
        topics.refuse_missing(ends)
        starts = known or topics.resolve(options.start, ends, options.latest_without_match)
        joined = topics.earliest([each for each in ends if each not in starts])
        return sum(max(end - starts.get(each, joined.get(each, 0)), 0) for each, end in ends.items())

    def sink_notes(self, request: WriteRequest) -> Iterable[str]:
        from moldau.spark.connections import ask_patiently
        from moldau.spark.options import Options

        if "topic" not in request.options:
            return
        client, topic = Options(kafka_options(request)).client_config("moldau-pipelines"), request.options["topic"]
        found = ask_patiently(client, lambda cluster: cluster.metadata([topic]).topics.get(topic))
        if found is None or found.error:
            yield f"topic {topic} does not exist yet: it is created with the first record, if the broker allows that"

    def hold_ms(self, options: Mapping[str, Value]) -> int:
        if "minOffsetsPerTrigger" not in options:
            return 0
        from moldau.spark.source.read_options import delay_ms

        return int(delay_ms("maxTriggerDelay", str(options.get("maxTriggerDelay", "15m"))))

    def prepare(self, request: Request) -> None:
        """Create the sink's topic if options say how; otherwise the broker does when it is first written to."""
        if not isinstance(request, WriteRequest):
            return
        wanted = {
            name.removeprefix(_TOPIC_CREATION): str(value)
            for name, value in request.options.items()
            if name.startswith(_TOPIC_CREATION)
        }
        if wanted and "topic" in request.options:
            create_topic_if_missing(kafka_options(request), request.options["topic"], wanted)


def _check_sink(options: Mapping[str, Given]) -> Iterable[Problem]:
    is_bytes = options.get("format", Given("json")).value == BYTES
    if "topic" not in options and not is_bytes:
        yield Problem("it needs the option 'topic': add for example `topic: page-counts`")
    for name in _OF_TYPED_RECORDS if is_bytes else ():
        if name in options:
            yield Problem(f"{name} has no effect with `format: bytes`: make it a column", options[name].place)


def kafka_options(request: Request) -> dict[str, str]:
    """`kafka.*` options: the settings of the pipeline, overridden by those of the source or sink."""
    own = {name: option_text(value) for name, value in request.options.items() if name.startswith("kafka.")}
    return {"kafka.bootstrap.servers": "localhost:9092", **request.kafka, **own}


def source_options(request: ReadRequest) -> dict[str, str]:
    """The options of `format("moldau")`."""
    given = {**request.options, **({"errors.tolerance": "skip"} if request.skips_bad else {})}
    passed = {name: option_text(given[name]) for name in _PASSED_TO_SOURCE.names if name in given}
    if "topic" in given:
        passed["subscribe"] = given["topic"]
    if "format" in given:
        passed = _format_options(request) | passed
    if {"headers", RECORD} & {*given.get("metadata", ())} or "format" not in given:
        passed["includeHeaders"] = "true"
    if not request.is_streaming:
        passed = {name: value for name, value in passed.items() if name not in _STREAM_ONLY}
    else:
        # Of this query alone: another may read the same source, and be elsewhere.
        names = (request.pipeline, request.query, request.name)
        passed.setdefault("commitGroupId", ".".join(name for name in names if name))
        if request.idle_wait_ms:
            passed["idleWaitMs"] = str(request.idle_wait_ms)
            passed["idleWaitTopics"] = ",".join(request.idle_wait_topics)
    if request.start is not None:
        passed = {name: value for name, value in passed.items() if name != "startingTimestamp"}
        passed["startingOffsets"] = _plain_offsets(request.start)
    if request.excluded is not None:
        passed["excludedOffsets"] = request.excluded
    if request.part is not None:
        passed = {name: value for name, value in passed.items() if name not in (*_SUBSCRIPTIONS, *_STARTS)}
        passed |= _part_options(request.part)
    return _PATIENCE | kafka_options(request) | passed


def _format_options(request: ReadRequest) -> dict[str, str]:
    given = request.options
    options = {"value.format": str(given["format"])}
    if "schema" in given:
        options["value.schema"] = given["schema"]
    if "key" in given.get("metadata", ()):
        options["key.format"] = "string"
    # A bad record goes to the dead letters, or it fails the query: it never becomes a row of nulls.
    options["errors.tolerance"] = "all" if request.dead_letters else "none"
    if request.dead_letters:
        options["errors.deadletterqueue.headers"] = json.dumps(letter_headers(request))
        if "errors.tolerance" not in given:
            options["errors.deadletterqueue.topic.name"] = request.dead_letters
    return options


def letter_headers(request: ReadRequest) -> dict[str, str]:
    """Besides Kafka Connect's: whose dead letter it is."""
    return {"moldau.pipeline": request.pipeline, "moldau.query": request.query, "moldau.source": request.name}


def _part_options(part: str) -> dict[str, str]:
    """For these ranges alone: partitions, where to start and end in each, and the gaps between."""
    ranges = json.loads(part)
    partitions = {
        topic: {index: sorted(parts) for index, parts in found.items() if parts} for topic, found in ranges.items()
    }
    gaps = {
        topic: {index: [[one[1], two[0]] for one, two in pairwise(parts)] for index, parts in found.items()}
        for topic, found in partitions.items()
    }
    return {
        "assign": json.dumps({topic: [int(index) for index in found] for topic, found in partitions.items()}),
        "startingOffsets": json.dumps(_bounds(partitions, lambda parts: parts[0][0])),
        "endingOffsets": json.dumps(_bounds(partitions, lambda parts: parts[-1][1])),
        "excludedOffsets": json.dumps(gaps),
    }


def _bounds(
    partitions: Mapping[str, Mapping[str, list[list[int]]]], bound: Callable[[list[list[int]]], int]
) -> dict[str, dict[str, int]]:
    return {topic: {index: bound(parts) for index, parts in found.items()} for topic, found in partitions.items()}


def _plain_offsets(text: str) -> str:
    """A checkpoint has notes beside the topics, in keys that no topic has."""
    if not text.startswith("{"):
        return text
    return json.dumps({topic: parts for topic, parts in json.loads(text).items() if not topic.startswith("(")})


def _topics(options: Mapping[str, str]) -> set[str]:
    """The topics that are named; none if they are a pattern or partitions."""
    text = options.get("topic") or options.get("subscribe") or ""
    return {name.strip() for name in text.split(",") if name.strip()}


def sink_options(request: WriteRequest) -> dict[str, str]:
    names = _PASSED_TO_SINK
    given = {name: option_text(request.options[name]) for name in names if name in request.options}
    if request.options["format"] not in ("string", BYTES):
        given["value.format"] = request.options["format"]
    if "schema" in request.options:
        given["value.schema"] = request.options["schema"]
    if request.is_new:
        given["failOnDoubt"] = "false"
    if request.is_shared and request.checkpoint.rpartition("/")[2] != request.name:
        given["txnAppId"] = request.name  # several sinks may write to one topic; the query's first one has its id
    return kafka_options(request) | given


def _records(rows: DataFrame, options: Mapping[str, Value]) -> DataFrame:
    """Rows as records: the value holds all columns; key, partition and timestamp are expressions over them."""
    from pyspark.sql import functions as F  # noqa: N812

    if options["format"] == BYTES:
        return rows
    value = F.col("value") if options["format"] == "string" else F.struct("*")
    if "tombstone" in options:
        value = F.when(~F.coalesce(F.expr(options["tombstone"]), F.lit(False)), value)
    types = {"key": "string", "partition": "int", "timestamp": "timestamp"}
    columns = [F.expr(options[name]).cast(kind).alias(name) for name, kind in types.items() if name in options]
    return rows.select(value.alias("value"), *columns)


def _columns_with_value(options: Mapping[str, Value], metadata: tuple[str, ...]) -> tuple[str, ...]:
    if "format" in options or metadata:
        return ("value", *metadata)
    return tuple(name for name in _RAW_TYPES if name != "headers")


def _fields(frame: DataFrame, columns: Iterable[str]) -> list[str]:
    """These columns, with the fields of a typed value in its place."""
    from pyspark.sql.types import StructType

    has_fields = isinstance(frame.schema["value"].dataType, StructType)
    return ["value.*" if has_fields and name == "value" else name for name in columns]


def _column_type(name: str, options: Mapping[str, Value]) -> str | None:
    """As in SQL; None if only the topic or a schema file can tell."""
    if name in _BYTES:
        return "BINARY"
    if name == "value" and "format" in options:
        if options["format"] == "string":
            return "STRING"
        return f"STRUCT<{options['schema']}>" if options["format"] == "json" and "schema" in options else None
    if name == "key" and "format" in options:
        return "STRING" if options.get("key.format", "string") == "string" else None
    return _RAW_TYPES[name]


def create_topic_if_missing(kafka: Mapping[str, str], topic: str, wanted: Mapping[str, str]) -> None:
    """Create it with these settings: `partitions`, `replication.factor` and configurations."""
    from moldau.client.admin import create_topic
    from moldau.client.cluster import ClusterClient
    from moldau.spark.options import Options

    config = dict(wanted)
    partitions, replicas = (config.pop(name, None) for name in ("partitions", "replication.factor"))
    with ClusterClient(Options(kafka).client_config("moldau-pipelines")) as cluster:
        try:
            create_topic(
                cluster,
                topic,
                partitions=int(partitions) if partitions else None,
                replication_factor=int(replicas) if replicas else None,
                configs=config,
            )
        except KafkaError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
