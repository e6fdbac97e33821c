"""Consumer groups from the command line, in Kafka's words: lag, members, states, resets, deletions."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest

from tests.integration.waiting import eventually

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Commands

NewTopic = Callable[..., str]
PROTOCOLS = ("classic", "consumer")


def _new_group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


def _fill(commands: Commands, topic: str, count: int = 10, **fields: Any) -> None:
    """`count` records in each of two partitions."""
    producer = confluent_kafka.Producer({"bootstrap.servers": commands.bootstrap_servers})
    for number in range(count):
        for partition in (0, 1):
            producer.produce(topic, str(number).encode(), partition=partition, **fields)
    assert producer.flush(30) == 0


@pytest.fixture
def filled(commands: Commands, new_topic: NewTopic) -> str:
    """A topic of two partitions with ten records each."""
    topic = new_topic("--partitions", "2")
    _fill(commands, topic)
    return topic


@contextmanager
def _member(commands: Commands, group: str, topic: str, **config: str) -> Iterator[Any]:
    """A consumer that has joined and been assigned everything, until the end of the block."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": commands.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"} | config
    )
    try:
        consumer.subscribe([topic])
        eventually(lambda: [consumer.poll(0.05), consumer.assignment()][1], "a member has partitions")
        yield consumer
    finally:
        consumer.close()


def _offsets(commands: Commands, group: str) -> dict[int, int]:
    (described,) = json.loads(commands.ok("consumer-groups", "--describe", "--group", group, "--json"))
    return {row["partition"]: row["currentOffset"] for row in described["offsets"]}


def _reset(commands: Commands, group: str, *args: str) -> dict[int, int]:
    rows = json.loads(commands.ok("consumer-groups", "--reset-offsets", "--group", group, "--json", *args))
    return {row["partition"]: row["newOffset"] for row in rows}


