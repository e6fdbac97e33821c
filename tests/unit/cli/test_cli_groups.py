"""The commands around groups: what they refuse, how they read times, durations and plans, and Kafka's columns."""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from moldau.cli.coordination import consumer_groups, groups, reset_offsets, share_groups, transactions
from moldau.cli.coordination.group_common import assignment_text, parse_names, print_columns
from moldau.client.groups import GroupListing
from moldau.client.transactions import TransactionDescription
from moldau.errors import ConfigError, ErrorCode, KafkaError
from moldau.wire.topic_partition import TopicPartition

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
        ("--list --describe", "exactly one action"),
        ("--describe", "--describe takes one of these options: --group, --all-groups"),
        ("--describe --group g --all-groups", "--group can't be used with option --all-groups"),
        ("--describe --group g --members --state", "at most one of these options"),
        ("--describe --group g --state stable", "does not take a value for --state"),
        ("--describe --group g --topic t", "--topic can be used only with"),
        ("--list --group g", "--group can be used only with"),
        ("--list --members", "--members can be used only with --describe"),
        ("--delete --group g --state", "--state can be used only with --describe or --list"),
        ("--delete --group g --topic t", "--topic can be used only with"),
        ("--delete-offsets --group g", "--delete-offsets takes the following options"),
        ("--reset-offsets --all-topics --to-latest", "takes one of these options: --group, --all-groups"),
        ("--reset-offsets --group g --to-latest", "One of the reset scopes should be defined"),
        ("--reset-offsets --group g --topic t", "requires exactly one of: --to-earliest"),
        ("--reset-offsets --group g --topic t --to-latest --shift-by 1", "requires exactly one of"),
        ("--reset-offsets --group g --topic t --to-latest --dry-run --execute", "only accepts one of"),
        ("--reset-offsets --group g --topic t --to-datetime noon", "--to-datetime noon: expected"),
        ("--reset-offsets --group g --topic t --by-duration 1h", "--by-duration 1h: expected"),
        ("--describe --group g --export", "--export can be used only with --reset-offsets"),
    ],
)
def test_what_makes_no_sense_for_consumer_groups_is_refused(
    argv: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in _refused(consumer_groups.main, argv, capsys)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--delete", "--delete takes one of these options: --group, --all-groups"),
        ("--reset-offsets --group g --topic t --to-latest", "takes the option: --execute or --dry-run"),
        ("--reset-offsets --group g --to-latest --execute", "--all-topics, --topic"),
        ("--reset-offsets --all-groups --all-topics --to-latest --execute", "takes the option: --group"),
        ("--reset-offsets --group g --topic t --execute", "requires exactly one of: --to-earliest"),
    ],
)
def test_what_makes_no_sense_for_share_groups_is_refused(
    argv: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in _refused(share_groups.main, argv, capsys)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("", "exactly one action: --list"),
        ("--list --group-type odd", "must be a valid group type"),
        ("--list --share --consumer", "can't be used with other filters"),
        ("--list --share --protocol x", "can't be used with other filters"),
    ],
)
def test_what_makes_no_sense_for_groups_is_refused(argv: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in _refused(groups.main, argv, capsys)


def test_transactions_wants_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert "one of list, describe, describe-producers, abort, find-hanging" in _refused(transactions.main, "", capsys)


def test_names_are_read_in_any_case_and_written_as_kafka_does() -> None:
    assert parse_names("stable, EMPTY", ("Stable", "Empty"), "state") == ["Stable", "Empty"]
    assert parse_names("", ("Stable",), "state") == []
    with pytest.raises(ConfigError, match=r"Invalid state list 'x'\. Valid states are: Stable"):
        parse_names("x", ("Stable",), "state")


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-01T00:00:01.500", 1500),
        ("1970-01-01T00:00:00", 0),
        ("1970-01-01T01:00:00.000+01:00", 0),
        ("1970-01-01T00:00:00.000Z", 0),
        ("2026-01-31T12:00:00.000-0500", 1769878800000),
    ],
)
def test_times_are_utc_unless_they_say_otherwise(text: str, milliseconds: int) -> None:
    assert reset_offsets.parse_datetime(text) == milliseconds


@pytest.mark.parametrize("text", ["", "1970-01-01", "1970-13-01T00:00:00.000", "soon", "1970-01-01 00:00:00"])
def test_times_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected YYYY-MM-DDThh:mm:ss\.sss"):
        reset_offsets.parse_datetime(text)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("PT1H", 3_600_000),
        ("P1D", 86_400_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("pt0.001s", 1),
        ("-PT1M", -60_000),
        ("PT-6H3M", -21_420_000),
    ],
)
def test_durations_are_javas(text: str, milliseconds: int) -> None:
    assert reset_offsets.parse_duration(text) == milliseconds


@pytest.mark.parametrize("text", ["", "P", "PT", "1H", "P1H", "PT1D", "P1DT", "PT1.5H"])
def test_durations_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected PnDTnHnMnS"):
        reset_offsets.parse_duration(text)


