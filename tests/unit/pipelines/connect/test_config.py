"""The keys of every connector."""

from __future__ import annotations

import pytest

from moldau.pipelines.doors.connect.catalog import CONNECTORS, find_plugin
from moldau.pipelines.doors.connect.config import check_topics, keys_of, misspelt, type_name, with_worker_converters
from moldau.pipelines.model.kinds import has_reference

SOURCE = find_plugin("FileStreamSource", *CONNECTORS)
SINK = find_plugin("FileStreamSink", *CONNECTORS)


def test_sources_and_sinks_have_the_keys_of_connect_and_their_own() -> None:
    source = {key.option.name for key in keys_of(SOURCE)}
    sink = {key.option.name for key in keys_of(SINK)}
    assert {"name", "connector.class", "tasks.max", "errors.tolerance", "transforms", "predicates"} <= source & sink
    assert {"exactly.once.support", "topic.creation.groups", "topic", "batch.size"} <= source - sink
    assert {"topics", "topics.regex", "errors.deadletterqueue.topic.name"} <= sink - source


def test_types_have_the_names_of_connect() -> None:
    types = {key.option.name: type_name(key.option) for key in keys_of(SINK)}
    expected = {
        "name": "STRING",
        "tasks.max": "INT",
        "key.converter": "CLASS",
        "transforms": "LIST",
        "errors.retry.timeout": "LONG",
        "errors.log.enable": "BOOLEAN",
        "errors.deadletterqueue.topic.replication.factor": "SHORT",
    }
    assert expected.items() <= types.items()


def test_only_keys_that_look_misspelt_are_told() -> None:
    given = ["tasks.maxx", "topc", "whatever.else", "consumer.override.max.poll", "value.converter.schema.enable"]
    assert dict(misspelt(given, SOURCE)) == {"tasks.maxx": "tasks.max", "topc": "topic"}


def test_converters_of_the_worker_hold_where_the_connector_has_none() -> None:
    worker = {"key.converter": "K", "key.converter.x": "1", "value.converter": "V", "value.converter.y": "2"}
    merged = with_worker_converters({"value.converter": "Own"}, worker)
    assert merged["key.converter"] == "K"
    assert merged["key.converter.x"] == "1"
    assert merged["value.converter"] == "Own"
    assert "value.converter.y" not in merged


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        ({"topics": "a"}, []),
        ({"topics.regex": "a.*"}, []),
        ({}, ["topics", "topics.regex"]),
        ({"topics": " , "}, ["topics", "topics.regex"]),
        ({"topics": "a", "topics.regex": "b"}, ["topics", "topics.regex"]),
        ({"topics": "a,b", "errors.deadletterqueue.topic.name": "b"}, ["topics"]),
        ({"topics.regex": "a.*", "errors.deadletterqueue.topic.name": "a-dead"}, ["topics.regex"]),
        ({"topics.regex": "a.*", "errors.deadletterqueue.topic.name": "dead-a"}, []),
    ],
)
def test_a_sink_has_topics_or_a_pattern_and_never_reads_its_dead_letters(
    config: dict[str, str], keys: list[str]
) -> None:
    assert [key for key, _ in check_topics(config)] == keys


def test_a_name_with_the_topic_in_it_is_no_reference() -> None:
    assert not has_reference("kafka_${topic}")
