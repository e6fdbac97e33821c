"""Arguments that Kafka refuses are refused, with exit code 2 and a word why; what it reads is read the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from moldau.cli.admin.configs import main as configs_main
from moldau.cli.admin.configs import parse_added
from moldau.cli.admin.delete_records import read_offsets
from moldau.cli.admin.get_offsets import main as get_offsets_main
from moldau.cli.admin.get_offsets import parse_time, partition_filter
from moldau.cli.admin.topics import main as topics_main
from moldau.cli.admin.topics import parse_replica_assignment
from moldau.cli.records.console_consumer import main as consumer_main
from moldau.errors import ConfigError

HERE = ["--bootstrap-server", "127.0.0.1:1"]


def _refused(main: Callable[[list[str]], int], argv: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as exit_:
        main([*HERE, *argv.split()])
    assert exit_.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("", "exactly one action"),
        ("--create --list --topic t", "exactly one action"),
        ("--create", "Missing required argument --topic"),
        ("--alter --topic t", "Missing required argument --partitions"),
        ("--alter --topic t --partitions 3 --config a=b", "use kafka-configs"),
        ("--list --partitions 3", "--partitions can be used only with --create or --alter"),
        ("--delete --topic t --if-not-exists", "--if-not-exists can be used only with --create"),
        ("--create --topic t --if-exists", "--if-exists can be used only with"),
        ("--create --topic t --replica-assignment 1 --partitions 2", "cannot be used with --partitions"),
        ("--list --under-replicated-partitions", "can be used only with --describe"),
        ("--describe --topics-with-overrides --unavailable-partitions", "cannot be used with"),
        ("--describe --if-exists", "--topic or --topic-id is required"),
        ("--create --topic t --partitions three", "invalid int value"),
        ("--create --topic t --no-such-option", "unrecognized arguments"),
    ],
)
def test_topics_refuses_what_makes_no_sense(argv: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in _refused(topics_main, argv, capsys)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--topic t", "exactly one action"),
        ("--describe --alter --topic t", "exactly one action"),
        ("--describe", "Exactly one entity type"),
        ("--describe --entity-type topics --topic t", "cannot be used together"),
        ("--describe --entity-type users", "not supported yet"),
        ("--describe --entity-type planets", "Invalid entity type planets"),
        ("--alter --entity-type topics --add-config a=b", "An entity name must be specified"),
        ("--alter --topic t", "At least one of --add-config"),
        ("--alter --topic t --add-config a=b --add-config-file f", "Only one of --add-config"),
        ("--describe --topic t --add-config a=b", "only with --alter"),
        ("--describe --broker one", "must be a valid integer broker id"),
        ("--describe --entity-type topics --entity-default", "--entity-default must not be specified"),
    ],
)
def test_configs_refuses_what_makes_no_sense(argv: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in _refused(configs_main, argv, capsys)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("", "Exactly one of --topic and --include"),
        ("--topic t --include t", "Exactly one of --topic and --include"),
        ("--include t --partition 0", "The topic is required"),
        ("--topic t --offset 3", "The partition is required"),
        ("--topic t --partition 0 --offset -3", "is incorrect"),
        ("--topic t --partition 0 --offset first", "is incorrect"),
        ("--topic t --partition 0 --offset 3 --from-beginning", "cannot be specified together"),
        ("--topic t --partition 0 --group g", "cannot be specified together"),
    ],
)
def test_the_consumer_refuses_what_makes_no_sense(argv: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in _refused(consumer_main, argv, capsys)


def test_offsets_are_asked_for_in_one_way_or_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot be used with" in _refused(get_offsets_main, "--topic-partitions t:0 --topic t", capsys)


def test_values_that_make_no_sense_are_wrong_usage_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert get_offsets_main([*HERE, "--time", "yesterday"]) == 2
    assert "Malformed time argument yesterday" in capsys.readouterr().err
    assert topics_main([*HERE, "--create", "--topic", "t", "--partitions", "0"]) == 2
    assert "greater than 0" in capsys.readouterr().err
    assert topics_main([*HERE, "--create", "--topic", "t", "--config", "retention.ms"]) == 2
    assert "expected key=value" in capsys.readouterr().err


def test_a_broker_that_is_not_there_is_a_failure_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert topics_main([*HERE, "--list"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("Error while executing topic command : No broker could be reached")
    assert error.count("\n") == 1


def test_replica_assignments_are_read_per_partition() -> None:
    assert parse_replica_assignment("0:1,1:2, 2:0") == {0: [0, 1], 1: [1, 2], 2: [2, 0]}
    assert parse_replica_assignment("") == {}
    for text, words in (("0:0", "duplicate"), ("0:1,2", "different replication factor"), ("0:x", "broker ids")):
        with pytest.raises(ConfigError, match=words):
            parse_replica_assignment(text)


@pytest.mark.parametrize(
    ("text", "added"),
    [
        ("a=1", {"a": "1"}),
        ("a=1,b=[x,y],c=", {"a": "1", "b": "x,y", "c": ""}),
        ("a = 1 , b = 2", {"a": "1", "b": "2"}),
        ("jaas=[k=v,l=w]", {"jaas": "k=v,l=w"}),
    ],
)
def test_added_configs_keep_commas_inside_brackets(text: str, added: dict[str, str]) -> None:
    assert parse_added(text) == added


@pytest.mark.parametrize("text", ["a", "a=1,b", "a=b=c"])
def test_added_configs_that_are_no_pairs_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="key=val"):
        parse_added(text)


@pytest.mark.parametrize(
    ("text", "timestamp"),
    [("latest", -1), ("-1", -1), ("earliest", -2), ("max-timestamp", -3), ("1700000000000", 1700000000000)],
)
def test_times_have_names_and_numbers(text: str, timestamp: int) -> None:
    assert parse_time(text) == timestamp


@pytest.mark.parametrize(
    ("rules", "accepted"),
    [
        ("a", {("a", 0), ("a", 1), ("a", 2), ("a", 3)}),
        ("a:1", {("a", 1)}),
        ("a:1-3", {("a", 1), ("a", 2)}),
        ("a:2-", {("a", 2), ("a", 3)}),
        ("a:-2", {("a", 0), ("a", 1)}),
        (":3", {("a", 3), ("bb", 3)}),
        ("b.*:0,a:1", {("bb", 0), ("a", 1)}),
    ],
)
def test_topic_partition_rules_choose_as_kafkas(rules: str, accepted: set[tuple[str, int]]) -> None:
    accept = partition_filter(rules, None, None)
    assert {(topic, p) for topic in ("a", "bb") for p in range(4) if accept(topic, p)} == accepted


def test_topics_and_partitions_choose_together() -> None:
    accept = partition_filter(None, "a|b", "0,2")
    assert [accept("a", 0), accept("a", 1), accept("b", 2), accept("c", 0)] == [True, False, True, False]
    with pytest.raises(ConfigError, match="--partitions"):
        partition_filter(None, None, "zero")
    with pytest.raises(ConfigError, match="Invalid rule"):
        partition_filter("a:x", None, None)


def test_the_offsets_file_is_read_as_kafkas(tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    file.write_text('{"partitions": [{"topic": "t", "partition": 1, "offset": 7}], "version": 1}')
    assert read_offsets(str(file)) == {("t", 1): 7}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"version": 2, "partitions": []}, "version 2"),
        ({"version": 1}, "partitions"),
        ({"partitions": [{"topic": "t", "partition": 1}]}, "offset"),
        ({"partitions": [{"topic": "t", "partition": 1, "offset": 1}] * 2}, "duplicate topic partitions: t-1"),
        ([], "partitions"),
    ],
)
def test_an_offsets_file_that_is_wrong_is_told_how(tmp_path: Path, document: object, words: str) -> None:
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=words):
        read_offsets(str(file))


def test_an_offsets_file_that_is_not_there_or_no_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_offsets(str(tmp_path / "none.json"))
    (tmp_path / "half.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        read_offsets(str(tmp_path / "half.json"))