def test_lag_is_what_is_left_to_read(commands: Commands, filled: str) -> None:
    group = _new_group()
    _reset(commands, group, "--topic", f"{filled}:0", "--to-offset", "4", "--execute")
    result = commands("consumer-groups", "--describe", "--group", group)
    assert (result.code, result.err) == (0, f"\nConsumer group '{group}' has no active members.\n")
    empty, head, row = result.out.splitlines()
    assert empty == ""
    assert head.split() == [
        "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID"
    ]  # fmt: skip
    assert row.split() == [group, filled, "0", "4", "10", "6", "-", "-", "-"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_are_shown_while_they_are_there(commands: Commands, filled: str, protocol: str) -> None:
    group = _new_group()
    with _member(commands, group, filled, **{"group.protocol": protocol, "client.id": "reader"}) as consumer:
        (described,) = json.loads(commands.ok("consumer-groups", "--describe", "--group", group, "--members", "--json"))
        (member,) = described["members"]
        assert (described["state"], described["type"].lower()) == ("Stable", protocol)
        assert (member["consumerId"], member["clientId"]) == (consumer.memberid(), "reader")
        assert member["assignment"] == [{"topic": filled, "partition": partition} for partition in (0, 1)]

        rows = commands.ok("consumer-groups", "--describe", "--group", group).splitlines()[2:]
        assert [row.split()[-3:] for row in rows] == [[consumer.memberid(), member["host"], "reader"]] * 2

        state = commands.ok("consumer-groups", "--describe", "--group", group, "--state").splitlines()[2]
        assert re.search(r" Stable +1$", state)
        listed = commands.ok("consumer-groups", "--list", "--state", "stable", "--type", protocol)
        assert [group, protocol.capitalize(), "Stable"] in [line.split() for line in listed.splitlines()]
    assert f"{group}\n" in commands.ok("consumer-groups", "--list")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_with_members_keeps_its_offsets(commands: Commands, filled: str, protocol: str) -> None:
    group = _new_group()
    with _member(commands, group, filled, **{"group.protocol": protocol}) as consumer:
        consumer.commit(offsets=[confluent_kafka.TopicPartition(filled, 0, 3)], asynchronous=False)
        reset = commands(
            "consumer-groups", "--reset-offsets", "--group", group, "--topic", filled, "--to-latest", "--execute"
        )
        assert reset.code == 1
        assert "can only be reset if the group" in reset.err
        assert "is inactive, but the current state is Stable" in reset.err

        deleted = commands("consumer-groups", "--delete", "--group", group)
        assert deleted.code == 1
        assert f"* Group '{group}' could not be deleted due to: The group is not empty." in deleted.err

        forgotten = commands("consumer-groups", "--delete-offsets", "--group", group, "--topic", f"{filled}:0")
        assert forgotten.code == 1
        assert "Deleting offsets of a topic is forbidden" in forgotten.out
        assert _offsets(commands, group)[0] == 3


def test_offsets_are_reset_in_every_way_kafka_knows(commands: Commands, filled: str) -> None:
    group = _new_group()
    here = ("--topic", filled, "--execute")
    assert _reset(commands, group, "--to-latest", *here) == {0: 10, 1: 10}
    assert _reset(commands, group, "--shift-by", "-4", *here) == {0: 6, 1: 6}
    assert _reset(commands, group, "--topic", f"{filled}:1", "--to-offset", "2", "--execute") == {1: 2}
    assert _reset(commands, group, "--to-current", *here) == {0: 6, 1: 2}
    assert _offsets(commands, group) == {0: 6, 1: 2}
    assert _reset(commands, group, "--to-earliest", "--all-topics", "--execute") == {0: 0, 1: 0}
    assert _offsets(commands, group) == {0: 0, 1: 0}


def test_offsets_are_reset_to_a_time(commands: Commands, new_topic: NewTopic) -> None:
    topic, group = new_topic("--partitions", "2"), _new_group()
    _fill(commands, topic, 5, timestamp=1_000_000_000_000)  # 2001-09-09T01:46:40Z
    _fill(commands, topic, 5)
    assert _reset(commands, group, "--topic", topic, "--to-datetime", "2001-09-09T01:46:40.001") == {0: 5, 1: 5}
    assert _reset(commands, group, "--topic", topic, "--to-datetime", "2001-09-09T03:46:40.000+02:00") == {0: 0, 1: 0}
    assert _reset(commands, group, "--topic", topic, "--by-duration", "PT1H") == {0: 5, 1: 5}
    future = commands("consumer-groups", "--reset-offsets", "--group", group, "--topic", f"{topic}:0", "--export",
                      "--to-datetime", "2999-01-01T00:00:00.000")  # fmt: skip
    assert future.out == f"{topic},0,10\n"
    assert "Falling back to latest known offset" in future.err


def test_what_cannot_be_planned_for_one_group_changes_no_other(commands: Commands, filled: str) -> None:
    first, second = sorted((_new_group(), _new_group()))
    _reset(commands, first, "--topic", filled, "--to-offset", "5", "--execute")
    both = ("--group", first, "--group", second, "--topic", filled, "--shift-by", "-2", "--execute")
    result = commands("consumer-groups", "--reset-offsets", *both)
    assert result.code == 2
    assert "there is no current committed offset" in result.err
    assert _offsets(commands, first) == {0: 5, 1: 5}


def test_without_execute_nothing_changes(commands: Commands, filled: str) -> None:
    group = _new_group()
    _reset(commands, group, "--topic", filled, "--to-offset", "5", "--execute")
    for extra in ([], ["--dry-run"]):
        result = commands(
            "consumer-groups", "--reset-offsets", "--group", group, "--topic", filled, "--to-latest", *extra
        )
        assert result.code == 0
        assert ("No action will be performed" in result.err) == (not extra)
        assert [line.split() for line in result.out.splitlines()[1:]] == [
            ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"],
            [group, filled, "0", "10"],
            [group, filled, "1", "10"],
        ]
    assert _offsets(commands, group) == {0: 5, 1: 5}


def test_an_exported_plan_can_be_executed(commands: Commands, filled: str, tmp_path: Path) -> None:
    group = _new_group()
    reset = ("consumer-groups", "--reset-offsets", "--group", group)
    plan = commands.ok(*reset, "--topic", filled, "--to-offset", "7", "--dry-run", "--export")
    assert plan == f"{filled},0,7\n{filled},1,7\n"
    path = tmp_path / "plan.csv"
    path.write_text(plan.replace(",1,7", ",1,99"))
    result = commands(*reset, "--from-file", str(path), "--execute")
    assert result.code == 0
    assert f"New offset (99) is higher than latest offset for topic partition {filled}-1" in result.err
    assert _offsets(commands, group) == {0: 7, 1: 10}


def test_partitions_that_do_not_exist_are_named(commands: Commands, filled: str) -> None:
    for topic, words in (
        (f"{filled}:0,7", f'The partitions "{filled}-7" do not exist'),
        ("cli-nowhere", "'cli-nowhere' does not exist"),
    ):
        result = commands(
            "consumer-groups", "--reset-offsets", "--group", "g", "--topic", topic, "--to-latest", "--dry-run"
        )
        assert (result.code, result.out) == (1, "")
        assert result.err.startswith("Error: Executing consumer group command failed due to ")
        assert words in result.err


def test_offsets_and_groups_are_deleted(commands: Commands, filled: str) -> None:
    group = _new_group()
    _reset(commands, group, "--topic", filled, "--to-latest", "--execute")
    out = commands.ok("consumer-groups", "--delete-offsets", "--group", group, "--topic", f"{filled}:1")
    assert out.splitlines()[0] == f"Request succeeded for deleting offsets from group {group}."
    assert out.splitlines()[3].split() == [filled, "1", "Successful"]
    assert _offsets(commands, group) == {0: 10}

    both = commands("consumer-groups", "--delete", "--group", group, "--group", "cli-no-group")
    assert both.code == 1
    assert "* Group 'cli-no-group' could not be deleted due to: The group id does not exist." in both.err
    assert f"These consumer groups were deleted successfully: '{group}'" in both.out
    assert group not in commands.ok("consumer-groups", "--list").split()


def test_a_group_that_does_not_exist_is_a_failure_in_one_line(commands: Commands) -> None:
    result = commands("consumer-groups", "--describe", "--group", "cli-no-group")
    assert (result.code, result.out) == (1, "")
    assert result.err == "Error: Executing consumer group command failed due to Group cli-no-group not found.\n"


def test_groups_of_all_types_are_in_one_list(commands: Commands, filled: str) -> None:
    group = _new_group()
    _reset(commands, group, "--topic", filled, "--to-latest", "--execute")
    lines = [line.split() for line in commands.ok("groups", "--list").splitlines()]
    assert lines[0] == ["GROUP", "TYPE", "PROTOCOL"]
    assert [group, "Classic"] in lines
    assert group in commands.ok("groups", "--list", "--consumer")
    assert group not in commands.ok("groups", "--list", "--share")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_console_consumer_goes_on_where_its_group_stopped(commands: Commands, filled: str, protocol: str) -> None:
    group = _new_group()
    read = (
        "console-consumer", "--topic", filled, "--group", group, "--from-beginning", "--timeout-ms", "20000",
        "--consumer-property", f"group.protocol={protocol}", "--property", "print.partition=true",
    )  # fmt: skip
    first = commands.ok(*read, "--max-messages", "7").splitlines()
    assert sum(_offsets(commands, group).values()) == 7
    second = commands.ok(*read, "--max-messages", "13").splitlines()
    assert sorted(first + second) == sorted(f"Partition:{p}\t{n}" for p in (0, 1) for n in range(10))
    assert _offsets(commands, group) == {0: 10, 1: 10}


def test_measuring_in_a_group_commits_what_was_read(commands: Commands, filled: str) -> None:
    group = _new_group()
    out = commands.ok("consumer-perf-test", "--topic", filled, "--group", group, "--num-records", "20", "--json")
    assert json.loads(out)["data.consumed.in.nMsg"] == 20
    assert _offsets(commands, group) == {0: 10, 1: 10}


def test_committed_offsets_are_read_from_their_topic(commands: Commands, filled: str) -> None:
    group = _new_group()
    _reset(commands, group, "--topic", f"{filled}:1", "--to-offset", "4", "--execute")
    lines = commands.ok(
        "console-consumer", "--topic", "__consumer_offsets", "--from-beginning", "--timeout-ms", "1000",
        "--formatter", "org.apache.kafka.tools.consumer.OffsetsMessageFormatter",
    ).splitlines()  # fmt: skip
    found = {json.dumps(record["key"]): record["value"] for record in map(json.loads, lines)}
    key = {"type": 1, "data": {"group": group, "topic": filled, "partition": 1}}
    assert found[json.dumps(key)]["data"]["offset"] == 4
