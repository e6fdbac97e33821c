from __future__ import annotations

from pathlib import Path

import pytest

from moldau.config.broker import BROKER_KEYS, BrokerConfig
from moldau.config.describe import (
    describe_broker,
    describe_broker_defaults,
    describe_topic,
)
from moldau.config.entries import ConfigEntry, ConfigSource
from moldau.config.keys import Kind
from moldau.config.reference import render
from moldau.config.topic import TOPIC_KEYS

_, TOPIC, DYNAMIC, DYNAMIC_DEFAULT, STATIC, DEFAULT, *_rest = ConfigSource


def broker(props: dict[str, str] | None = None) -> BrokerConfig:
    return BrokerConfig.from_properties(props or {})[0]


def topic_entry(name: str, overrides: dict[str, str], over: BrokerConfig) -> ConfigEntry:
    return next(entry for entry in describe_topic(overrides, over) if entry.name == name)


def broker_entry(name: str, over: BrokerConfig) -> ConfigEntry:
    return next(entry for entry in describe_broker(over) if entry.name == name)


def synonyms(entry: ConfigEntry) -> list[tuple[str, str | None, int]]:
    return [(each.name, each.value, each.source) for each in entry.synonyms]


# Answers of Apache Kafka 4.3.1 to the same configuration.
STATIC_PROPS = {
    "node.id": "1",
    "log.roll.hours": "24",
    "log.roll.ms": "100000",
    "log.retention.hours": "2",
    "log.cleanup.policy": "compact, delete",
}


@pytest.mark.parametrize(
    ("name", "overrides", "value", "source", "expected"),
    [
        (
            "cleanup.policy",
            {"cleanup.policy": "compact, delete"},
            "compact,delete",
            TOPIC,
            [
                ("cleanup.policy", "compact,delete", TOPIC),
                ("log.cleanup.policy", "compact, delete", STATIC),
                ("log.cleanup.policy", "delete", DEFAULT),
            ],
        ),
        (
            "segment.ms",
            {},
            "100000",
            STATIC,
            [
                ("log.roll.ms", "100000", STATIC),
                ("log.roll.hours", "24", STATIC),
                ("log.roll.hours", "168", DEFAULT),
            ],
        ),
        ("retention.ms", {}, "7200000", DEFAULT, []),
        ("flush.ms", {}, "9223372036854775807", DEFAULT, []),
        ("max.message.bytes", {}, "1048588", DEFAULT, [("message.max.bytes", "1048588", DEFAULT)]),
        (
            "min.cleanable.dirty.ratio",
            {"min.cleanable.dirty.ratio": " .25"},
            "0.25",
            TOPIC,
            [
                ("min.cleanable.dirty.ratio", "0.25", TOPIC),
                ("log.cleaner.min.cleanable.ratio", "0.5", DEFAULT),
            ],
        ),
        ("remote.storage.enable", {}, "false", DEFAULT, []),
        ("local.retention.ms", {}, "-2", DEFAULT, [("log.local.retention.ms", "-2", DEFAULT)]),
    ],
)
def test_a_topic_is_described_as_kafka_does(
    name: str,
    overrides: dict[str, str],
    value: str,
    source: ConfigSource,
    expected: list[tuple[str, str, int]],
) -> None:
    entry = topic_entry(name, overrides, broker(STATIC_PROPS))
    assert (entry.value, entry.source) == (value, source)
    assert synonyms(entry) == expected
    assert not entry.read_only
    assert not entry.is_sensitive


def test_every_source_is_shown_strongest_first() -> None:
    over = broker({"message.max.bytes": "1000"}).with_overrides(
        {"message.max.bytes": "3000"}, {"message.max.bytes": "2000"}
    )
    entry = topic_entry("max.message.bytes", {"max.message.bytes": "4000"}, over)
    assert (entry.value, entry.source) == ("4000", TOPIC)
    assert synonyms(entry) == [
        ("max.message.bytes", "4000", TOPIC),
        ("message.max.bytes", "3000", DYNAMIC),
        ("message.max.bytes", "2000", DYNAMIC_DEFAULT),
        ("message.max.bytes", "1000", STATIC),
        ("message.max.bytes", "1048588", DEFAULT),
    ]
    assert topic_entry("max.message.bytes", {}, over).value == "3000"


@pytest.mark.parametrize("props", [{"log.retention.hours": "-1"}, {"log.retention.ms": "-7"}])
def test_unlimited_retention_is_described_as_minus_one(props: dict[str, str]) -> None:
    assert topic_entry("retention.ms", {}, broker(props)).value == "-1"


