"""A configuration becomes a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moldau.errors import ConfigError
from moldau.pipelines.doors.connect import catalog
from moldau.pipelines.doors.connect.door import to_pipeline
from moldau.pipelines.doors.connect.plugins import Plugin, PluginKind
from moldau.pipelines.model.options import Given, Option, OptionTable
from moldau.pipelines.model.pipeline import Pipeline

JSON = "org.apache.kafka.connect.json.JsonConverter"
WORKER = {
    "bootstrap.servers": "broker:9092",
    "security.protocol": "SASL_SSL",
    "sasl.jaas.config": "${file:secrets.properties:jaas}",
    "key.converter": JSON,
    "value.converter": JSON,
    "offset.flush.interval.ms": "10000",
    "consumer.max.poll.records": "7",
}
SOURCE = {"connector.class": "FileStreamSource", "file": "a.txt", "topic": "t"}
SINK = {"connector.class": "FileStreamSink", "file": "a.txt", "topics": "t.1, t2"}


def made(config: dict[str, str], **more: str) -> Pipeline:
    return to_pipeline("c", config | more, WORKER, "/state", Path("/folder"))


def values(given: Any) -> dict[str, object]:
    return {name: one.value for name, one in given.items()}


def test_a_source_connector_writes_bytes_to_its_topic() -> None:
    pipeline = made(SOURCE)
    assert (pipeline.name, pipeline.folder) == ("c", Path("/folder"))
    (source,), (sink,) = pipeline.sources, pipeline.sinks
    assert source.connector == "lines"
    assert [(step.name, step.inputs) for step in pipeline.steps] == [
        ("file_records", ("file",)),
        ("file_converter", ("file_records",)),
    ]
    assert (sink.view, sink.connector, values(sink.options)) == ("file_converter", "topic", {"format": "bytes"})


def test_a_sink_connector_reads_its_topics_as_its_group() -> None:
    (source,) = made(SINK).sources
    options = values(source.options)
    assert options["subscribePattern"] == r"t\.1|t2"
    assert options["commitGroupId"] == "connect-c"
    assert options["startingOffsets"] == "earliest"
    assert options["kafka.max.poll.records"] == "7"
    (sink,) = made(SINK).sinks
    assert (sink.connector, values(sink.options)) == ("lines", {"path": "a.txt", "format": "text"})
    assert len(sink.batch_steps) == 2


def test_client_settings_of_the_connector_win_over_those_of_the_worker() -> None:
    override = {"consumer.override.max.poll.records": "9", "consumer.override.auto.offset.reset": "latest"}
    options = values(made(SINK | override).sources[0].options)
    assert (options["kafka.max.poll.records"], options["startingOffsets"]) == ("9", "latest")
    assert "kafka.auto.offset.reset" not in options


def test_settings_are_the_clients_of_the_worker_with_secrets_unresolved() -> None:
    assert values(made(SOURCE).settings) == {
        "checkpoint": "/state",
        "kafka.bootstrap.servers": "broker:9092",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.jaas.config": "${file:secrets.properties:jaas}",
    }


def test_a_source_connector_creates_topics_if_it_says_how() -> None:
    creation = {"topic.creation.default.partitions": "3", "topic.creation.default.replication.factor": "-1"}
    assert [len(made(config).sinks[0].batch_steps) for config in (SOURCE, SOURCE | creation)] == [0, 1]


def test_the_longest_pause_between_restarts_can_be_set() -> None:
    assert made(SOURCE, **{"errors.retry.delay.max.ms": "500"}).settings["restart delay max"] == Given("500 ms")


def test_a_connector_may_have_any_name() -> None:
    assert to_pipeline("a/b 100%", SOURCE, WORKER, "/state").name == "a%2Fb 100%25"


def test_dead_letters_need_tolerance() -> None:
    letters = {"errors.deadletterqueue.topic.name": "dead"}
    assert "dead letters" not in made(SINK | letters).settings
    assert made(SINK | letters, **{"errors.tolerance": "all"}).settings["dead letters"] == Given("dead")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"file": "a"}, "connector c has no connector.class"),
        (
            SOURCE | {"connector.class": "FileStreamSorce"},
            "did you mean org.apache.kafka.connect.file.FileStreamSource",
        ),
        ({"connector.class": "FileStreamSource", "file": "a"}, "connector c needs the option 'topic'"),
        ({"connector.class": "FileStreamSource", "topic": "t"}, "file: reading standard input is not supported"),
        ({"connector.class": "FileStreamSink", "topics": "t"}, "file: writing to standard output is not supported"),
        ({"connector.class": "FileStreamSink", "file": "a"}, "Must configure one of topics or topics.regex"),
        (SOURCE | {"tasks.max": "0"}, "tasks.max '0': expected a whole number, 1 or more"),
        (SOURCE | {"value.converter": "AvroConverter"}, "AvroConverter needs a schema registry"),
        (SOURCE | {"key.converter": "JsonConvertor"}, f"key.converter: .* did you mean {JSON}"),
        (SOURCE | {"transforms": "x"}, "connector c: transform x has no type"),
        (SOURCE | {"transforms": "x", "transforms.x.type": "Nonsense"}, "transform x: there is no transformation"),
    ],
)
def test_what_cannot_run_is_refused_before_it_starts(config: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(config)


def test_a_misspelt_key_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    made(SOURCE, **{"tasks.mx": "1"})
    assert caplog.messages == ["connector c: unknown key tasks.mx is ignored: did you mean tasks.max?"]


def test_transforms_get_their_options_and_their_predicate(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, Any]] = []

    def build(values: Any, predicate: Any) -> Any:
        seen.append((values, predicate and predicate("frame")))
        return lambda frame: frame

    plugins = (
        *(one for one in catalog.all_plugins() if one.kind not in (PluginKind.TRANSFORMATION, PluginKind.PREDICATE)),
        Plugin(("x.Mark",), PluginKind.TRANSFORMATION, OptionTable.of(Option("with", "Sign.", default="!")), build),
        Plugin(("x.Every",), PluginKind.PREDICATE, OptionTable.of(Option("n", "Number.")), lambda _: lambda _: 0),
    )
    monkeypatch.setattr(catalog, "all_plugins", lambda: plugins)
    catalog._by_name.cache_clear()
    try:
        pipeline = made(
            SOURCE,
            **{
                "transforms": "a, b",
                "transforms.a.type": "x.Mark",
                "transforms.b.type": "Mark",
                "transforms.b.with": "?",
                "transforms.b.predicate": "p",
                "transforms.b.negate": "true",
                "predicates": "p",
                "predicates.p.type": "x.Every",
            },
        )
    finally:
        catalog._by_name.cache_clear()
    assert seen == [({"with": "!"}, None), ({"with": "?"}, ~0)]
    assert [step.name for step in pipeline.steps] == [
        "file_records",
        "file_transform_a",
        "file_transform_b",
        "file_converter",
    ]
