"""Newer images come into force one after the other, whatever happens to one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from moldau.broker.cluster.local_broker import LocalBroker
from moldau.broker.cluster.metadata_cache import MetadataCache
from moldau.broker.cluster.metadata_follower import Listeners, MetadataFollower
from moldau.broker.monitoring.metrics import Metrics
from moldau.config.broker import BrokerConfig
from moldau.metadata.image import MetadataImage, TopicImage
from moldau.metadata.records import BrokerRecord, ConfigRecord, PartitionRecord, Record, RemoveTopicRecord, TopicRecord
from moldau.wire.uuids import random_uuid


class Partitions:
    """Notes what it is asked for; `fail` makes the next change fail."""

    def __init__(self) -> None:
        self.prepared: list[list[str]] = []
        self.fails = False

    def prepare(self, topics: Sequence[TopicImage], before: MetadataImage, after: MetadataImage) -> None:
        self.prepared.append([topic.name for topic in topics])

    async def follow(self, changed: Sequence[TopicImage]) -> None:
        if self.fails:
            self.fails = False
            raise IndexError

    async def retry(self) -> None: ...


class Following:
    def __init__(self) -> None:
        local = LocalBroker(BrokerConfig.from_properties({"node.id": "1"})[0])
        self.metadata = MetadataCache(local)
        self.partitions = Partitions()
        self.metrics = Metrics()
        self.heard: list[str | int] = []

        async def in_thread(work: Callable[..., Any], *args: Any) -> Any:
            return work(*args)

        self.follower = MetadataFollower(
            local,
            self.metadata,
            self.partitions,
            in_thread=in_thread,
            listeners=Listeners(
                config=[lambda _: self.heard.append("config")],
                brokers=[lambda before, after: self.heard.append("brokers")],
                topics=[lambda: self.heard.append("topics")],
                applied=[self.heard.append],
            ),
            metrics=self.metrics,
        )

    async def apply(self, *records: Record) -> None:
        image = self.metadata.newest.apply(records)
        self.metadata.follow(image)
        async with asyncio.timeout(10):
            await self.metadata.applied(image.version)
        assert self.metadata.image is image


@pytest.fixture
async def following() -> AsyncIterator[Following]:
    following = Following()
    task = asyncio.ensure_future(following.follower.run())
    yield following
    task.cancel()


def topic(name: str) -> list[Record]:
    topic_id = random_uuid()
    return [TopicRecord(name, topic_id), PartitionRecord(topic_id, 0, (1,), (1,), 1)]


async def test_each_part_hears_of_what_concerns_it(following: Following) -> None:
    await following.apply(*topic("t"))
    await following.apply(BrokerRecord(2, 3, (), None))
    await following.apply(ConfigRecord("broker", "", "log.retention.ms", "5"))
    assert following.partitions.prepared == [["t"]], "logs are made for what changed"
    assert [each for each in following.heard if each != "brokers"] == ["topics", 2, 3, "config", "topics", 4]
    assert "brokers" in following.heard[following.heard.index(2) : following.heard.index(3)]


async def test_a_topic_that_takes_the_name_of_another_gets_its_logs_when_that_is_gone(following: Following) -> None:
    before = topic("t")
    await following.apply(*before)
    assert isinstance(before[0], TopicRecord)
    await following.apply(RemoveTopicRecord(before[0].topic_id), *topic("t"))
    assert following.partitions.prepared == [["t"], ["t"], ["t"]], "the second time in vain"


async def test_an_image_that_fails_in_part_keeps_nobody_from_later_ones(following: Following) -> None:
    following.partitions.fails = True
    await following.apply(*topic("t"))
    assert following.metrics.unexpected_errors == 1
    await following.apply(*topic("u"))
    assert following.partitions.prepared == [["t"], ["u"]]


async def test_of_several_images_only_the_last_has_to_come_into_force(following: Following) -> None:
    first = following.metadata.newest.apply(topic("t"))
    following.metadata.follow(first)
    await following.apply(*topic("u"))
    assert following.partitions.prepared == [["t", "u"]]
    following.metadata.follow(first)
    assert following.metadata.newest.version > first.version, "an older one is ignored"