def test_a_plan_reads_what_it_wrote(tmp_path: Path) -> None:
    plan = {"g": {TopicPartition("orders", 1): 7, TopicPartition("orders", 0): 3}}
    path = tmp_path / "plan.csv"
    path.write_text(reset_offsets.write_plan(plan, with_group=False))
    assert path.read_text() == "orders,0,3\norders,1,7\n"
    assert reset_offsets.read_plan(str(path), ["g"]) == plan

    plan |= {"h": {TopicPartition("odd,name", 0): 1}}
    path.write_text(reset_offsets.write_plan(plan, with_group=True))
    assert reset_offsets.read_plan(str(path), ["g", "h"]) == plan
    assert reset_offsets.read_plan(str(path), ["g"]) == plan, "a plan of many groups serves one of them, too"


@pytest.mark.parametrize("line", ["orders,0", "orders,zero,1", "orders", "orders,0,"])
def test_a_plan_that_is_none_names_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "plan.csv"
    path.write_text(f"orders,0,1\n{line}\n")
    with pytest.raises(ConfigError, match=r"plan.csv, line 2: expected topic,partition,offset"):
        reset_offsets.read_plan(str(path), ["g"])


def test_a_plan_of_several_groups_names_them(tmp_path: Path) -> None:
    path = tmp_path / "plan.csv"
    path.write_text("orders,0,1\n")
    with pytest.raises(ConfigError, match="expected group,topic,partition,offset"):
        reset_offsets.read_plan(str(path), ["g", "h"])


def test_shifting_needs_an_offset_to_shift() -> None:
    assert reset_offsets.shifted({TopicPartition("t", 0): 10}, [TopicPartition("t", 0)], -3) == {("t", 0): 7}
    with pytest.raises(ConfigError, match="Cannot shift offset for partition t-1"):
        reset_offsets.shifted({TopicPartition("t", 0): 10}, [TopicPartition("t", 1)], -3)


def test_columns_are_kafkas(capsys: pytest.CaptureFixture[str]) -> None:
    print_columns(("GROUP", "LAG"), [("billing", 3), ("a-group-with-a-long-name", None)], (15,))
    assert capsys.readouterr().out == (
        "GROUP                    LAG\nbilling                  3\na-group-with-a-long-name -\n"
    )


def test_assignments_are_written_topic_by_topic() -> None:
    assert assignment_text([TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 2)]) == "a:2,10;b:0"
    assert assignment_text([]) is None


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ({}, "classic connect consumer share simple"),
        ({"consumer": True}, "classic consumer simple"),
        ({"share": True}, "share"),
        ({"streams": True}, ""),
        ({"group_type": "Classic"}, "classic connect simple"),
        ({"group_type": "classic", "protocol": "connect"}, "connect"),
        ({"protocol": "consumer"}, "classic consumer"),
    ],
)
def test_groups_are_filtered_as_kafka_does(flags: dict[str, object], wanted: str) -> None:
    args = argparse.Namespace(
        **({"consumer": 0, "share": 0, "streams": 0, "group_type": None, "protocol": None} | flags)
    )
    listings = [
        GroupListing("classic", "Classic", "Empty", "consumer"),
        GroupListing("connect", "Classic", "Stable", "connect"),
        GroupListing("consumer", "Consumer", "Stable", "consumer"),
        GroupListing("share", "Share", "Stable", "share"),
        GroupListing("simple", "Classic", "Empty", ""),
    ]
    assert [listing.group for listing in listings if groups.is_wanted(listing, args)] == wanted.split()


def test_a_transaction_hangs_when_no_coordinator_will_end_it() -> None:
    known = TransactionDescription("id", 1, 7, 0, "Ongoing", 1000, 0, (TopicPartition("t", 0),))
    assert transactions.is_expected(TopicPartition("t", 0), known)
    assert not transactions.is_expected(TopicPartition("t", 1), known)
    assert not transactions.is_expected(TopicPartition("t", 0), None)
    assert not transactions.is_expected(TopicPartition("t", 0), KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND))
    with pytest.raises(KafkaError):
        transactions.is_expected(TopicPartition("t", 0), KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))


@pytest.mark.parametrize(
    "pattern",
    [
        "foo.*", "^a|b$", r"\d+\.\w", r"[[:alpha:]]+", r"\pL\p{Greek}", r"\Qa+*\E", "a(?i)b", "(?P<n>x)(?<m>y)",
        "a{2,3}?", r"[\]\\]", "[]a]", r"\bfoo\b", r"\Qab\E+",
    ],
)  # fmt: skip
def test_regexes_of_re2_are_valid(pattern: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert consumer_groups.main(["--validate-regex", pattern]) == 0
    assert capsys.readouterr().out == f"The regular expression `{pattern}` is valid.\n"


@pytest.mark.parametrize(
    "pattern", ["(", "[a", "*", "a**", "(?=x)", "(?!x)", "(?<=x)y", r"(a)\1", "(?>a)", "a++", "(?P=n)"]
)
def test_what_re2_cannot_match_is_invalid(pattern: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert consumer_groups.main(["--validate-regex", pattern]) == 1
    assert capsys.readouterr().out.startswith(f"The regular expression `{pattern}` is invalid: ")


def test_a_timeout_is_the_longest_that_a_silent_server_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        began_s = time.monotonic()
        assert consumer_groups.main(["--bootstrap-server", address, "--list", "--timeout", "200"]) == 1
        assert time.monotonic() - began_s < 10
    assert "did not respond within" in capsys.readouterr().err
