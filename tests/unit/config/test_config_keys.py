from __future__ import annotations

import csv
import dataclasses
import re
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.config.broker import BROKER_KEYS, BrokerConfig
from moldau.config.keys import Configuration, Key, Kind, ListOf, format_value, nearest
from moldau.config.known_keys import KNOWN_WITHOUT_EFFECT, has_no_effect
from moldau.config.listeners import Listener
from moldau.config.topic import SYNONYMS, TOPIC_KEYS, TopicConfig
from moldau.errors import ConfigError

BOTH = [(BrokerConfig, BROKER_KEYS), (TopicConfig, TOPIC_KEYS)]
TYPES: dict[Kind, Any] = {
    Kind.BOOLEAN: bool,
    Kind.STRING: str,
    Kind.SHORT: int,
    Kind.INT: int,
    Kind.LONG: int,
    Kind.DOUBLE: float,
    Kind.LIST: tuple[str, ...],
}
# Attributes with a type that says more than the kind of their key.
RICHER: dict[str, Any] = {
    "listeners": tuple[Listener, ...],
    "advertised.listeners": tuple[Listener, ...],
    "cleanup.policy": frozenset[str],
}
# Keys that are set or filled in, so that their attribute is never None.
FILLED = {"advertised.listeners", "log.dirs"}
with open(Path(__file__).with_name("kafka_keys.tsv"), encoding="utf-8", newline="") as _file:
    KAFKA = {(row["scope"], row["name"]): row for row in csv.DictReader(_file, delimiter="\t", quoting=csv.QUOTE_NONE)}
OURS = {("broker", name): declared for name, declared in BROKER_KEYS.items()}
OURS |= {("topic", name): declared for name, declared in TOPIC_KEYS.items()}
SHARED = sorted(OURS.keys() & KAFKA.keys())


@pytest.mark.parametrize(("cls", "keys"), BOTH)
def test_every_key_has_an_attribute_of_its_name_and_type(cls: type[Configuration], keys: dict[str, Key]) -> None:
    hints = typing.get_type_hints(cls)
    for name, declared in keys.items():
        expected = RICHER.get(name, TYPES[declared.kind])
        if declared.default is None and name not in FILLED:
            expected = expected | None
        assert hints[name.replace(".", "_").replace("-", "_")] == expected, name


@pytest.mark.parametrize(("cls", "keys"), BOTH)
def test_every_default_is_allowed_by_its_own_key(cls: type[Configuration], keys: dict[str, Key]) -> None:
    config = cls()
    for name, declared in keys.items():
        if declared.default is not None:
            assert declared.parse(format_value(declared.default) or "") == declared.default, name
            if name not in RICHER:
                assert getattr(config, declared.attribute) == declared.default, name


@pytest.mark.parametrize(("cls", "keys"), BOTH)
def test_every_key_says_what_it_does(cls: type[Configuration], keys: dict[str, Key]) -> None:
    for name, declared in keys.items():
        assert declared.doc.endswith("."), name
        assert "\n" not in declared.doc, name
        assert "|" not in declared.doc, name


@pytest.mark.parametrize(("scope", "name"), SHARED)
def test_key_is_apache_kafkas_but_for_differences_we_state(scope: str, name: str) -> None:
    declared, theirs = OURS[scope, name], KAFKA[scope, name]
    assert declared.kind.name.lower() == theirs["type"]
    stated = declared.kafka_default
    ours = stated if stated is not None else (format_value(declared.default) or "")
    if declared.default is None and stated is None:
        ours = "null"
    if name != "node.id":  # required there, so without a default
        assert ours == theirs["default"].replace('""', "")
    assert stated is None or stated != format_value(declared.default)
    minimum = re.fullmatch(r"\[(-?\d+),\.\.\.\]", theirs["valid"])
    if minimum:
        assert declared.validator is not None
        assert declared.validator.problem(int(minimum[1])) is None
        assert declared.validator.problem(int(minimum[1]) - 1) is not None
    if scope == "broker" and declared.dynamic:
        assert theirs["update mode"] != "read-only"


def test_every_broker_key_of_apache_kafka_is_known() -> None:
    names = [name for scope, name in KAFKA if scope == "broker"]
    assert len(names) > 300
    assert [name for name in names if name not in BROKER_KEYS and not has_no_effect(name)] == []


def test_every_topic_key_of_apache_kafka_is_ours() -> None:
    assert {name for scope, name in KAFKA if scope == "topic"} == {
        name for name, declared in TOPIC_KEYS.items() if not declared.internal
    }


