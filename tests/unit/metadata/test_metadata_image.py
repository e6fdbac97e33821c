from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moldau.errors import StorageError
from moldau.metadata.image import MetadataImage, PartitionImage
from moldau.metadata.records import (
    BrokerRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    RemoveBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from tests.examples import examples

A, B = uuid.UUID(int=10), uuid.UUID(int=11)


def topic(name: str, topic_id: uuid.UUID, partitions: int) -> list[Record]:
    return [
        TopicRecord(name, topic_id),
        *(PartitionRecord(topic_id, index, (1,), (1,), leader=1) for index in range(partitions)),
    ]


def test_a_topic_is_found_by_name_and_by_id() -> None:
    image = MetadataImage().apply(topic("a", A, 2))
    found = image.topics["a"]
    assert image.topic_by_id(A) is found
    assert image.topic_by_id(A.bytes) is found
    assert image.topic_by_id(B) is None
    assert [partition.index for partition in found.partitions] == [0, 1]
    assert found.partition(1) is found.partitions[1]
    assert found.partition(2) is None
    assert found.partition(-1) is None
    assert image.partition_count == 2


def test_the_next_image_leaves_this_one_as_it_was() -> None:
    before = MetadataImage().apply([*topic("a", A, 1), ConfigRecord("topic", "a", "retention.ms", "5")])
    after = before.apply([*topic("b", B, 1), ConfigRecord("topic", "a", "retention.ms", "6")])
    assert set(before.topics) == {"a"}
    assert before.topic_config("a") == {"retention.ms": "5"}
    assert after.topic_config("a") == {"retention.ms": "6"}
    assert after.version > before.version
    assert after.topics["a"] is before.topics["a"]


def test_nobody_can_change_an_image() -> None:
    image = MetadataImage().apply(topic("a", A, 1))
    with pytest.raises(TypeError):
        image.topics["b"] = image.topics["a"]  # type: ignore[index]
    with pytest.raises(AttributeError):
        image.version = 7  # type: ignore[misc]


def test_a_partition_record_takes_the_place_of_the_one_before() -> None:
    image = MetadataImage().apply(topic("a", A, 2))
    image = image.apply([PartitionRecord(A, 0, (1, 2), (2,), leader=2, leader_epoch=1, partition_epoch=3)])
    assert image.topics["a"].partitions[0] == PartitionImage(0, 2, 1, (1, 2), (2,), 3)
    assert len(image.topics["a"].partitions) == 2


def test_a_deleted_topic_takes_its_configuration_with_it() -> None:
    image = MetadataImage().apply([*topic("a", A, 1), ConfigRecord("topic", "a", "retention.ms", "5")])
    image = image.apply([RemoveTopicRecord(A)])
    assert (dict(image.topics), dict(image.configs), image.topic_by_id(A)) == ({}, {}, None)
    image = image.apply(topic("a", B, 1))
    assert image.topic_config("a") == {}
    assert image.topic_by_id(B) is image.topics["a"]


def test_a_topic_may_come_and_go_within_one_change() -> None:
    image = MetadataImage().apply([*topic("a", A, 3), RemoveTopicRecord(A), *topic("a", B, 1)])
    assert (image.topics["a"].topic_id, len(image.topics["a"].partitions)) == (B, 1)
    assert dict(image.apply([*topic("b", A, 1), RemoveTopicRecord(A)]).topics) == dict(image.topics)


def test_dynamic_configuration_of_brokers() -> None:
    image = MetadataImage().apply(
        [ConfigRecord("broker", "", "message.max.bytes", "1"), ConfigRecord("broker", "3", "x", "2")]
    )
    assert image.broker_config(None) == {"message.max.bytes": "1"}
    assert image.broker_config(3) == {"x": "2"}
    assert image.broker_config(4) == {}


def test_producer_ids_never_go_back() -> None:
    image = MetadataImage().apply([ProducerIdsRecord(2000), ProducerIdsRecord(1000)])
    assert image.next_producer_id == 2000


def test_brokers_and_features() -> None:
    broker = BrokerRecord(1, 5, (("PLAINTEXT", "localhost", 9092, "PLAINTEXT"),))
    image = MetadataImage().apply([broker, FeatureLevelRecord("group.version", 1)])
    assert image.brokers == {1: broker}
    assert image.features == {"group.version": 1}
    image = image.apply([RemoveBrokerRecord(1), FeatureLevelRecord("group.version", 0)])
    assert (dict(image.brokers), dict(image.features)) == ({}, {})


@pytest.mark.parametrize(
    "records",
    [
        topic("a", B, 1),
        topic("c", A, 1),
        [PartitionRecord(B, 0, (1,), (1,), 1)],
        [PartitionRecord(A, 2, (1,), (1,), 1)],
        [PartitionRecord(A, -1, (1,), (1,), 1)],
        [RemoveTopicRecord(B)],
    ],
)
def test_records_that_do_not_fit_are_refused(records: list[Record]) -> None:
    image = MetadataImage().apply(topic("a", A, 1))
    with pytest.raises(StorageError, match="metadata"):
        image.apply(records)
    assert image == MetadataImage().apply(topic("a", A, 1))


names = st.sampled_from(["a", "b.c", "b_c"])
replicas = st.permutations([1, 2, 3]).map(tuple)


class ImageAgainstModel(RuleBasedStateMachine):
    """Every change goes to the image and to plain dictionaries; both must always tell the same."""

    def __init__(self) -> None:
        super().__init__()
        self.image = MetadataImage()
        self.count = 0
        self.ids: dict[str, uuid.UUID] = {}
        self.partitions: dict[str, list[tuple[Any, ...]]] = {}
        self.configs: dict[tuple[str, str], dict[str, str]] = {}
        self.brokers: dict[int, BrokerRecord] = {}
        self.producer_id = 0
        self.fresh = 0

    def apply(self, *records: Record) -> None:
        before, copy = self.image, MetadataImage(self.image.version).apply(self.image.to_records())
        self.image = before.apply(records)
        self.count += len(records)
        assert before.topics == copy.topics
        assert before.configs == copy.configs

    @rule(name=names, placed=st.lists(replicas, min_size=1, max_size=3))
    def create(self, name: str, placed: list[tuple[int, ...]]) -> None:
        if name in self.ids:
            return
        self.fresh += 1
        topic_id = self.ids[name] = uuid.UUID(int=self.fresh)
        self.partitions[name] = [(index, each, each[0]) for index, each in enumerate(placed)]
        self.apply(
            TopicRecord(name, topic_id),
            *(PartitionRecord(topic_id, index, each, each, leader) for index, each, leader in self.partitions[name]),
        )

    @rule(name=names, each=replicas)
    def add_partition(self, name: str, each: tuple[int, ...]) -> None:
        if name in self.ids:
            index = len(self.partitions[name])
            self.partitions[name].append((index, each, each[0]))
            self.apply(PartitionRecord(self.ids[name], index, each, each, each[0]))

    @rule(name=names, leader=st.integers(1, 3))
    def move_leader(self, name: str, leader: int) -> None:
        if name in self.ids:
            index, each, _ = self.partitions[name][0]
            self.partitions[name][0] = (index, each, leader)
            self.apply(PartitionRecord(self.ids[name], index, each, each, leader))

    @rule(name=names)
    def delete(self, name: str) -> None:
        if name in self.ids:
            self.apply(RemoveTopicRecord(self.ids.pop(name)))
            del self.partitions[name]
            self.configs.pop(("topic", name), None)

    @rule(
        resource=st.one_of(
            st.tuples(st.just("topic"), names), st.tuples(st.just("broker"), st.sampled_from(["", "1"]))
        ),
        key=st.sampled_from(["x", "y"]),
        value=st.none() | st.sampled_from(["1", "2"]),
    )
    def configure(self, resource: tuple[str, str], key: str, value: str | None) -> None:
        if resource[0] == "topic" and resource[1] not in self.ids:
            return
        self.apply(ConfigRecord(*resource, key, value))
        values = self.configs.setdefault(resource, {})
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
        if not values:
            del self.configs[resource]

    @rule(broker_id=st.integers(1, 3), epoch=st.integers(0, 5))
    def register(self, broker_id: int, epoch: int) -> None:
        self.brokers[broker_id] = BrokerRecord(broker_id, epoch, ())
        self.apply(self.brokers[broker_id])

    @rule(block=st.integers(1, 1000))
    def reserve(self, block: int) -> None:
        self.producer_id += block
        self.apply(ProducerIdsRecord(self.producer_id))

    @precondition(lambda self: self.ids)
    @rule()
    def restart(self) -> None:
        self.image = MetadataImage(self.image.version - len([*self.image.to_records()])).apply(
            [*self.image.to_records()]
        )

    @invariant()
    def both_tell_the_same(self) -> None:
        image = self.image
        assert image.version == self.count
        assert {name: each.topic_id for name, each in image.topics.items()} == self.ids
        assert image.partition_count == sum(map(len, self.partitions.values()))
        alike = sorted(name for names in image.alike.values() for name in names)
        assert alike == sorted(name for name in self.ids if "." in name or "_" in name)
        for name, topic_id in self.ids.items():
            found = image.topic_by_id(topic_id)
            assert found is image.topics[name]
            assert [(p.index, p.replicas, p.leader) for p in found.partitions] == self.partitions[name]
        assert len(image.names_by_id) == len(self.ids)
        assert {resource: dict(values) for resource, values in image.configs.items()} == self.configs
        assert image.brokers == self.brokers
        assert image.next_producer_id == self.producer_id


ImageAgainstModel.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
TestImageAgainstModel = ImageAgainstModel.TestCase
