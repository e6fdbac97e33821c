"""What options and property files add up to for the clients that move records."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from moldau.cli.records import console_consumer, console_producer
from moldau.errors import ConfigError

HERE = ["--bootstrap-server", "b:1", "--topic", "t"]


def _producer(*argv: str) -> dict[str, str]:
    return console_producer.producer_properties(console_producer._parser("p").parse_args([*HERE, *argv]))


def _consumer(*argv: str) -> dict[str, str]:
    return console_consumer.consumer_properties(_consumer_args(*argv))


def _consumer_args(*argv: str) -> argparse.Namespace:
    return console_consumer._parser("c").parse_args([*HERE, *argv])


def test_producer_options_are_producer_properties(tmp_path: Path) -> None:
    file = tmp_path / "producer.properties"
    file.write_text("acks=1\nlinger.ms=7\nretries=9\n")
    props = _producer(
        "--producer.config", str(file), "--producer-property", "linger.ms=8", "--request-required-acks", "-1",
        "--timeout", "20", "--batch-size", "5", "--compression-codec",
    )  # fmt: skip
    assert props == {
        "acks": "-1",
        "linger.ms": "20",
        "retries": "9",
        "batch.size": "5",
        "compression.type": "gzip",
    }


def test_a_codec_may_be_named() -> None:
    assert _producer("--compression-codec", "zstd") == {"compression.type": "zstd"}
    with pytest.raises(SystemExit):
        _producer("--compression-codec", "rar")


def test_a_consumer_without_a_group_has_none() -> None:
    assert _consumer() == {
        "auto.offset.reset": "latest",
        "isolation.level": "read_uncommitted",
        "allow.auto.create.topics": "true",
    }


def test_a_group_may_come_from_anywhere_but_only_one(tmp_path: Path) -> None:
    file = tmp_path / "group.properties"
    file.write_text("group.id=books\n")
    assert _consumer("--consumer.config", str(file))["group.id"] == "books"
    assert _consumer("--group", "books", "--consumer.config", str(file))["group.id"] == "books"
    assert _consumer("--consumer-property", "group.id=books")["group.id"] == "books"
    with pytest.raises(ConfigError, match="do not match: books, films"):
        _consumer("--group", "films", "--consumer.config", str(file))
    with pytest.raises(ConfigError, match="group and partition"):
        _consumer("--partition", "0", "--consumer.config", str(file))


def test_from_the_beginning_is_a_reset_policy() -> None:
    assert _consumer("--from-beginning")["auto.offset.reset"] == "earliest"
    assert _consumer("--consumer-property", "auto.offset.reset=earliest")["auto.offset.reset"] == "earliest"
    with pytest.raises(ConfigError, match="Can't simultaneously"):
        _consumer("--from-beginning", "--consumer-property", "auto.offset.reset=latest")


def test_the_isolation_level_is_kafkas_default_not_librdkafkas() -> None:
    assert _consumer()["isolation.level"] == "read_uncommitted"
    assert _consumer("--isolation-level", "read_committed")["isolation.level"] == "read_committed"


def test_a_property_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"cannot read /nowhere/x\.properties"):
        _consumer("--consumer.config", "/nowhere/x.properties")
