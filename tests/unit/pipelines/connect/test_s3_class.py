"""Confluent's S3 connectors: their keys become options of the pipelines' connector `s3`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from moldau.errors import ConfigError
from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.doors.connect.catalog import find_plugin
from moldau.pipelines.doors.connect.plugins import ConnectorConfig, PluginKind, SinkParts
from moldau.pipelines.model.options import Given

NAME = "io.confluent.connect.s3.S3SinkConnector"
CONFIG = {
    "s3.bucket.name": "shop",
    "s3.region": "eu-central-1",
    "flush.size": "3",
    "format.class": "io.confluent.connect.s3.format.json.JsonFormat",
}
PARTITIONER = "io.confluent.connect.storage.partitioner."
PLUGIN = find_plugin(NAME, PluginKind.SINK)


def parts(**more: str) -> SinkParts:
    config = CONFIG | {key.replace("_", "."): value for key, value in more.items()}
    given = {key: Given(value) for key, value in config.items() if PLUGIN.options.find(key)}
    for problem in PLUGIN.options.check(given, "connector c", None):
        raise ConfigError(problem.message)
    found = PLUGIN.build(ConnectorConfig("c", config, PLUGIN.options.values(given)))
    assert isinstance(found, SinkParts)
    return found


def options(**more: str) -> dict[str, Any]:
    return {name: given.value for name, given in parts(**more).options.items()}


def complaints(config: Mapping[str, str]) -> list[tuple[str, str]]:
    return list(PLUGIN.check(CONFIG | dict(config)))


def test_the_quickstart_becomes_json_named_by_offsets() -> None:
    assert options() == {
        "url": "s3://shop/topics",
        "names": "offsets",
        "value": "value",
        "format": "json",
        "compression": "none",
        "null fields": False,
        "flush rows": 3,
        "files": "1",
        "path style": True,
        "region": "eu-central-1",
    }
    assert complaints({}) == []


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"format_class": "io.confluent.connect.s3.format.avro.AvroFormat"}, {"format": "avro", "compression": "none"}),
        (
            {"format_class": "io.confluent.connect.s3.format.avro.AvroFormat", "avro_codec": "deflate"},
            {"compression": "deflate"},
        ),
        (
            {"format_class": "io.confluent.connect.s3.format.parquet.ParquetFormat"},
            {"format": "parquet", "compression": "snappy"},
        ),
        (
            {
                "format_class": "io.confluent.connect.s3.format.bytearray.ByteArrayFormat",
                "s3_compression_type": "gzip",
                "format_bytearray_separator": "|",
            },
            {"format": "bytes", "compression": "gzip", "separator": "|"},
        ),
        (
            {"partitioner_class": f"{PARTITIONER}FieldPartitioner", "partition_field_name": "country,city"},
            {"partition by": ["country", "city"]},
        ),
        (
            {"partitioner_class": f"{PARTITIONER}HourlyPartitioner", "timestamp_extractor": "Record"},
            {
                "partition time": "timestamp",
                "path format": "'year'=YYYY/'month'=MM/'day'=dd/'hour'=HH",
                "time zone": "UTC",
            },
        ),
        (
            {"partitioner_class": f"{PARTITIONER}DailyPartitioner", "timezone": "Europe/Prague"},
            {"partition time": "now", "path format": "'year'=YYYY/'month'=MM/'day'=dd", "time zone": "Europe/Prague"},
        ),
        (
            {
                "partitioner_class": f"{PARTITIONER}TimeBasedPartitioner",
                "path_format": "YYYY/MM",
                "partition_duration_ms": "600000",
                "timestamp_extractor": "RecordField",
                "timestamp_field": "meta.at",
                "locale": "en-US",
            },
            {"partition time": "value.`meta`.`at`", "path format": "YYYY/MM", "partition duration": "600000 ms"},
        ),
        ({"store_url": "http://localhost:9000", "topics_dir": "a/b/"}, {"store url": "http://localhost:9000"}),
        ({"topics_dir": "a/b/"}, {"url": "s3://shop/a/b"}),
        ({"tasks_max": "4"}, {"files": "4"}),
    ],
)
def test_keys_become_options_that_lint_accepts(more: dict[str, str], expected: dict[str, Any]) -> None:
    found = options(**more)
    assert found.items() >= expected.items()
    sink = connector("s3")
    assert sink.sink_options is not None
    given = {name: Given(value) for name, value in found.items()}
    assert [*sink.sink_options.check(given, "sink", None), *sink.check(given, is_source=False)] == []


def test_secrets_stay_references() -> None:
    keys = {"aws_access_key_id": "${env:A}", "aws_secret_access_key": "${file:/s:k}", "s3_bucket_name": "${env:B}"}
    found = options(**keys)
    assert (found["access key"], found["secret key"]) == ("${env:A}", "${file:/s:k}")
    assert found["url"] == "s3://${env:B}/topics"


@pytest.mark.parametrize(
    ("more", "delay"),
    [
        ({}, "60000ms"),
        ({"rotate_interval_ms": "5000"}, "5000ms"),
        ({"rotate_interval_ms": "5000", "rotate_schedule_interval_ms": "700"}, "700ms"),
    ],
)
def test_records_are_collected_until_an_object_is_full_or_its_time_is_over(more: dict[str, str], delay: str) -> None:
    found = parts(**more).source
    assert {name: given.value for name, given in found.items()} == {"minOffsetsPerTrigger": 3, "maxTriggerDelay": delay}


@pytest.mark.parametrize(
    ("config", "key", "message"),
    [
        ({"store.kafka.keys": "true"}, "store.kafka.keys", "only values are stored"),
        ({"store.kafka.headers": "true"}, "store.kafka.headers", "only values are stored"),
        ({"behavior.on.null.values": "write"}, "behavior.on.null.values", "tombstones are not stored"),
        ({"partitioner.class": f"{PARTITIONER}FieldPartitioner"}, "partition.field.name", "needs it"),
        ({"partitioner.class": f"{PARTITIONER}TimeBasedPartitioner"}, "path.format", "needs it"),
        ({"aws.access.key.id": "x"}, "aws.access.key.id", "belong together"),
        (
            {
                "topics": "a,b",
                "transforms": "r",
                "transforms.r.type": "org.apache.kafka.connect.transforms.RegexRouter",
            },
            "transforms",
            "named by topic and offset",
        ),
    ],
)
def test_what_is_not_supported_says_so(config: dict[str, str], key: str, message: str) -> None:
    ((found, text),) = complaints(config)
    assert found == key
    assert message in text


def test_one_topic_may_be_routed_since_its_offsets_stay_unique() -> None:
    assert complaints({"topics": "a", "transforms": "r", "transforms.r.type": "RegexRouter"}) == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"format_class": "com.example.MyFormat"}, "expected one of io.confluent.connect.s3.format"),
        ({"partitioner_class": "com.example.Mine"}, f"expected one of {PARTITIONER}DefaultPartitioner"),
        ({"path_format": "EEE"}, "'EEE' in a path format"),
        ({"timezone": "Nowhere"}, "unknown time zone"),
        ({"flush_size": "0"}, "whole number, 1 or more"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(more: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parts(**more)


def test_the_alias_finds_it() -> None:
    assert find_plugin("S3Sink", PluginKind.SINK) is PLUGIN


def test_the_source_reads_what_the_sink_stored() -> None:
    plugin = find_plugin("io.confluent.connect.s3.source.S3SourceConnector", PluginKind.SOURCE)
    config = {name: CONFIG[name] for name in CONFIG if name != "flush.size"} | {
        "aws.secret.access.key": "${env:S}",
        "s3.poll.interval.ms": "500",
    }
    values = plugin.options.values({name: Given(value) for name, value in config.items()})
    (source,) = plugin.build(ConnectorConfig("c", config, values)).sources
    assert {name: given.value for name, given in source.options.items()} == {
        "url": "s3://shop/topics",
        "format": "json",
        "metadata": "object",
        "poll": "500 ms",
        "path style": True,
        "region": "eu-central-1",
        "secret key": "${env:S}",
    }
    ((key, message),) = plugin.check(config)
    assert key == "aws.access.key.id"
    assert "belong together" in message
