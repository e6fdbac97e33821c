"""Administrators' commands against a live broker, in Kafka's words."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Commands

NewTopic = Callable[..., str]


def test_a_topic_is_created_described_grown_and_deleted(commands: Commands) -> None:
    name = f"cli-{uuid.uuid4().hex[:12]}"
    created = commands.ok(
        "topics", "--create", "--topic", name, "--partitions", "2", "--replication-factor", "1",
        "--config", "retention.ms=86400000",
    )  # fmt: skip
    assert created == f"Created topic {name}.\n"
    assert name in commands.ok("topics", "--list").splitlines()

    head, *partitions = commands.ok("topics", "--describe", "--topic", name).splitlines()
    assert re.fullmatch(
        rf"Topic: {name}\tTopicId: [\w-]{{22}}\tPartitionCount: 2\tReplicationFactor: 1"
        r"\tConfigs: (\S+,)?retention\.ms=86400000(,\S+)?",
        head,
    )
    leader = re.search(r"Leader: (\d+)", partitions[0])
    assert leader
    node = leader[1]
    elr = r"\tElr: (N/A)?\tLastKnownElr: (N/A)?"
    for index, line in enumerate(partitions):
        assert re.fullmatch(
            rf"\tTopic: {name}\tPartition: {index}\tLeader: {node}\tReplicas: {node}\tIsr: {node}{elr}", line
        )

    assert commands.ok("topics", "--alter", "--topic", name, "--partitions", "5") == ""
    (described,) = json.loads(commands.ok("topics", "--describe", "--topic", name, "--json"))
    assert described["partitionCount"] == len(described["partitions"]) == 5

    assert commands.ok("topics", "--delete", "--topic", name) == ""
    assert name not in commands.ok("topics", "--list").splitlines()


def test_what_exists_is_not_created_twice(commands: Commands, new_topic: NewTopic) -> None:
    name = new_topic()
    again = commands("topics", "--create", "--topic", name)
    assert (again.code, again.out) == (1, "")
    assert again.err == f"Error while executing topic command : Topic '{name}' already exists.\n"
    assert commands.ok("topics", "--create", "--topic", name, "--if-not-exists") == ""


def test_what_does_not_exist_is_a_failure_unless_allowed(commands: Commands) -> None:
    for action in (["--describe"], ["--delete"], ["--alter", "--partitions", "3"]):
        result = commands("topics", *action, "--topic", "cli-nowhere")
        assert (result.code, result.out) == (1, "")
        assert "Topic 'cli-nowhere' does not exist as expected" in result.err
        assert commands.ok("topics", *action, "--topic", "cli-nowhere", "--if-exists") == ""


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--topic", "bad!name"], "contains one or more characters other than ASCII alphanumerics"),
        (["--topic", "cli-refused", "--config", "no.such.key=1"], "no.such.key"),
        (["--topic", "cli-refused", "--config", "retention.ms=soon"], "retention.ms"),
        (["--topic", "cli-refused", "--replication-factor", "9"], "replication factor"),
        (["--topic", "cli-refused", "--replica-assignment", "99"], "99"),
    ],
)
def test_a_topic_the_broker_refuses_is_one_line_with_its_reason(
    commands: Commands, args: list[str], words: str
) -> None:
    result = commands("topics", "--create", *args)
    assert (result.code, result.out) == (1, "")
    assert words in result.err
    assert result.err.count("\n") == 1
    assert result.err.startswith("Error while executing topic command : ")


def test_fewer_partitions_are_refused(commands: Commands, new_topic: NewTopic) -> None:
    name = new_topic("--partitions", "3")
    result = commands("topics", "--alter", "--topic", name, "--partitions", "2")
    assert result.code == 1
    assert "3 partition" in result.err


def test_topics_are_chosen_by_regular_expression(commands: Commands, new_topic: NewTopic) -> None:
    names = sorted(new_topic() for _ in range(2))
    assert commands.ok("topics", "--list", "--topic", "|".join(names)).split() == names
    assert commands.ok("topics", "--list", "--topic", names[0][:-1]).split() == []
    commands.ok("topics", "--delete", "--topic", f"({names[0]}|{names[1]})")
    assert commands.ok("topics", "--list", "--topic", "|".join(names)) == ""


def test_a_topic_is_found_by_its_id(commands: Commands, new_topic: NewTopic) -> None:
    name = new_topic()
    (described,) = json.loads(commands.ok("topics", "--describe", "--topic", name, "--json"))
    assert commands.ok("topics", "--describe", "--topic-id", described["topicId"]).startswith(f"Topic: {name}\t")
    missing = commands("topics", "--describe", "--topic-id", "AAAAAAAAAAAAAAAAAAAAAg")
    assert missing.code == 1
    assert "TopicId 'AAAAAAAAAAAAAAAAAAAAAg' does not exist" in missing.err


def test_healthy_partitions_are_in_no_report_of_sick_ones(commands: Commands, new_topic: NewTopic) -> None:
    name = new_topic()
    for report in ("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions"):
        assert commands.ok("topics", "--describe", "--topic", name, report) == ""
    assert f"Topic: {name}\tPartition: 0" in commands.ok(
        "topics", "--describe", "--topic", name, "--at-min-isr-partitions"
    )


def test_topics_with_a_configuration_of_their_own(commands: Commands, new_topic: NewTopic) -> None:
    name = new_topic("--config", "cleanup.policy=compact")
    (line,) = commands.ok("topics", "--describe", "--topic", name, "--topics-with-overrides").splitlines()
    assert "cleanup.policy=compact" in line


def test_group_configurations_are_set_shown_and_unset(commands: Commands) -> None:
    group = f"cli-{uuid.uuid4().hex[:8]}"
    assert "share.auto.offset.reset=latest" in commands.ok("configs", "--describe", "--group", group, "--all")
    added = "share.auto.offset.reset=earliest,share.isolation.level=read_committed"
    done = f"Completed updating config for group {group}.\n"
    assert commands.ok("configs", "--alter", "--group", group, "--add-config", added) == done
    lines = commands.ok("configs", "--describe", "--entity-type", "groups").splitlines()
    first = lines.index(f"Dynamic configs for group {group} are:")
    assert [line.partition(" sensitive=")[0] for line in lines[first + 1 : first + 3]] == [
        "  share.auto.offset.reset=earliest",
        "  share.isolation.level=read_committed",
    ]
    keys = "share.auto.offset.reset,share.isolation.level"
    assert commands.ok("configs", "--alter", "--group", group, "--delete-config", keys) == done
    assert group not in commands.ok("configs", "--describe", "--entity-type", "groups")
    refused = commands("configs", "--alter", "--group", group, "--add-config", "share.session.timeout.ms=1")
    assert refused.code == 1
    assert "group.share.min.session.timeout.ms" in refused.err


def test_topic_configurations_are_set_shown_and_unset(commands: Commands, new_topic: NewTopic, tmp_path: Path) -> None:
    name = new_topic()
    assert (
        commands.ok(
            "configs", "--alter", "--topic", name, "--add-config", "retention.ms=5,cleanup.policy=[compact,delete]"
        )
        == f"Completed updating config for topic {name}.\n"
    )
    lines = commands.ok("configs", "--describe", "--entity-type", "topics", "--entity-name", name).splitlines()
    assert lines[0] == f"Dynamic configs for topic {name} are:"
    assert [line.partition(" sensitive=")[0] for line in lines[1:]] == [
        "  cleanup.policy=compact,delete",
        "  retention.ms=5",
    ]
    assert "synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5" in lines[2]

    commands.ok("configs", "--alter", "--topic", name, "--delete-config", "retention.ms,cleanup.policy")
    assert len(commands.ok("configs", "--describe", "--topic", name).splitlines()) == 1

    file = tmp_path / "topic.properties"
    file.write_text("max.message.bytes = 2000\n")
    commands.ok("configs", "--alter", "--topic", name, "--add-config-file", str(file))
    (described,) = json.loads(commands.ok("configs", "--describe", "--topic", name, "--json"))
    assert [(c["name"], c["value"], c["source"]) for c in described["configs"]] == [
        ("max.message.bytes", "2000", "DYNAMIC_TOPIC_CONFIG")
    ]
    everything = commands.ok("configs", "--describe", "--topic", name, "--all")
    assert "\n  segment.bytes=" in everything


def test_configurations_that_cannot_be_are_refused(commands: Commands, new_topic: NewTopic) -> None:
    name = new_topic()
    for change, words in (
        (["--add-config", "retention.ms=soon"], "retention.ms"),
        (["--add-config", "no.such.key=1"], "no.such.key"),
        (["--delete-config", "retention.ms"], "Invalid config(s): retention.ms"),
    ):
        result = commands("configs", "--alter", "--topic", name, *change)
        assert (result.code, result.out) == (1, "")
        assert words in result.err
    missing = commands("configs", "--describe", "--topic", "cli-nowhere")
    assert missing.code == 1
    assert "The topic 'cli-nowhere' doesn't exist" in missing.err


def test_a_brokers_configuration_is_shown_with_where_it_comes_from(commands: Commands) -> None:
    brokers = json.loads(commands.ok("broker-api-versions", "--json"))
    node = str(brokers[0]["id"])
    lines = commands.ok("configs", "--describe", "--broker", node, "--all").splitlines()
    assert lines[0] == f"All configs for broker {node} are:"
    assert any(line.startswith("  num.partitions=") for line in lines)
    assert commands("configs", "--describe", "--broker", "77").code == 1


def test_offsets_are_told_for_every_kind_of_time(commands: Commands, new_topic: NewTopic) -> None:
    name = new_topic("--partitions", "2")
    commands.ok("console-producer", "--topic", name, stdin="1\n2\n3\n")
    latest = commands.ok("get-offsets", "--topic", name).split()
    assert [line.rpartition(":")[0] for line in latest] == [f"{name}:0", f"{name}:1"]
    assert sum(int(line.rpartition(":")[2]) for line in latest) == 3
    assert commands.ok("get-offsets", "--topic", name, "--time", "-1").split() == latest
    assert commands.ok("get-offsets", "--topic", name, "--time", "earliest").split() == [f"{name}:0:0", f"{name}:1:0"]
    assert commands.ok("get-offsets", "--topic", name, "--time", "99999999999999") == ""
    first = commands.ok("get-offsets", "--topic", name, "--time", "1").split()
    newest = commands.ok("get-offsets", "--topic", name, "--time", "-3").split()
    assert [line.rpartition(":")[2] for line in first] == ["0"] * len(first)
    assert len(first) == len(newest) >= 1
    assert commands.ok("get-offsets", "--topic-partitions", f"{name}:1") == f"{latest[1]}\n"
    (one,) = json.loads(commands.ok("get-offsets", "--topic", name, "--partitions", "0", "--json"))
    assert f"{one['topic']}:{one['partition']}:{one['offset']}" == latest[0]
    nothing = commands("get-offsets", "--topic", "cli-nowhere")
    assert (nothing.code, nothing.out) == (1, "")
    assert nothing.err == "Error occurred: Could not match any topic-partitions with the specified filters\n"


def test_records_are_deleted_up_to_an_offset(commands: Commands, new_topic: NewTopic, tmp_path: Path) -> None:
    name = new_topic("--partitions", "1")
    commands.ok("console-producer", "--topic", name, stdin="1\n2\n3\n")
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"partitions": [{"topic": name, "partition": 0, "offset": 2}], "version": 1}))
    assert commands.ok("delete-records", "--offset-json-file", str(file)).splitlines() == [
        "Executing records delete operation",
        "Records delete operation completed:",
        f"partition: {name}-0\tlow_watermark: 2",
    ]
    assert commands.ok("get-offsets", "--topic", name, "--time", "earliest") == f"{name}:0:2\n"
    file.write_text(json.dumps({"partitions": [{"topic": name, "partition": 0, "offset": 99}]}))
    result = commands("delete-records", "--offset-json-file", str(file), "--json")
    assert result.code == 1
    assert "range" in json.loads(result.out)[0]["error"]


def test_log_directories_tell_sizes_in_kafkas_json(commands: Commands, new_topic: NewTopic) -> None:
    name = new_topic("--partitions", "1")
    commands.ok("console-producer", "--topic", name, stdin="some bytes\n")
    first, second, answer = commands.ok("log-dirs", "--describe", "--topic-list", name).splitlines()
    assert first == "Querying brokers for log directories information"
    (broker,) = json.loads(answer)["brokers"]
    assert second == f"Received log directory information from brokers {broker['broker']}"
    (partition,) = [p for d in broker["logDirs"] for p in d["partitions"]]
    assert partition["partition"] == f"{name}-0"
    assert partition["size"] > 10
    assert (partition["offsetLag"], partition["isFuture"]) == (0, False)
    assert json.loads(commands.ok("log-dirs", "--describe", "--topic-list", name, "--json")) == json.loads(answer)
    wrong = commands("log-dirs", "--describe", "--broker-list", "77")
    assert wrong.code == 1
    assert "do not exist from --broker-list: 77" in wrong.err


def test_api_versions_are_told_per_broker(commands: Commands) -> None:
    first, *lines = commands.ok("broker-api-versions").splitlines()
    assert re.fullmatch(r"\S+:\d+ \(id: \d+ rack: null isFenced: false\) -> \(", first)
    assert lines[0] == "\tProduce(0): 0 to 13 [usable: 13],"
    assert lines[-1] == ")"
    assert any(line.startswith("\tApiVersions(18): 0 to 4") for line in lines)


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("topics", ["--list"], b""),
        ("configs", ["--describe", "--entity-type", "brokers"], b"Default configs for brokers"),
        ("log-dirs", ["--describe"], b'"version":1'),
        ("broker-api-versions", [], b"Produce(0)"),
    ],
)
def test_commands_are_processes_too(commands: Commands, name: str, args: list[str], words: bytes) -> None:
    with commands.start(name, *args) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert words in out