def test_source_numbers_are_those_of_the_protocol() -> None:
    assert [int(source) for source in ConfigSource] == list(range(9))
    assert ConfigSource(99) is ConfigSource.UNKNOWN, "of a broker newer than the list"


def test_a_topic_is_described_with_all_its_keys_and_types() -> None:
    entries = describe_topic({}, broker())
    assert [entry.name for entry in entries] == sorted(
        name for name, declared in TOPIC_KEYS.items() if not declared.internal
    )
    kinds = {entry.name: entry.type for entry in entries}
    assert int(kinds["retention.ms"]) == 5
    assert int(kinds["cleanup.policy"]) == 7
    assert int(kinds["min.cleanable.dirty.ratio"]) == 6
    assert int(kinds["preallocate"]) == 1
    assert all(entry.doc for entry in entries)


@pytest.mark.parametrize(
    ("name", "value", "source", "read_only", "expected"),
    [
        (
            "log.retention.hours",
            "2",
            STATIC,
            True,
            [("log.retention.hours", "2", 4), ("log.retention.hours", "168", 5)],
        ),
        ("log.retention.ms", None, DEFAULT, False, []),
        ("log.roll.hours", "24", STATIC, True, [("log.roll.hours", "24", 4), ("log.roll.hours", "168", 5)]),
        ("log.dirs", None, DEFAULT, True, []),
        ("log.dir", "./moldau-data", DEFAULT, True, [("log.dir", "./moldau-data", 5)]),
        ("advertised.listeners", None, DEFAULT, True, []),
        (
            "listeners",
            "PLAINTEXT://127.0.0.1:9092",
            DEFAULT,
            True,
            [("listeners", "PLAINTEXT://127.0.0.1:9092", 5)],
        ),
        ("broker.id", "1", STATIC, True, [("broker.id", "1", 4), ("broker.id", "1", 5)]),
        ("num.partitions", "1", DEFAULT, True, [("num.partitions", "1", 5)]),
        ("auto.create.topics.enable", "true", DEFAULT, True, [("auto.create.topics.enable", "true", 5)]),
    ],
)
def test_a_broker_is_described_as_kafka_does(
    name: str, value: str | None, source: ConfigSource, read_only: bool, expected: list[tuple[str, str, int]]
) -> None:
    entry = broker_entry(name, broker(STATIC_PROPS))
    assert (entry.value, entry.source, entry.read_only) == (value, source, read_only)
    assert synonyms(entry) == expected


def test_what_was_set_is_shown() -> None:
    over = broker({"log.dirs": "/a, /b", "advertised.listeners": "PLAINTEXT://host:1"})
    assert broker_entry("log.dirs", over).value == "/a,/b"
    assert broker_entry("advertised.listeners", over).value == "PLAINTEXT://host:1"


def test_foreign_keys_are_shown_without_their_values() -> None:
    entry = broker_entry("ssl.key.password", broker({"ssl.key.password": "hunter2"}))
    assert entry.is_sensitive
    assert "hunter2" not in repr(entry)
    assert entry.type == Kind.UNKNOWN


def test_only_dynamic_keys_can_be_changed() -> None:
    entries = {entry.name: entry for entry in describe_broker(broker())}
    assert {name for name, entry in entries.items() if not entry.read_only} == {
        name for name, declared in BROKER_KEYS.items() if declared.dynamic
    }


def test_defaults_of_all_brokers_are_described_alone() -> None:
    over = broker().with_overrides({"message.max.bytes": "3000"}, {"message.max.bytes": "2000"})
    (entry,) = describe_broker_defaults(over)
    assert (entry.name, entry.value, entry.source) == ("message.max.bytes", "2000", DYNAMIC_DEFAULT)
    assert synonyms(entry) == [("message.max.bytes", "2000", DYNAMIC_DEFAULT)]
    assert describe_broker_defaults(broker()) == []


def test_the_reference_page_is_the_generated_one() -> None:
    page = Path(__file__).parents[3] / "docs" / "configuration.md"
    assert page.read_text(encoding="utf-8") == render(), (
        "run: python -m moldau.config.reference > docs/configuration.md"
    )


def test_the_reference_page_names_every_key_and_every_difference() -> None:
    page = render()
    for declared in (*BROKER_KEYS.values(), *TOPIC_KEYS.values()):
        assert (f"| `{declared.name}` |" in page) != declared.internal
    differences = page.split("## Broker keys")[0]
    for name in ("listeners", "log.dir", "max.connections", "group.initial.rebalance.delay.ms"):
        assert f"| `{name}` |" in differences
