from __future__ import annotations

import dataclasses
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.config.broker import BrokerConfig
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.image import MetadataImage, TopicImage
from moldau.metadata.records import BrokerRecord, ConfigRecord, PartitionRecord, TopicRecord
from moldau.metadata.topics import (
    MAX_PARTITIONS_PER_REQUEST,
    check_partition_count,
    is_internal,
    plan_create_partitions,
    plan_create_topic,
    plan_delete_topic,
    validate_topic_name,
)

ID = uuid.UUID(int=5)
CONFIG = BrokerConfig(num_partitions=3, default_replication_factor=2)


def with_brokers(image: MetadataImage, *brokers: int) -> MetadataImage:
    return dataclasses.replace(image, brokers={one: BrokerRecord(one, 1, ()) for one in brokers})


def create(image: MetadataImage, name: str, brokers: Sequence[int] = (1, 2, 3), **options: Any) -> MetadataImage:
    options = {"topic_id": uuid.uuid4(), "broker_config": CONFIG, **options}
    image = with_brokers(image, *brokers)
    return image.apply(plan_create_topic(image, name, **options))


def refusal(call: Any, *args: Any, **options: Any) -> tuple[ErrorCode, str]:
    with pytest.raises(KafkaError) as caught:
        call(*args, **options)
    return caught.value.code, caught.value.message


