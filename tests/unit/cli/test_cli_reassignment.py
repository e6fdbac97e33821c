"""The files of kafka-reassign-partitions and kafka-leader-election, and what follows from them."""

from __future__ import annotations

import json
import random

import pytest

from moldau.cli.admin.reassign_partitions import _log_dir_state, _moves, _proposed, _state
from moldau.cli.admin.reassignment_json import (
    Move,
    Plan,
    check_executable,
    format_plan,
    parse_broker_list,
    parse_partitions,
    parse_plan,
    parse_topics,
    throttled_replicas,
)
from moldau.client.cluster_admin import Reassignment
from moldau.errors import ConfigError
from moldau.wire.topic_partition import TopicPartition


def plan_of(*entries: dict[str, object]) -> str:
    return json.dumps({"version": 1, "partitions": entries})


def test_a_plan_is_read_and_written_as_kafka_does() -> None:
    text = (
        '{"version":1,"partitions":['
        '{"topic":"bar","partition":0,"replicas":[4],"log_dirs":["any"]},'
        '{"topic":"foo","partition":1,"replicas":[1,2],"log_dirs":["/d1","any"]}]}'
    )
    plan = parse_plan(text)
    assert plan == Plan({TopicPartition("bar", 0): [4], TopicPartition("foo", 1): [1, 2]}, {("foo", 1, 1): "/d1"})
    assert format_plan(plan.replicas, plan.log_dirs) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not a valid JSON"),
        ("[]", "not a JSON object"),
        ('{"version": 2, "partitions": []}', "Not supported version field value 2"),
        ('{"partitions": {}}', "expected a list of objects"),
        (plan_of({"topic": "t", "partition": "0", "replicas": [1]}), '"partition": expected a number'),
        (plan_of({"topic": "t", "partition": 0}), '"replicas": expected a list of broker ids'),
        (plan_of({"topic": "t", "partition": 0, "replicas": [1], "log_dirs": []}), "Size of replicas list"),
        (plan_of(*[{"topic": "t", "partition": 0, "replicas": [1]}] * 2), "duplicate topic partitions: t-0"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_plan(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (plan_of(), "list cannot be empty"),
        (plan_of({"topic": "t", "partition": 0, "replicas": []}), "replica list cannot be empty"),
        (plan_of({"topic": "t", "partition": 0, "replicas": [1, 2, 1]}), "t-0 contains multiple entries for 1"),
    ],
)
def test_a_plan_that_cannot_be_executed_is_refused_before_anything_moves(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_executable(parse_plan(text))


def test_topics_and_brokers_are_named_once() -> None:
    assert parse_topics('{"topics": [{"topic": "a"}, {"topic": "b"}]}') == ["a", "b"]
    with pytest.raises(ConfigError, match="duplicate entries"):
        parse_topics('{"topics": [{"topic": "a"}, {"topic": "a"}]}')
    assert parse_broker_list("3,1") == [3, 1]
    for text in ("1,1", "1,x", ""):
        with pytest.raises(ConfigError):
            parse_broker_list(text)


def test_partitions_to_elect_leaders_of_are_named_once() -> None:
    assert parse_partitions('{"partitions": [{"topic": "a", "partition": 1}]}') == [("a", 1)]
    with pytest.raises(ConfigError, match='missing "partitions" field'):
        parse_partitions("{}")
    with pytest.raises(ConfigError, match="duplicate partitions: a-1"):
        parse_partitions('{"partitions": [{"topic": "a", "partition": 1}, {"topic": "a", "partition": 1}]}')


def test_throttles_are_on_those_who_send_and_those_who_get() -> None:
    moves = {
        TopicPartition("foo", 0): Move(frozenset({1, 2, 3}), frozenset({5})),
        TopicPartition("foo", 1): Move(frozenset({4}), frozenset({4, 6})),
        TopicPartition("bar", 0): Move(frozenset({1}), frozenset()),
    }
    assert throttled_replicas(moves) == {"foo": ("0:1,0:2,0:3,1:4", "0:5,1:6"), "bar": ("0:1", "")}


def test_what_moves_already_comes_from_where_it_came_from() -> None:
    moving = {
        TopicPartition("a", 0): Reassignment((1, 2, 3), (3,), (1,)),
        TopicPartition("b", 0): Reassignment((1, 4), (4,), ()),
    }
    plan = Plan({TopicPartition("a", 0): [5, 2], TopicPartition("c", 0): [1, 2]}, {})
    assert _moves(moving, plan, {TopicPartition("c", 0): [1]}) == {
        ("a", 0): Move(frozenset({1, 2}), frozenset({5})),
        ("b", 0): Move(frozenset({1}), frozenset({4})),
        ("c", 0): Move(frozenset({1}), frozenset({2})),
    }


def test_the_states_of_partitions_in_kafkas_words() -> None:
    assert (
        _state(TopicPartition("t", 0), [1, 2], [1, 2], is_moving=False) == "Reassignment of partition t-0 is completed."
    )
    assert (
        _state(TopicPartition("t", 0), [1, 2], [1, 3], is_moving=True)
        == "Reassignment of partition t-0 is still in progress."
    )
    assert _state(TopicPartition("t", 0), [1, 2], [2, 1], is_moving=False) == (
        "There is no active reassignment of partition t-0, but replica set is 2,1 rather than 1,2."
    )


@pytest.mark.parametrize(
    ("now", "future", "words"),
    [
        (None, None, "Partition t-0 cannot be found in any live log directory on broker 1."),
        ("/a", "/b", "Reassignment of replica t-0-1 is still in progress."),
        ("/a", "/c", "Partition t-0 on broker 1 is being moved to log dir /c instead of /b."),
        ("/a", None, "Partition t-0 on broker 1 is not being moved from log dir /a to /b."),
        ("/b", None, "Reassignment of replica t-0-1 completed successfully."),
    ],
)
def test_the_states_of_log_directories_in_kafkas_words(now: str | None, future: str | None, words: str) -> None:
    assert _log_dir_state(("t", 0, 1), "/b", now, future) == words


@pytest.mark.parametrize("seed", range(20))
def test_a_proposal_keeps_the_replication_factor_and_spreads_over_racks(seed: int) -> None:
    random.seed(seed)
    current = {TopicPartition(topic, index): [1, 2] for topic in ("a", "b") for index in range(6)}
    racks = {1: "r1", 2: "r1", 3: "r2", 4: "r2"}
    proposed = _proposed(current, racks)
    assert proposed.keys() == current.keys()
    assert all(len({racks[broker] for broker in ids}) == 2 for ids in proposed.values())
    leaders = [ids[0] for ids in proposed.values()]
    assert all(2 <= leaders.count(broker) <= 4 for broker in racks)