def test_no_key_both_works_and_has_no_effect() -> None:
    assert not KNOWN_WITHOUT_EFFECT & BROKER_KEYS.keys()


def test_every_synonym_is_a_key_of_the_same_kind() -> None:
    for name, family in SYNONYMS.items():
        assert BROKER_KEYS[family[0].name].kind == TOPIC_KEYS[name].kind, name
        assert all(synonym.name in BROKER_KEYS for synonym in family), name


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Kind.INT, " 42 ", 42),
        (Kind.INT, "-1", -1),
        (Kind.INT, "+7", 7),
        (Kind.INT, "2147483647", 2**31 - 1),
        (Kind.LONG, "-9223372036854775808", -(2**63)),
        (Kind.SHORT, "32767", 32767),
        (Kind.BOOLEAN, "TRUE", True),
        (Kind.BOOLEAN, " false", False),
        (Kind.DOUBLE, "0.5", 0.5),
        (Kind.DOUBLE, "1.7976931348623157E308", 1.7976931348623157e308),
        (Kind.STRING, " a b ", "a b"),
        (Kind.LIST, "a, b ,c", ("a", "b", "c")),
        (Kind.LIST, "", ()),
    ],
)
def test_text_becomes_a_value_of_its_kind(kind: Kind, text: str, value: object) -> None:
    assert Key("a.key", kind, None, "").parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Kind.INT, "2147483648"),
        (Kind.INT, "1_000"),
        (Kind.INT, "1.0"),
        (Kind.INT, ""),
        (Kind.INT, "-"),
        (Kind.INT, "٣"),
        (Kind.INT, "0x10"),
        (Kind.LONG, "9223372036854775808"),
        (Kind.SHORT, "40000"),
        (Kind.BOOLEAN, "yes"),
        (Kind.DOUBLE, "half"),
    ],
)
def test_a_bad_value_is_refused_with_key_and_value(kind: Kind, text: str) -> None:
    with pytest.raises(ConfigError, match=r"Invalid value .* for configuration a\.key: ") as caught:
        Key("a.key", kind, None, "").parse(text)
    assert f"Invalid value {text} for" in str(caught.value)


def test_a_password_is_not_repeated_in_errors() -> None:
    class Never:
        def problem(self, value: object) -> str:
            return "no"

        def allowed(self) -> str:
            return ""

    with pytest.raises(ConfigError) as caught:
        Key("a.password", Kind.PASSWORD, None, "", Never()).parse("hunter2")
    assert "hunter2" not in str(caught.value)


@given(st.lists(st.text("abc", max_size=2), max_size=4))
def test_lists_hold_no_value_twice_and_no_empty_one(values: list[str]) -> None:
    fine = len(set(values)) == len(values) and all(values)
    assert (ListOf().problem(tuple(values)) is None) == fine


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_long_survives_text(number: int) -> None:
    assert Key("a", Kind.LONG, None, "").parse(format_value(number) or "") == number


def test_a_typing_error_finds_the_key_that_was_meant() -> None:
    assert nearest("num.partition", BROKER_KEYS) == "num.partitions"
    assert nearest("retention.msec", TOPIC_KEYS) == "retention.ms"
    assert nearest("something.else.entirely", BROKER_KEYS) is None


def test_a_configuration_never_changes() -> None:
    config = TopicConfig(segment_bytes=100)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.segment_bytes = 200  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del config.segment_bytes
    assert config.segment_bytes == 100
    assert not hasattr(config, "__dict__")


def test_a_configuration_has_no_other_attributes() -> None:
    with pytest.raises(TypeError, match="segment_byte"):
        TopicConfig(segment_byte=100)  # type: ignore[call-arg]


def test_configurations_with_the_same_values_are_equal() -> None:
    assert TopicConfig(segment_bytes=100) == TopicConfig(segment_bytes=100)
    assert len({TopicConfig(), TopicConfig(), TopicConfig(segment_bytes=100)}) == 2
    assert dataclasses.replace(TopicConfig(segment_bytes=100), flush_messages=1) == TopicConfig(
        segment_bytes=100, flush_messages=1
    )
    assert repr(TopicConfig(segment_bytes=100)) == "TopicConfig(segment_bytes=100)"


def test_importing_the_configuration_stays_light() -> None:
    heavy = ("asyncio", "socket", "kio", "hypothesis", "difflib", "logging", "json", "csv")
    code = f"import sys, moldau.config.topic; print([name for name in {heavy!r} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
