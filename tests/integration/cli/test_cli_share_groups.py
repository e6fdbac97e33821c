"""Share groups from the command line: start offsets, lag, acknowledging on the console, resets and deletions."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.waiting import eventually

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Commands

NewTopic = Callable[..., str]


@pytest.fixture
def jobs(commands: Commands, new_topic: NewTopic) -> tuple[str, str]:
    """A topic with ten records, and a share group that starts at the first of them."""
    topic, group = new_topic("--partitions", "1"), f"share-{uuid.uuid4().hex[:12]}"
    commands.ok("console-producer", "--topic", topic, stdin="".join(f"{number}\n" for number in range(10)))
    commands.ok("share-groups", "--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    return topic, group


def _offset(commands: Commands, group: str) -> dict[str, Any]:
    (described,) = json.loads(commands.ok("share-groups", "--describe", "--group", group, "--json"))
    (offset,) = described["offsets"]
    return dict(offset)


def _take(commands: Commands, jobs: tuple[str, str], *args: str) -> list[str]:
    topic, group = jobs
    return commands.ok(
        "console-share-consumer", "--topic", topic, "--group", group, "--timeout-ms", "20000", *args
    ).splitlines()


def test_records_are_accepted_released_and_rejected(commands: Commands, jobs: tuple[str, str]) -> None:
    _, group = jobs
    delivery = ("--property", "print.delivery=true")
    assert _take(commands, jobs, "--max-messages", "3") == ["0", "1", "2"]
    # The start offset may come behind; the lag counts what lies before it and what is done with beyond it alike.
    assert _offset(commands, group)["lag"] == 7
    assert _take(commands, jobs, "--max-messages", "2", "--release") == ["3", "4"]
    again = _take(commands, jobs, "--max-messages", "2", "--reject", *delivery)
    assert [line.split("\t")[1] for line in again] == ["3", "4"]
    assert all(int(line.split("\t")[0].removeprefix("Delivery:")) > 1 for line in again)
    assert _offset(commands, group)["lag"] == 5


def test_members_of_a_share_group_are_shown_while_they_are_there(commands: Commands, jobs: tuple[str, str]) -> None:
    topic, group = jobs
    with commands.start("console-share-consumer", "--topic", topic, "--group", group) as process:
        try:

            def members() -> list[dict[str, Any]]:
                answer = commands.ok("share-groups", "--describe", "--group", group, "--members", "--json")
                return list(json.loads(answer)[0]["members"])

            eventually(lambda: members() and members()[0]["assignment"], "the member has its partition")
            assert members()[0]["clientId"] == "console-share-consumer"
            assert commands.ok("share-groups", "--list", "--state", "stable").split()[-2:] == [group, "Stable"]
            deleted = commands("share-groups", "--delete", "--group", group)
            assert deleted.code == 1
            assert f"Share group '{group}' is not EMPTY." in deleted.err
            reset = commands(
                "share-groups", "--reset-offsets", "--group", group, "--all-topics", "--to-latest", "--execute"
            )
            assert (reset.code, reset.out) == (1, "")
            assert f"Share group '{group}' is not empty." in reset.err
        finally:
            process.terminate()
            process.communicate(timeout=30)


def test_start_offsets_are_reset_and_deleted(commands: Commands, jobs: tuple[str, str]) -> None:
    topic, group = jobs
    reset = ("share-groups", "--reset-offsets", "--group", group, "--all-topics", "--to-latest")
    assert commands.ok(*reset, "--dry-run").splitlines()[2].split() == [group, topic, "0", "10"]
    assert _offset(commands, group)["startOffset"] == 0
    commands.ok(*reset, "--execute")
    head, row = commands.ok("share-groups", "--describe", "--group", group).splitlines()[1:]
    assert head.split() == ["GROUP", "TOPIC", "PARTITION", "START-OFFSET", "LAG"]
    assert row.split() == [group, topic, "0", "10", "0"]

    deleted = commands.ok("share-groups", "--delete-offsets", "--group", group, "--topic", topic)
    assert deleted.splitlines()[2].split() == [topic, "Successful"]
    assert commands.ok("share-groups", "--delete", "--group", group) == (
        f"Deletion of requested share groups ('{group}') was successful.\n"
    )
    assert group not in commands.ok("share-groups", "--list").split()


def test_only_share_groups_are_deleted(commands: Commands, new_topic: NewTopic) -> None:
    topic, group = new_topic(), f"group-{uuid.uuid4().hex[:12]}"
    commands.ok("consumer-groups", "--reset-offsets", "--group", group, "--topic", topic, "--to-latest", "--execute")
    result = commands("share-groups", "--delete", "--group", group)
    assert result.code == 1
    assert f"Group '{group}' is not a share group." in result.err
    assert group in commands.ok("consumer-groups", "--list").split()


def test_a_share_group_is_none_of_the_consumer_groups(commands: Commands, jobs: tuple[str, str]) -> None:
    topic, group = jobs
    reset = ("--reset-offsets", "--topic", topic, "--to-latest")
    for action in (("--delete",), (*reset, "--dry-run"), (*reset, "--execute")):
        result = commands("consumer-groups", *action, "--group", group)
        assert (result.code, result.out) == (1, "")
        assert f"Group {group} is not a consumer group." in result.err
    assert _offset(commands, group)["startOffset"] == 0


def test_a_reader_of_the_wrong_kind_is_told_so(commands: Commands, jobs: tuple[str, str]) -> None:
    topic, queue = jobs
    stream = f"stream-{uuid.uuid4().hex[:8]}"
    commands.ok("console-consumer", "--topic", topic, "--group", stream, "--from-beginning", "--max-messages", "1")
    for protocol in ("classic", "consumer"):
        result = commands(
            "console-consumer", "--topic", topic, "--group", queue, "--consumer-property", f"group.protocol={protocol}"
        )
        assert (result.code, len(result.err.splitlines())) == (1, 2)
        assert f"{queue} is a share group" in result.err
    result = commands("console-share-consumer", "--topic", topic, "--group", stream)
    assert (result.code, len(result.err.splitlines())) == (1, 2)
    assert f"{stream} is not a share group" in result.err
