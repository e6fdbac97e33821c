"""`validate` answers what Connect answers."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.errors import ConfigError
from moldau.pipelines.doors.connect.catalog import CONNECTORS, all_plugins, find_plugin
from moldau.pipelines.doors.connect.validation import definitions, validate

GOOD = {"name": "c", "connector.class": "FileStreamSource", "file": "a.txt", "topic": "t"}
WORKER = {"value.converter": "org.apache.kafka.connect.json.JsonConverter"}


def errors_of(answer: dict[str, Any]) -> dict[str, list[str]]:
    return {one["value"]["name"]: one["value"]["errors"] for one in answer["configs"] if one["value"]["errors"]}


def entry(answer: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in answer["configs"] if one["value"]["name"] == name)


def test_a_good_configuration_has_no_errors_and_every_key_its_definition() -> None:
    answer = validate(GOOD, WORKER)
    assert (answer["name"], answer["error_count"]) == ("FileStreamSource", 0)
    assert answer["groups"][:2] == ["Common", "Transforms"]
    assert entry(answer, "tasks.max") == {
        "definition": {
            "name": "tasks.max",
            "type": "INT",
            "required": False,
            "default_value": "1",
            "importance": "HIGH",
            "documentation": "Most tasks of this connector.",
            "group": "Common",
            "order": 4,
            "width": "SHORT",
            "display_name": "Tasks max",
            "dependents": [],
        },
        "value": {"name": "tasks.max", "value": "1", "recommended_values": [], "errors": [], "visible": True},
    }
    assert entry(answer, "topic")["definition"] | {"documentation": ""} == {
        "name": "topic",
        "type": "STRING",
        "required": True,
        "default_value": None,
        "importance": "HIGH",
        "documentation": "",
        "group": None,
        "order": -1,
        "width": "NONE",
        "display_name": "topic",
        "dependents": [],
    }
    assert entry(answer, "value.converter")["value"]["value"] == WORKER["value.converter"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"tasks.max": "0"}, {"tasks.max": ["Invalid value 0 for configuration tasks.max: Value must be at least 1"]}),
        ({"tasks.max": "x"}, {"tasks.max": ["Invalid value x for configuration tasks.max: Not a number of type INT"]}),
        (
            {"errors.tolerance": "some"},
            {
                "errors.tolerance": [
                    "Invalid value some for configuration errors.tolerance: String must be one of: none, all"
                ]
            },
        ),
        (
            {"value.converter": "JsonConverter", "value.converter.schemas.enable": "1"},
            {
                "value.converter.schemas.enable": [
                    "Invalid value 1 for configuration value.converter.schemas.enable: "
                    "Expected value to be either true or false"
                ]
            },
        ),
        (
            {"transforms": "a"},
            {"transforms.a.type": ['Missing required configuration "transforms.a.type" which has no default value.']},
        ),
    ],
)
def test_a_wrong_value_is_told_in_the_words_of_connect(change: dict[str, str], expected: dict[str, list[str]]) -> None:
    answer = validate(GOOD | change, WORKER)
    assert errors_of(answer) == expected
    assert answer["error_count"] == 1


def test_a_missing_key_is_an_error_of_that_key() -> None:
    config = {key: value for key, value in GOOD.items() if key not in ("name", "topic")}
    assert errors_of(validate(config, WORKER)) == {
        name: [f'Missing required configuration "{name}" which has no default value.'] for name in ("name", "topic")
    }


def test_an_unknown_converter_is_an_error_with_the_nearest() -> None:
    (message,) = errors_of(validate(GOOD | {"key.converter": "JsnConverter"}, WORKER))["key.converter"]
    assert message.startswith("Invalid value JsnConverter for configuration key.converter: ")
    assert "did you mean org.apache.kafka.connect.json.JsonConverter?" in message


def test_a_sink_without_topics_has_an_error_at_both_keys() -> None:
    answer = validate({"name": "c", "connector.class": "FileStreamSink", "file": "a"}, WORKER)
    assert errors_of(answer) == {
        name: ["Must configure one of topics or topics.regex"] for name in ("topics", "topics.regex")
    }


def test_what_a_connector_checks_itself_is_among_the_errors() -> None:
    config = {key: value for key, value in GOOD.items() if key != "file"}
    (message,) = errors_of(validate(config, WORKER))["file"]
    assert "standard input is not supported" in message


def test_without_a_class_or_with_an_unknown_one_nothing_can_be_validated() -> None:
    with pytest.raises(ConfigError, match="contains no connector type"):
        validate({"name": "c", "secret": "s3cret"}, WORKER)
    with pytest.raises(ConfigError, match="did you mean"):
        validate(GOOD | {"connector.class": "FileStreamSauce"}, WORKER)


def test_values_of_secrets_are_hidden() -> None:
    for plugin in (one for one in all_plugins() if one.kind in CONNECTORS):
        secrets = [option.name for option in plugin.options if option.secret]
        answer = validate({"connector.class": plugin.name, **dict.fromkeys(secrets, "s3cret")}, WORKER)
        assert "s3cret" not in str(answer)
        for name in secrets:
            assert entry(answer, name)["definition"]["type"] == "PASSWORD"


def test_a_plugin_tells_its_keys() -> None:
    keys = {one["name"] for one in definitions(find_plugin("FileStreamSink", *CONNECTORS))}
    assert {"file", "topics", "name"} <= keys