def replicas(image: MetadataImage, name: str) -> list[tuple[int, ...]]:
    return [partition.replicas for partition in image.topics[name].partitions]


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "x" * 249, "...", "__consumer_offsets"])
def test_good_names(name: str) -> None:
    validate_topic_name(name)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("x" * 250, f"the length of '{'x' * 250}' is longer than the max allowed length 249"),
        ("a b", "'a b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("größe", "'größe' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        (
            "a/../b",
            "'a/../b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'",
        ),
        ("a\n", "'a\n' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
    ],
)
def test_bad_names_are_refused_in_kafkas_words(name: str, problem: str) -> None:
    expected = (ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")
    assert refusal(validate_topic_name, name) == expected
    if name:
        assert refusal(create, MetadataImage(), name) == expected


def test_internal_topics() -> None:
    assert is_internal("__consumer_offsets")
    assert not is_internal("__mine")


def test_a_topic_is_created_with_partitions_and_configuration() -> None:
    records = plan_create_topic(
        MetadataImage(),
        "a",
        topic_id=ID,
        broker_config=CONFIG,
        num_partitions=2,
        replication_factor=1,
        configs={"retention.ms": "5"},
    )
    assert records == [
        TopicRecord("a", ID),
        ConfigRecord("topic", "a", "retention.ms", "5"),
        PartitionRecord(ID, 0, (1,), (1,), leader=1, leader_epoch=0),
        PartitionRecord(ID, 1, (1,), (1,), leader=1, leader_epoch=0),
    ]


def test_minus_one_takes_the_brokers_defaults() -> None:
    image = create(MetadataImage(), "a")
    assert replicas(image, "a") == [(1, 2), (2, 3), (3, 1)]


def test_followers_change_with_every_round_of_leaders() -> None:
    image = create(MetadataImage(), "a", num_partitions=6)
    assert replicas(image, "a") == [(1, 2), (2, 3), (3, 1), (1, 3), (2, 1), (3, 2)]


def test_the_next_topic_begins_where_the_last_one_ended() -> None:
    image = create(create(MetadataImage(), "a", num_partitions=1), "b", num_partitions=1)
    assert [leaders[0] for leaders in (*replicas(image, "a"), *replicas(image, "b"))] == [1, 2]


@given(
    size=st.integers(1, 6),
    factor=st.integers(1, 6),
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=4),
)
def test_replicas_are_distinct_and_leaders_and_replicas_even(size: int, factor: int, counts: list[int]) -> None:
    brokers, factor = range(10, 10 + size), min(factor, size)
    image = MetadataImage()
    for number, count in enumerate(counts):
        image = create(image, f"t{number}", brokers=brokers, num_partitions=count, replication_factor=factor)
    placed = [each for name in image.topics for each in replicas(image, name)]
    assert all(len(set(each)) == factor and set(each) <= set(brokers) for each in placed)
    leaders = Counter(each[0] for each in placed)
    assert max(leaders.values()) - min(leaders[broker] for broker in brokers) <= 1
    holders = Counter(broker for each in placed for broker in each)
    assert max(holders.values()) - min(holders[broker] for broker in brokers) <= factor


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ({"num_partitions": 0}, ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid"),
        ({"num_partitions": -2}, ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid"),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR, "must be larger than 0, or -1"),
        ({"replication_factor": -2}, ErrorCode.INVALID_REPLICATION_FACTOR, "must be larger than 0, or -1"),
        (
            {"replication_factor": 4},
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Unable to replicate the partition 4 time(s): The target replication factor of 4 cannot be "
            "reached because only 3 broker(s) are registered.",
        ),
        ({"num_partitions": 10_001}, ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions"),
        ({"configs": {"retention": "5"}}, ErrorCode.INVALID_CONFIG, "Unknown topic config name: retention"),
        ({"configs": {"retention.ms": "x"}}, ErrorCode.INVALID_CONFIG, "Invalid value x for configuration"),
        ({"configs": {"retention.ms": None}}, ErrorCode.INVALID_CONFIG, "Null value not supported"),
        (
            {"assignments": [(0, [1])], "num_partitions": 1},
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        ),
        (
            {"assignments": [(0, [1])], "replication_factor": 1},
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        ),
        (
            {"assignments": [(0, [1]), (0, [2])]},
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Found multiple manual partition assignments for partition 0",
        ),
        (
            {"assignments": [(0, [1]), (2, [2])]},
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            {"assignments": [(0, [])]},
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes an empty replica list.",
        ),
        (
            {"assignments": [(0, [5])]},
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes broker 5, but no such broker is registered.",
        ),
        (
            {"assignments": [(0, [1, 1])]},
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes the broker 1 more than once.",
        ),
        (
            {"assignments": [(0, [1]), (1, [2, 3])]},
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "includes a partition with 2 replica(s), but this is not consistent with previous partitions, "
            "which have 1 replica(s).",
        ),
    ],
)
def test_what_cannot_be_created_is_refused_with_kafkas_code(
    options: dict[str, Any], code: ErrorCode, message: str
) -> None:
    got = refusal(create, MetadataImage(), "a", **options)
    assert got[0] is code
    assert message in got[1]


def test_assignments_are_taken_as_given_in_any_order() -> None:
    image = create(MetadataImage(), "a", assignments=[(1, [3, 1]), (0, [2, 3])])
    assert replicas(image, "a") == [(2, 3), (3, 1)]
    assert [partition.leader for partition in image.topics["a"].partitions] == [2, 3]


def test_a_name_is_taken_once() -> None:
    image = create(MetadataImage(), "a")
    assert refusal(create, image, "a") == (ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'a' already exists.")


@pytest.mark.parametrize(("first", "second"), [("a.b", "a_b"), ("a_b", "a.b"), ("a.b_c", "a_b.c")])
def test_names_that_share_their_metrics_collide(first: str, second: str) -> None:
    image = create(MetadataImage(), first)
    assert refusal(create, image, second) == (
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        f"Topic '{second}' collides with existing topic: {first}",
    )
    create(image, "ab")


def test_a_request_has_a_limit_of_partitions() -> None:
    check_partition_count(MAX_PARTITIONS_PER_REQUEST)
    assert refusal(check_partition_count, MAX_PARTITIONS_PER_REQUEST + 1)[0] is ErrorCode.POLICY_VIOLATION


class TestCreatePartitions:
    image = create(MetadataImage(), "a", num_partitions=2, replication_factor=2)

    def test_new_ones_go_on_round_the_brokers(self) -> None:
        image = self.image.apply(plan_create_partitions(self.image, "a", 5, broker_config=CONFIG))
        assert replicas(image, "a")[:2] == replicas(self.image, "a")
        assert [each[0] for each in replicas(image, "a")] == [1, 2, 3, 1, 2]
        assert all(len(set(each)) == 2 for each in replicas(image, "a"))

    def test_assignments_of_the_new_ones(self) -> None:
        records = plan_create_partitions(self.image, "a", 3, broker_config=CONFIG, assignments=[[3, 2]])
        assert replicas(self.image.apply(records), "a")[2] == (3, 2)

    @pytest.mark.parametrize(
        ("name", "count", "assignments", "code", "message"),
        [
            ("b", 3, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "does not host"),
            ("a", 2, None, ErrorCode.INVALID_PARTITIONS, "Topic already has 2 partition(s)."),
            (
                "a",
                1,
                None,
                ErrorCode.INVALID_PARTITIONS,
                "The topic a currently has 2 partition(s); 1 would not be an increase.",
            ),
            (
                "a",
                4,
                [[1, 2]],
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
            ),
            ("a", 3, [[1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "not consistent with previous partitions"),
            ("a", 3, [[1, 9]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "includes broker 9"),
            ("a", 20_000, None, ErrorCode.POLICY_VIOLATION, "Excessively large"),
        ],
    )
    def test_what_cannot_be_added_is_refused_with_kafkas_code(
        self, name: str, count: int, assignments: Any, code: ErrorCode, message: str
    ) -> None:
        got = refusal(plan_create_partitions, self.image, name, count, broker_config=CONFIG, assignments=assignments)
        assert got[0] is code
        assert message in got[1]

    def test_too_few_brokers_are_said(self) -> None:
        code, message = refusal(plan_create_partitions, with_brokers(self.image, 1), "a", 3, broker_config=CONFIG)
        assert code is ErrorCode.INVALID_REPLICATION_FACTOR
        assert "only 1 broker(s) are registered" in message


class TestDelete:
    image = create(MetadataImage(), "a", topic_id=ID)

    @pytest.mark.parametrize("topic", ["a", ID, ID.bytes])
    def test_by_name_and_by_id(self, topic: str | uuid.UUID | bytes) -> None:
        assert dict(self.image.apply(plan_delete_topic(self.image, topic)).topics) == {}

    def test_what_is_not_there(self) -> None:
        assert refusal(plan_delete_topic, self.image, "b")[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert refusal(plan_delete_topic, self.image, uuid.UUID(int=9))[0] is ErrorCode.UNKNOWN_TOPIC_ID


class _Unwalked(dict[str, TopicImage]):
    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a request of many topics would take the square of their number")

    values = items = keys = __iter__  # type: ignore[assignment]


def test_a_topic_is_planned_without_a_walk_over_all_others() -> None:
    image = create(create(MetadataImage(), "a.b", num_partitions=2), "c")
    unwalked = dataclasses.replace(image, topics=_Unwalked(image.topics))
    assert plan_create_topic(unwalked, "d.e", topic_id=ID, broker_config=CONFIG)
    assert refusal(create, unwalked, "a_b")[0] is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_deleted_topics_name_collides_with_nothing() -> None:
    image = create(MetadataImage(), "a.b")
    image = image.apply(plan_delete_topic(image, "a.b"))
    assert "a_b" in create(image, "a_b").topics
