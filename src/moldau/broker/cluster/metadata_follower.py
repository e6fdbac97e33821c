"""Applies newer images of the metadata, one after the other.

First the logs that an image needs are created, in a thread, while the previous image is still the current one. Then
everything that requests see changes, on the loop. Then the listeners are called.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol

from moldau.broker.cluster.local_broker import LocalBroker
from moldau.broker.cluster.metadata_cache import MetadataCache
from moldau.config.broker import BrokerConfig
from moldau.metadata.image import MetadataImage, TopicImage

logger = logging.getLogger(__name__)


class LocalPartitions(Protocol):
    """The partitions that this broker hosts (`HostedPartitions`)."""

    def prepare(self, topics: Sequence[TopicImage], before: MetadataImage, after: MetadataImage) -> None: ...

    async def follow(self, changed: Sequence[TopicImage]) -> None: ...

    async def retry(self) -> None: ...


class ErrorCounter(Protocol):
    unexpected_errors: int


class Listeners(NamedTuple):
    """Parts that are called when an image changed something."""

    config: Sequence[Callable[[BrokerConfig], None]]
    brokers: Sequence[Callable[[MetadataImage, MetadataImage], None]]
    topics: Sequence[Callable[[], None]]
    applied: Sequence[Callable[[int], None]]
    """Called with the version that has been applied."""


class MetadataFollower:
    def __init__(
        self,
        me: LocalBroker,
        metadata: MetadataCache,
        partitions: LocalPartitions,
        *,
        in_thread: Callable[..., Awaitable[Any]],
        listeners: Listeners,
        metrics: ErrorCounter,
    ) -> None:
        self._me = me
        self._metadata = metadata
        self._partitions = partitions
        self._in_thread = in_thread
        self._listeners = listeners
        self._metrics = metrics
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Until it is cancelled; the logs have to be open."""
        metadata = self._metadata
        while True:
            await metadata.is_newer.wait()
            async with self._lock:
                while metadata.image is not (newest := metadata.newest):
                    await self._follow(newest)
                metadata.is_newer.clear()

    async def retry_logs(self) -> None:
        """Retries partitions whose log could not be created, for example because the disk was full."""
        async with self._lock:
            await self._partitions.retry()

    def apply_config(self) -> bool:
        """Applies the dynamic broker configuration of the current image; True when it changed something."""
        is_changed = self._me.apply_overrides(self._metadata.image)
        if is_changed:
            for on_config in self._listeners.config:
                on_config(self._me.config)
        return is_changed

    async def _follow(self, newest: MetadataImage) -> None:
        metadata = self._metadata
        try:
            await self._apply(newest)
        except Exception:
            # A failure with one partition must not keep this broker from applying later images.
            self._metrics.unexpected_errors += 1
            logger.exception(
                "internal error: a metadata change was applied only in part (please report it)",
                extra={"version": newest.version},
            )
            metadata.image = newest
        for on_applied in self._listeners.applied:
            on_applied(newest.version)
        await metadata.set_applied(newest.version)

    async def _apply(self, after: MetadataImage) -> None:
        before, partitions = self._metadata.image, self._partitions
        changed = _changed_topics(before, after)
        if changed:
            await self._in_thread(partitions.prepare, changed, before, after)
        self._metadata.image = after
        if self.apply_config():
            changed = list(after.topics.values())
        await partitions.follow(changed)
        replaced = [topic for topic in changed if _reuses_a_name(topic, before)]
        if replaced:  # their logs could not be created while those of the deleted topics were there
            await self._in_thread(partitions.prepare, replaced, MetadataImage(), after)
            await partitions.follow(replaced)
        if after.brokers is not before.brokers:
            for on_brokers in self._listeners.brokers:
                on_brokers(before, after)
        if changed or len(after.topics) != len(before.topics):
            for on_topics in self._listeners.topics:
                on_topics()


def _changed_topics(before: MetadataImage, after: MetadataImage) -> list[TopicImage]:
    """Topics whose partitions or configuration may differ. An image shares what did not change, so `is` tells."""
    return [
        topic
        for name, topic in after.topics.items()
        if before.topics.get(name) is not topic or before.topic_config(name) is not after.topic_config(name)
    ]


def _reuses_a_name(topic: TopicImage, before: MetadataImage) -> bool:
    known = before.topics.get(topic.name)
    return known is not None and known.topic_id != topic.topic_id
